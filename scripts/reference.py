"""Write the reference of the command line and the man pages from the tables that the program parses with.

    python scripts/reference.py            write command-line, host-words and servers of docs/reference, and man/*.1
    python scripts/reference.py --check    write nothing; status 1 and the names where they are stale

Nothing about an option stands here: TABLE and VERBS of quine/base/cli_options.py, USAGE of quine/cli/help.py, HELP of
quine/cli/tape.py, the tables of quine/cli/rsh.py, quine/files/cli/options.py, quine/fanout/options.py and
quine/fanout/each/options.py, and the verbs of quine/cli/app.py are read; for the other pages
quine/remote/host_words.py and quine/providers/servers.toml.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from quine import __version__  # noqa: E402
from quine.base import cli_options as options  # noqa: E402
from quine.cli import rsh, tape  # noqa: E402
from quine.cli.app import described  # noqa: E402
from quine.cli.help import USAGE  # noqa: E402
from quine.fanout import options as fanout  # noqa: E402
from quine.fanout.each import options as each  # noqa: E402
from quine.files.cli import options as files  # noqa: E402
from quine.providers import servers  # noqa: E402
from quine.providers.dialects.faults import ERRORS, REFUSALS  # noqa: E402
from quine.remote import host_words  # noqa: E402

DATE = "2026-11-23"  # of the man pages; a fixed one, so that the same tables give the same files
MARKDOWN = ROOT / "docs" / "reference" / "command-line.md"
HOST_WORDS = ROOT / "docs" / "reference" / "host-words.md"
SERVERS = ROOT / "docs" / "reference" / "servers.md"
MAN = ROOT / "man"
STATUS = """\
That of the agent or command. 0 success; 1 the agent judged that its mission failed, and 3 to 63 are its own to choose;
2 usage or configuration; 69 nothing was started; 70 a defect in quine; 74 lost: started, outcome unknown; 75 the guest
could not be reached; 77 denied by a limit; 124 the deadline; 126, 127 of run: not executable, not found; 128+n died of
signal n."""
PLACES = (
    ("./inventory.toml, ~/.config/quine/inventory.toml", "the hosts"),
    (".quine", "the data directory: tapes, logs, outputs, by default the shared files"),
    ("~/.config/quine/prices.toml", "prices of models, over those that come with quine"),
    ("~/.local/state/quine/jobs", "detached jobs"),
    ("~/.cache/quine", "builds, and contents that were staged"),
)


@dataclass
class Option:
    left: str  # "-q, --quiet"
    value: str
    text: str


@dataclass
class Command:
    """One verb, or one command of a verb."""

    name: str  # "quine run", "quine tape ls"
    summary: str
    usage: list[str]
    about: str
    options: list[Option] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


def _options(rows: Iterable[tuple[str, str, str, str, str]]) -> list[Option]:
    return [
        Option(", ".join(filter(None, (short and f"-{short}", name and f"--{name}"))), value, text)
        for name, short, value, _, text in rows
    ]


def _split(text: str) -> tuple[list[str], str]:
    """The usage lines of a help text, without the word, and the rest."""
    head, _, rest = text.partition("\n\n")
    lines = [line.removeprefix("usage:").strip() for line in head.splitlines()]
    return lines, rest


def _of_table(name: str, verb: str, summary: str, text: str) -> Command:
    usage, about = _split(text)
    return Command(name, summary, usage, about, _options(options.rows(verb)))


def _by_hand(verb: str) -> Command:
    """A verb of quine/cli/app.py."""
    about, arguments, rows = described(verb)
    usage = [" ".join(["quine", verb, "[OPTIONS]", *(f"[{argument}]" for argument in arguments)])]
    return Command(f"quine {verb}", options.VERBS[verb], usage, about, _options(rows))


def _tape() -> Command:
    usage, about = _split(tape.USAGE.removesuffix("\n\ncommands:"))
    whole = Command("quine tape", options.VERBS["tape"], usage, about)
    for name, text in tape.HELP.items():
        usage, about = _split(text)
        summary = about.splitlines()[0]
        rows = options.rows(f"tape:{name}")
        whole.commands.append(Command(f"quine tape {name}", summary, usage, about, _options(rows)))
    return whole


def _fs() -> Command:
    closing = "\n".join(files.CLOSING)
    at = closing.index("exit status:")
    about = f"{files.ABOUT}\n{closing[:at]}\n\nE{closing[at + 1 :]}"
    whole = Command("quine fs", options.VERBS["fs"], [files.USAGE], about)
    for name, (words, summary, more) in files.COMMANDS.items():
        rows = options.rows(name, files.OPTIONS)
        text = f"{summary[0].upper()}{summary[1:]}." + (f"\n{more}" if more else "")
        whole.commands.append(
            Command(f"quine fs {name}", summary, [f"quine fs {name} {words}"], text, _options(rows))
        )
    for name, summary in files.OTHERS.items():
        text = f"{summary[0].upper()}{summary[1:]}."
        whole.commands.append(Command(f"quine fs {name}", summary, [f"quine fs {name} [ARG…]"], text))
    return whole


def _of_room(
    verb: str, head: str, rows: Iterable[tuple[str, str, str, str, str]], closing: str = ""
) -> Command:
    """A verb whose table is its own; `closing` stands below the options in its help."""
    usage, about = _split(head)
    at = closing.find("exit status:")
    about += f"\n\n{closing[:at]}\n\nE{closing[at + 1 :]}" if closing else ""
    return Command(f"quine {verb}", options.VERBS[verb], usage, about, _options(rows))


def commands() -> list[Command]:
    """The agent, then the verbs in the order of the help."""
    found = [_of_table("quine", "agent", "an LLM agent as a POSIX process", USAGE["agent"])]
    for verb, summary in options.VERBS.items():
        if verb == "tape":
            found.append(_tape())
        elif verb == "fs":
            found.append(_fs())
        elif verb == "xargs":
            found.append(_of_room(verb, fanout.HEAD, fanout.OPTIONS, "\n".join(fanout.CLOSING)))
        elif verb == "each":
            found.append(_of_room(verb, each.HEAD, each.OPTIONS, "\n".join(each.CLOSING)))
        elif verb == "rsh":
            found.append(_of_room(verb, rsh.USAGE, rsh.OPTIONS))
        elif verb in USAGE:
            found.append(_of_table(f"quine {verb}", verb, summary, USAGE[verb]))
        else:
            found.append(_by_hand(verb))
    return found


# -- Markdown -------------------------------------------------------------------------------------


def _escaped(text: str) -> str:
    """Text of the program in Markdown; spans in backquotes stay."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = [
        re.sub(r"([\\*\[\]<>|$~]|(?<!\w)_|_(?!\w))", r"\\\1", part) if at % 2 == 0 else part
        for at, part in enumerate(parts)
    ]
    return "".join(plain)


def _section(command: Command, level: int) -> Iterator[str]:
    yield f"{'#' * level} {command.name}\n"
    text = ["\n".join(command.usage)]
    for part in command.about.split("\n\n") if command.about else ():
        text.append("\n".join(textwrap.wrap(" ".join(part.split()), 100, break_on_hyphens=False)))
    yield "```text\n" + "\n\n".join(text) + "\n```\n"
    if command.options:
        lines = ["| option | |", "|---|---|"]
        for option in command.options:
            left = f"{option.left} {option.value}".strip().replace("|", "\\|")
            lines.append(f"| `{left}` | {_escaped(option.text)} |")
        yield "\n".join(lines) + "\n"
    for inner in command.commands:
        yield from _section(inner, level + 1)


def markdown() -> str:
    head = (
        "# Command line\n\n"
        "<!-- written by scripts/reference.py from the tables of the program; do not edit -->\n\n"
        "Options end at `--` or at the first word that is none. A first word that is a verb is that verb;\n"
        '`quine -- ps` is the mission "ps". The words of a mission are joined by single spaces. A word behind its\n'
        "first one that is an option of quine is refused (2): options come before the mission, as in\n"
        "`quine --on h1 MISSION`. A mission that has such a word in it is one quoted word, or stands behind `--`.\n\n"
        "`quine --completion SHELL` prints a completion script:\n\n"
        "```text\n"
        "$ quine --completion bash >> ~/.bashrc\n"
        '$ quine --completion zsh > "${fpath[1]}/_quine"\n'
        "$ quine --completion fish > ~/.config/fish/completions/quine.fish\n"
        "```\n"
    )
    return "\n".join([head, *(part for command in commands() for part in _section(command, 2))])


# -- model servers ---------------------------------------------------------------------------------

TROUBLES = {  # of the table of servers: the meaning, and what is done
    "overflow": ("the context is full", "old results are left out of the conversation, then one last reply"),
    "too_big": ("one request above a limit of a minute", "as a full context: it would never succeed"),
    "rate": ("too many requests", "tried again after the pause that it asks for"),
    "quota": ("the quota is used up", "the agent ends with 2, or waits until a budget is raised"),
    "overloaded": ("the server is overloaded", "tried again"),
    "loading": ("the model is being loaded", "tried again"),
    "unavailable": ("it can't answer now", "tried again"),
    "refusal": ("it refuses the content", "the agent ends with 1"),
    "field": ("a field that it does not know", "asked once more without that, if it is optional"),
    "demand": ("something is missing in the history", "asked once more with that, if it is known"),
    "badargs": ("it can't read an old call", "calls go back as JSON, so it does not come"),
    "malformed": ("it can't read the call of its model", "tried again twice, then the model is told [LOST]"),
    "notools": ("no tools there", "the agent ends with 1 and the cure"),
    "auth": ("the key", "the agent ends with 2"),
    "nomodel": ("the model", "the agent ends with 2"),
    "environment": ("its machine", "the agent ends with 1"),
}


def of_servers() -> str:
    table = servers.table()
    assert TROUBLES.keys() == {*ERRORS, *REFUSALS}
    lines = [
        "# Model servers\n",
        "<!-- written by scripts/reference.py from quine/providers/servers.toml; do not edit -->\n",
        "The words of each server and what it demands, as quine reads them. `quine doctor --guest` examines the one\n"
        "that you have. A host that is in no row is judged by the words of all servers that run on anybody's host.\n",
        "| trouble | meaning | what quine does |\n|---|---|---|",
        *(f"| {name} | {meaning} | {_escaped(done)} |" for name, (meaning, done) in TROUBLES.items()),
        "",
        *(line for server in table["servers"].values() for line in _server(server, table["sources"])),
    ]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _server(server: dict[str, Any], sources: dict[str, str]) -> Iterator[str]:
    yield f"## {server['title']}\n"
    hosts = ", ".join(f"`{host}`" for host in server["hosts"]) or "any host"
    yield f"Asked as {', '.join(f'`{kind}`' for kind in server['speaks'])}; {hosts}.\n"
    yield "| trouble | status | it says |\n|---|---|---|"
    for row in server["judge"]:
        status = ", ".join(str(each) if each else "inside a 200" for each in row["s"]) or "any"
        said = " ".join(map(_code, (*row["c"], *row["w"]))).replace("|", "\\|") or "anything"
        yield f"| {row['t']} | {status} | {said} |"
    yield ""
    facts = [
        *((f"Refuses {row['field']}: {row['when']}", row["src"]) for row in server["refuses"]),
        *((f"Demands {row['what']}", row["src"]) for row in server["demands"]),
        (f"Usage: {server['usage']['where']}", server["usage"]["src"]),
        *((f"Context: `{row['tokens']}` of `GET {row['get']}`", row["src"]) for row in server["window"]),
    ]
    yield from (f"* {_escaped(text)}" for text, _ in facts)
    used = dict.fromkeys([*(row["src"] for row in server["judge"]), *(src for _, src in facts)])
    yield "\nSources: " + "; ".join(_escaped(sources[name].strip()) for name in used) + ".\n"


# -- roff -----------------------------------------------------------------------------------------


def _roff(text: str) -> str:
    """Text for man(7), in ASCII, in lines of 80 bytes."""
    text = "\n".join(
        textwrap.wrap(" ".join(text.split()), 68, break_long_words=False, break_on_hyphens=False)
    )
    text = text.replace("\\", "\\e").replace("…", "...").replace("–", "-").replace("-", "\\-")
    text = text.replace("`", "").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    text.encode("ascii")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def _options_roff(found: list[Option]) -> Iterator[str]:
    for option in found:
        value = f" \\fI{_roff(option.value)}\\fR" if option.value else ""
        names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.left.split(", "))
        yield f".TP\n{names}{value}\n{_roff(option.text)}"


def _synopsis(usage: list[str]) -> str:
    return "\n.br\n".join(f"\\fB{_roff(line)}\\fR" for line in usage)


def page(command: Command, others: list[str]) -> str:
    name = command.name.replace(" ", "-")
    lines = [
        '.\\" Written by scripts/reference.py from the tables of the program; do not edit.',
        f'.TH {name.upper()} 1 {DATE} "quine {__version__}" "User Commands"',
        f".SH NAME\n{_roff(name)} \\- {_roff(command.summary)}",
        f".SH SYNOPSIS\n{_synopsis(command.usage)}",
    ]
    if command.about:
        lines.append(".SH DESCRIPTION\n" + "\n.PP\n".join(map(_roff, command.about.split("\n\n"))))
    if command.options:
        lines += [".SH OPTIONS", *_options_roff(command.options)]
    if command.commands:
        lines.append(".SH COMMANDS")
        for inner in command.commands:
            lines.append(f".SS {_roff(inner.name)}\n{_synopsis(inner.usage)}")
            lines += [f".PP\n{_roff(part)}" for part in inner.about.split("\n\n")]
            lines += _options_roff(inner.options)
    if command.name == "quine":
        lines.append(".SH VERBS")
        lines += [f".TP\n\\fBquine {verb}\\fR\n{_roff(text)}" for verb, text in options.VERBS.items()]
        lines.append(".SH FILES")
        lines += [f".TP\n{_roff(path)}\n{_roff(text)}" for path, text in PLACES]
    if command.name in ("quine", "quine run"):
        lines.append(f".SH EXIT STATUS\n{_roff(STATUS)}")
    shown = [other for other in others if other != name]
    lines.append(
        ".SH SEE ALSO\n" + ",\n".join(f".BR {_roff(other)} (1)" for other in shown).replace(",\n", " ,\n")
    )
    return "\n".join(lines) + "\n"


def written() -> dict[Path, str]:
    """Each file with the text that it should have."""
    found = commands()
    names = [command.name.replace(" ", "-") for command in found]
    texts = {MAN / f"{name}.1": page(command, names) for name, command in zip(names, found, strict=True)}
    return {MARKDOWN: markdown(), HOST_WORDS: host_words.page(), SERVERS: of_servers(), **texts}


def stale() -> list[Path]:
    """Files that are not as the tables would have them, and man pages of no verb."""
    texts = written()
    wrong = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    return wrong + [path for path in sorted(MAN.glob("*")) if path not in texts]


def main(words: list[str]) -> int:
    """Exit status."""
    if words == ["--check"]:
        for path in stale():
            print(f"{path.relative_to(ROOT)} is stale: make reference")
        return int(bool(stale()))
    MAN.mkdir(exist_ok=True)
    for path in stale():
        if path in written():
            path.write_text(written()[path])
        else:
            path.unlink()
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

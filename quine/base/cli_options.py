"""The command line of the verbs that are called in loops (an agent, `run`, ps, tape and others): one table.

Laws
1. TABLE is both the options that are parsed and those that --help prints (quine/cli/help.py); nothing is listed
   twice.
2. Options end at `--` or at the first word that is not an option, as with ssh and env: the rest belongs to the mission
   or to the command.
3. Standard library only, and little of it: typer would cost more time than the whole client.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# option, short form, value name ("" for a switch), verbs it belongs to (VERB:COMMAND for one command of a verb),
# built, help
TABLE: tuple[tuple[str, str, str, str, bool, str], ...] = (
    ("on", "", "WHERE", "agent run", True, "where it runs: a host, @tag, any, local; a,b = either; !x = not"),
    ("on", "", "WHERE", "ps", True, "on these hosts, too: a host, @tag, any; a,b = either; !x = not"),
    (
        "on",
        "",
        "WHERE",
        "wait logs kill attach",
        True,
        "the host it is on; left out: here, then all hosts are asked",
    ),
    ("file", "f", "FILE", "agent", True, "read the mission from FILE, - for stdin"),
    ("binary", "b", "", "agent", True, "read stdin into a file first and tell the agent its path"),
    ("model", "", "NAME", "agent", True, "model name sent to the API (QUINE_MODEL_ID)"),
    ("max-turns", "", "N", "agent", True, "sh calls of a life, 0 = unlimited (QUINE_MAX_TURNS, 20)"),
    ("max-depth", "", "N", "agent", True, "levels of the tree (QUINE_MAX_DEPTH, 5)"),
    ("max-agents", "", "N", "agent", True, "live agents of the tree, 0 = unlimited (QUINE_MAX_AGENTS, 10)"),
    ("max-tokens", "", "N", "agent", True, "tokens of the tree (QUINE_MAX_TOKENS)"),
    ("max-cost", "", "USD", "agent", True, "cost of the tree (QUINE_MAX_COST)"),
    ("deadline", "", "SECONDS", "agent", True, "time of the tree (QUINE_DEADLINE)"),
    ("deadline", "", "SECONDS", "run", False, "end it after that time; see timeout(1)"),
    (
        "inventory",
        "",
        "FILE",
        "agent run ps wait logs kill attach",
        True,
        "the hosts (QUINE_INVENTORY, ./inventory.toml)",
    ),
    (
        "fs",
        "",
        "URL",
        "agent run",
        True,
        "the files tier: origin:[DIR], file://, s3:// and others (QUINE_FS)",
    ),
    (
        "mount",
        "",
        "",
        "agent run",
        True,
        "show it the files tier as a directory, whose path is in QUINE_MOUNT",
    ),
    ("cwd", "", "DIR", "agent run", True, "directory to start in"),
    (
        "files",
        "",
        "PATH",
        "agent run",
        True,
        "have it there before it starts: file, directory, 'PATTERN' or FROM:NAME; may be repeated",
    ),
    (
        "returns",
        "",
        "PATTERN",
        "agent run wait",
        True,
        "bring it back here after it has ended, all or nothing; may be repeated; also --fetch",
    ),
    ("env", "", "K[=V]", "agent run", True, "set or pass an environment variable; may be repeated"),
    (
        "limit",
        "",
        "NAME=VALUE",
        "agent run",
        True,
        "limit: as core cpu data fsize nofile nproc stack; may be repeated",
    ),
    ("terminal", "t", "", "run", True, "give it a terminal over there, as ssh -t; ~. leaves"),
    (
        "retry",
        "",
        "N",
        "agent run",
        True,
        "try again up to N times, on another host first, if it never started",
    ),
    (
        "idempotent",
        "",
        "",
        "agent run",
        True,
        "with --retry: running it twice is harmless; also retry when its outcome was lost",
    ),
    ("detach", "", "", "agent run", True, "let it run on without this process; its id is printed"),
    (
        "job",
        "",
        "ID",
        "agent run",
        True,
        "its id, a UUID; one that was detached already is not started again; of several hosts the id chooses one",
    ),
    ("stdin", "i", "", "agent run", True, "with --detach: its stdin stays open, for attach --stdin"),
    (
        "output-limit",
        "",
        "SIZE",
        "agent run",
        True,
        "with --detach: output that nobody has read, then it waits (1G)",
    ),
    ("stdin", "i", "", "attach", True, "pass our stdin to the job, including its end"),
    (
        "from",
        "",
        "N[,M]",
        "attach",
        True,
        "leave out N bytes of its stdout and M of its stderr; end: only what is new",
    ),
    ("report", "", "FILE|FD", "agent run", True, "write one JSON object on how it ended"),
    ("quiet", "q", "", "agent run", True, "no messages but errors"),
    ("verbose", "v", "", "agent run", True, "operational detail on stderr"),
    ("all", "a", "", "ps", True, "those that have ended, too"),
    ("json", "", "", "ps tape:ls tape:cost tape:verify", True, "one JSON object a line"),
    ("tree", "", "", "tape:cost", True, "of the whole tree of that session"),
    ("dry", "", "", "tape:replay", True, "run nothing: print what the guest was sent"),
    ("timeout", "", "SECONDS", "wait", True, "wait no longer; then the exit status is 124"),
    (
        "follow",
        "f",
        "",
        "logs ps tape:show",
        True,
        "go on until it has ended; ps: list again as things change",
    ),
    ("stderr", "", "", "logs", True, "print the job's stderr instead of its stdout"),
    ("both", "", "", "logs", True, "its stdout to stdout and its stderr to stderr"),
    ("offset", "", "N", "logs", True, "leave out the first N bytes"),
    (
        "signal",
        "s",
        "NAME",
        "kill",
        True,
        "the signal: a name or a number; also as -NAME; 0 only looks (TERM)",
    ),
    ("list", "l", "", "kill", True, "the names of signals; with a number its name"),
    (
        "data-dir",
        "",
        "DIR",
        "ps wait logs kill attach tape",
        True,
        "where tapes and jobs are (QUINE_DATA_DIR, .quine)",
    ),
    ("completion", "", "SHELL", "agent", True, "print the completion of bash, zsh or fish"),
    ("help", "h", "", "agent run ps wait logs kill attach tape", True, "this text"),
    ("version", "", "", "agent run", True, "version and build hash"),
)
REPEATED = ("env", "limit", "files", "returns")
ALIASES = {"fetch": "returns", "spool": "output-limit"}  # the second is the old spelling, which 1.0 drops

VERBS = {
    "run": "one plain command, here or on a node",
    "hosts": "the hosts of the inventory; `hosts check`: test login and build",
    "deploy": "put this binary on hosts; `deploy build -o FILE`",
    "tape": "inspect sessions: ls show tree cost replay verify archive",
    "doctor": "check this machine, with a cure for each problem",
    "node": "the daemon; started for you",
    "ps": "agents and detached jobs, running and ended",
    "wait": "wait for them, and leave as they left",
    "kill": "signal them",
    "logs": "output of jobs that nobody waits for",
    "attach": "be the proxy of a running job again",
    "fs": "the files that all agents of a tree share: ls cat put get cp mv rm find sync mount …",
}
UNBUILT = ("xargs",)  # reported as not built if it is the first word; not in the help


def rows(verb: str) -> list[tuple[str, str, str, str, bool, str]]:
    """Return the options of a verb. For VERB:COMMAND: its own, and those of all commands of the verb."""
    names = {verb, verb.partition(":")[0]}
    return [row for row in TABLE if not names.isdisjoint(row[3].split())]


def parse_around(verb: str, words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Parse as `parse` does, with options on either side of the other words: none of those begins with a dash."""
    values, rest = parse(verb, words)
    others = []
    while rest:
        others.append(rest[0])
        more, rest = parse(verb, rest[1:])
        values |= more
    return values, others


def parse(verb: str, words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Return the options (long names, - as _) and the words after them. Raise Misconfigured for a wrong one."""
    longs = {row[0]: row for row in rows(verb)}
    shorts = {row[1]: row for row in longs.values() if row[1]}
    values: dict[str, object] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            at -= 1
            break
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            row = longs.get(ALIASES.get(name, name))
        else:
            name, value = word[1], word[2:]
            given, row = value, shorts.get(name)
            if row and not row[2] and value:  # -qv
                words.insert(at, "-" + value)
                given = value = ""
        if row is None:
            raise Misconfigured(f"no such option: {word}", _near(verb, word, longs))
        if not row[4]:
            raise Misconfigured(f"{word.partition('=')[0]} is not built yet")
        if not row[2]:
            if given:
                raise Misconfigured(f"--{row[0]} takes no value")
            values[row[0].replace("-", "_")] = True
            continue
        if not given and not word.endswith("="):
            if at >= len(words):
                raise Misconfigured(f"{word} needs a value: {row[2]}")
            value = words[at]
            at += 1
        if not value:
            # An unset variable in a script: --on "" must not mean this machine, nor --report "" no report.
            raise Misconfigured(f"--{row[0]} is empty; it needs a value: {row[2]}")
        _put(values, row[0], value)
    return values, words[at:]


def misplaced(words: list[str], rest: list[str]) -> Misconfigured | None:
    """Return the error if options are before a verb, else None; `rest` is the part of `words` after the options."""
    before = words[: len(words) - len(rest)]
    if not rest or rest[0] not in (*VERBS, *UNBUILT) or before[-1:] == ["--"]:
        return None
    from shlex import join

    verb, mission = join(["quine", rest[0], *before, *rest[1:]]), join(["quine", *before, "--", *rest])
    return Misconfigured(
        f"options before {rest[0]}, which is a verb", f"the verb: {verb}; the mission: {mission}"
    )


def _put(values: dict[str, object], name: str, value: str) -> None:
    key = name.replace("-", "_")
    if name in REPEATED:
        listed = values.setdefault(key, [])
        assert isinstance(listed, list)
        listed.append(value)
    else:
        values[key] = value


def _near(verb: str, word: str, longs: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    if verb == "agent" and word in ("-t", "-tt", "--terminal"):
        return "an agent has no terminal, only streams; quine run -t gives one to a command"
    near = get_close_matches(word.lstrip("-"), list(longs), 1)
    command = "quine" if verb == "agent" else f"quine {verb.replace(':', ' ')}"
    return f"did you mean --{near[0]}?" if near else f"see {command} --help"


def environment(values: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of --env: K=V sets one, K passes on the caller's. Raise Misconfigured without a name."""
    found: dict[str, str] = {}
    listed = values.get("env", [])
    assert isinstance(listed, list)
    for text in listed:
        name, given, value = text.partition("=")
        if not name:
            raise Misconfigured(f"--env {text}: no name")
        if given:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return found


def limits(values: Mapping[str, object]) -> dict[str, str]:
    """Return the limits of --limit NAME=VALUE. Raise Misconfigured for a wrong one."""
    found: dict[str, str] = {}
    listed = values.get("limit", [])
    assert isinstance(listed, list)
    for text in listed:
        name, given, value = text.partition("=")
        if not (name and given and value):
            raise Misconfigured(f"--limit {text}: should be NAME=VALUE")
        found[name] = value
    if found:
        from transport import rlimits
        from transport.errors import ProtocolError

        try:
            rlimits.parse(found)
        except ProtocolError as error:
            raise Misconfigured(f"--limit: {error}") from None
    return found


def find_inventory(values: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """Return the inventory's absolute path: of --inventory, or else of the environment; None if there is none."""
    from deploy.paths import find

    named = values.get("inventory")
    return os.path.abspath(os.path.expanduser(str(named))) if named else find(environ)

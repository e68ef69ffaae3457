"""Completion for bash, zsh and fish, written from the tables of the command line: nothing in it stands in two places.

    quine --completion bash >> ~/.bashrc
    quine --completion zsh > "${fpath[1]}/_quine"
    quine --completion fish > ~/.config/fish/completions/quine.fish

Laws
1. What is printed is a script that asks no quine, but for the names of hosts after --on.
2. A mission is not completed; words of it may be file names, so those are offered.
"""

from __future__ import annotations

from quine.exits import Misconfigured
from quine.files import grammar
from quine.options import TABLE, UNBUILT, VERBS

# words that follow the verbs whose command line is not in the table
ACTIONS = {
    "hosts": "check",
    "deploy": "build --output --inventory --verbose --help",
    "tape": "ls show tree cost replay verify save --data-dir --help",
    "doctor": "--inventory --help",
    "node": "--dial --stop --status --help",
    "fs": " ".join([*grammar.COMMANDS, *grammar.OTHERS]) + " --help",
}
SHELLS = ("bash", "zsh", "fish")
HOSTS = "quine hosts 2>/dev/null | awk 'NR > 1 { print $1 }'"

BASH = """\
_quine() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} words=
    case $previous in
        --on) words="any local $({hosts})" ;;
        {paths}) COMPREPLY=($(compgen -f -- "$current")); return ;;
        --completion) words="{shells}" ;;
        *)
            case ${{COMP_WORDS[1]}} in
{cases}
                *) words="{agent}"; [ "$COMP_CWORD" -eq 1 ] && words="{verbs} $words" ;;
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _quine quine
"""


def script(shell: str) -> str:
    """The completion of one shell; Misconfigured for another."""
    if shell not in SHELLS:
        raise Misconfigured(f"no completion for {shell}", f"there is one for {', '.join(SHELLS)}")
    if shell == "fish":
        return _fish()
    return (
        "#compdef quine\nautoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    ) + _bash()


def _verbs() -> list[str]:
    return [verb for verb in VERBS if verb not in UNBUILT]


def _options(verb: str) -> list[str]:
    return [f"--{row[0]}" for row in TABLE if verb in row[3].split() and row[4]]


def _bash() -> str:
    words = {verb: ACTIONS.get(verb) or " ".join(_options(verb)) for verb in _verbs()}
    cases = "\n".join(
        f"                {verb}) {_bash_fs(text) if verb == 'fs' else _set(text)} ;;"
        for verb, text in words.items()
    )
    paths = sorted({f"--{row[0]}" for row in TABLE if row[2] in ("FILE", "DIR", "FILE|FD")})
    return BASH.format(
        hosts=HOSTS,
        paths="|".join(paths),
        shells=" ".join(SHELLS),
        cases=cases,
        agent=" ".join(_options("agent")),
        verbs=" ".join(_verbs()),
    )


def _set(words: str) -> str:
    return f'words="{words}"'


def _bash_fs(words: str) -> str:
    """After a command of `quine fs`, its options; paths are those of the shell."""
    inner = " ".join(f"{name}) {_set(' '.join(_fs_options(name)))} ;;" for name in grammar.COMMANDS)
    after = f"case ${{COMP_WORDS[2]}} in {inner} esac"
    return f"case $COMP_CWORD in 2) {_set(words)} ;; *) {after} ;; esac"


def _fs_options(command: str) -> list[str]:
    return [f"--{row[0]}" for row in grammar.OPTIONS if command in row[3].split()]


def _fish() -> str:
    first = "__fish_use_subcommand"
    lines = [f"complete -c quine -n {first} -a {verb} -d {_quoted(VERBS[verb])}" for verb in _verbs()]
    for name, short, value, verbs, built, text in TABLE:
        if not built:
            continue
        others = [verb for verb in verbs.split() if verb != "agent"]
        conditions = [f"'__fish_seen_subcommand_from {' '.join(others)}'"] if others else []
        conditions += [first] if "agent" in verbs.split() else []
        more = f" -s {short}" if short else ""
        if name == "on":
            more += f' -x -a "any local ({HOSTS.replace("$", chr(92) + "$")})"'
        elif value:
            more += " -r"
        lines += [
            f"complete -c quine -n {condition} -l {name}{more} -d {_quoted(text)}" for condition in conditions
        ]
    for verb, words in ACTIONS.items():
        seen = f"'__fish_seen_subcommand_from {verb}'"
        plain = [word for word in words.split() if not word.startswith("-")]
        lines += [f"complete -c quine -n {seen} -a {word}" for word in plain]
        lines += [f"complete -c quine -n {seen} -l {word[2:]}" for word in words.split() if word not in plain]
    for name, short, value, commands, text in grammar.OPTIONS:
        seen = f"'__fish_seen_subcommand_from fs; and __fish_seen_subcommand_from {commands}'"
        more = (f" -s {short}" if short else "") + (" -r" if value else "")
        lines.append(f"complete -c quine -n {seen} -l {name}{more} -d {_quoted(text)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """One word for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

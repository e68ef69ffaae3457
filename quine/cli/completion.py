"""Completion for bash, zsh and fish, generated from the tables of the command line, so that nothing is listed twice.

    quine --completion bash >> ~/.bashrc
    quine --completion zsh > "${fpath[1]}/_quine"
    quine --completion fish > ~/.config/fish/completions/quine.fish

Laws
1. The printed script asks quine for the facts that only quine knows: hosts with their tags, and ids of jobs. The ids of
   sessions are the names of their tapes.
2. A mission is not completed; words of it may be file names, so those are offered.
3. The first word after `--` of `run`, `each`, `xargs` and `budget` is a command; the words after it are paths.
"""

from __future__ import annotations

from quine.base.cli_options import TABLE, UNBUILT, VERBS, rows
from quine.base.errors import Misconfigured
from quine.cli.app import described
from quine.cli.rsh import OPTIONS as RSH
from quine.cli.tape import HELP
from quine.fanout.each.options import OPTIONS as EACH
from quine.fanout.options import OPTIONS as FANOUT
from quine.files.cli import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import Row


def _by_hand(verb: str) -> str:
    """Return the words that follow a verb of app.py: its options, and those of its arguments that are literal."""
    _, arguments, table = described(verb)
    literal = [word for argument in arguments for word in argument.rstrip("…").split("|") if word.islower()]
    return " ".join([*literal, *(f"--{row[0]}" for row in table)])


# words that follow the verbs whose command line is not in the table
ACTIONS = {
    **{verb: _by_hand(verb) for verb in ("hosts", "deploy", "doctor", "node")},
    "tape": " ".join([*HELP, "--help"]),
    "budget": "show raise",
    "each": " ".join(f"--{row[0]}" for row in EACH),
    "rsh": " ".join(f"--{row[0]}" if row[0] else f"-{row[1]}" for row in RSH),
    "xargs": " ".join(f"--{row[0]}" for row in FANOUT),
    "fs": " ".join([*options.COMMANDS, *options.OTHERS]) + " --help",
}
SHELLS = ("bash", "zsh", "fish")
LISTED = (
    "quine hosts 2>/dev/null | awk "
    '\'NR > 1 { print $1; n = split($6, tags, ","); for (i = 1; i <= n; i++) if (tags[i] != "-") print "@" tags[i] }\''
)
# Those that a WHERE may name without a table. An Include is not followed.
NAMED = (
    "awk "
    '\'tolower($1) == "host" { for (i = 2; i <= NF; i++) if ($i !~ "[*?!#]") print $i }\' ~/.ssh/config 2>/dev/null'
)
HOSTS = f"{LISTED}; {NAMED}"
JOBS = "quine ps{} 2>/dev/null | awk 'NR > 1 {{ print $1 }}'"
IDS = {  # verbs on jobs, and the command that lists the jobs they accept
    **dict.fromkeys(("wait", "logs"), JOBS.format(" --all")),
    **dict.fromkeys(("kill", "attach"), JOBS.format("")),
}
BUDGETS = "quine budget show 2>/dev/null | awk 'NR > 1 { print $1 }'"
SESSIONS = (
    "sh -c 'ls -- \"${QUINE_DATA_DIR:-.quine}\"' 2>/dev/null | sed -n 's/^\\([0-9a-f-]*\\)[.]jsonl$/\\1/p'"
)
PATHS = ("FILE", "DIR", "FILE|FD", "PATH")  # values that are paths

BASH = """\
_quine() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} words= at
    if [[ ${{COMP_WORDS[1]}} =~ ^(budget|each|run|xargs)$ ]]; then
        for ((at = 2; at < COMP_CWORD; at++)); do
            [ "${{COMP_WORDS[at]}}" = -- ] || continue
            [ $((at + 1)) -eq "$COMP_CWORD" ] && COMPREPLY=($(compgen -c -- "$current"))
            return
        done
    fi
    case $previous in
        --on) words="any local $({hosts})" ;;
        @) current=@$current words="$({hosts})" ;;  # bash gives @TAG as two words, and replaces both
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
    """Return the completion script of one shell. Raise Misconfigured for another shell."""
    if shell not in SHELLS:
        raise Misconfigured(f"no completion for {shell}", f"there is one for {', '.join(SHELLS)}")
    if shell == "fish":
        return _fish()
    return (
        "#compdef quine\nautoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    ) + _bash()


def _verbs() -> list[str]:
    return [verb for verb in VERBS if verb not in UNBUILT]


def _options(table: list[Row]) -> str:
    return " ".join(f"--{row[0]}" for row in table)


def _bash() -> str:
    cases = "\n".join(f"                {verb}) {_bash_verb(verb)} ;;" for verb in _verbs())
    paths = sorted({f"--{row[0]}" for row in (*TABLE, *FANOUT, *EACH) if row[2] in PATHS})
    return BASH.format(
        hosts=HOSTS,
        paths="|".join(paths),
        shells=" ".join(SHELLS),
        cases=cases,
        agent=_options(rows("agent")),
        verbs=" ".join(_verbs()),
    )


def _set(words: str) -> str:
    return f'words="{words}"'


def _bash_verb(verb: str) -> str:
    """Return code that sets the words which may follow a verb."""
    words = ACTIONS.get(verb) or _options(rows(verb))
    if verb == "fs":
        return _bash_fs(words)
    if verb == "budget":
        given = _options(rows(verb))
        return f'case $previous in show|raise) words="{given} $({BUDGETS})" ;; *) {_set(f"{words} {given}")} ;; esac'
    if verb in IDS:
        return f'words="{words}"; case $current in -*) ;; *) words="$({IDS[verb]})" ;; esac'
    if verb == "tape":
        inner = " ".join(f"{name}) {_set(_options(rows(f'tape:{name}')))} ;;" for name in HELP)
        ids = f'case $current in -*) ;; *) words="$({SESSIONS})" ;; esac'
        return f"case $COMP_CWORD in 2) {_set(words)} ;; *) case ${{COMP_WORDS[2]}} in {inner} esac; {ids} ;; esac"
    if verb in ("each", "rsh"):
        any_too = "any " if verb == "each" else ""
        return f'words="{words}"; case $current in -*) ;; *) words="{any_too}$({HOSTS})" ;; esac'
    if verb in ("deploy", "doctor"):
        return f'words="{words}"; case $current in -*) ;; *) words="$words any $({HOSTS})" ;; esac'
    if verb == "hosts":
        return f'case $previous in check) words="any $({HOSTS})" ;; *) {_set(words)} ;; esac'
    return _set(words)


def _bash_fs(words: str) -> str:
    """Return code that completes a command of `quine fs`, then its options; the shell completes paths."""
    inner = " ".join(f"{name}) {_set(_options(rows(name, options.OPTIONS)))} ;;" for name in options.COMMANDS)
    after = f"case ${{COMP_WORDS[2]}} in {inner} esac"
    return f"case $COMP_CWORD in 2) {_set(words)} ;; *) {after} ;; esac"


def _fish() -> str:
    first = "__fish_use_subcommand"
    lines = [f"complete -c quine -n {first} -a {verb} -d {_quoted(VERBS[verb])}" for verb in _verbs()]
    for row in TABLE:
        verbs = row[3].split()
        others = [verb for verb in verbs if verb != "agent" and ":" not in verb]
        conditions = [f"'__fish_seen_subcommand_from {' '.join(others)}'"] if others else []
        inner = [verb.partition(":") for verb in verbs if ":" in verb]
        conditions += [
            f"'__fish_seen_subcommand_from {verb}; and __fish_seen_subcommand_from {command}'"
            for verb, _, command in inner
        ]
        conditions += [first] if "agent" in verbs else []
        lines += [_fish_option(row, condition) for condition in conditions]
    for verb, words in ACTIONS.items():
        seen = f"'__fish_seen_subcommand_from {verb}'"
        plain = [word for word in words.split() if not word.startswith("-")]
        lines += [f"complete -c quine -n {seen} -a {word}" for word in plain]
        lines += [
            f"complete -c quine -n {seen} {'-l' if word.startswith('--') else '-s'} {word.lstrip('-')}"
            for word in words.split()
            if word not in plain
        ]
    wanted = {f"__fish_seen_subcommand_from {verb}": f"({listing})" for verb, listing in IDS.items()}
    wanted["__fish_seen_subcommand_from tape; and __fish_seen_subcommand_from " + " ".join(HELP)] = (
        f"({SESSIONS})"
    )
    wanted["__fish_seen_subcommand_from budget; and __fish_seen_subcommand_from show raise"] = f"({BUDGETS})"
    wanted["__fish_seen_subcommand_from deploy doctor check each"] = f"any ({HOSTS})"
    wanted["__fish_seen_subcommand_from rsh"] = f"({HOSTS})"
    wanted["__fish_seen_subcommand_from run each xargs budget; and contains -- -- (commandline -opc)"] = (
        "(__fish_complete_command)"
    )
    lines += [
        f"complete -c quine -n {_quoted(condition)} -a {_quoted(words)}"
        for condition, words in wanted.items()
    ]
    lines += [
        _fish_option(row, f"'__fish_seen_subcommand_from fs; and __fish_seen_subcommand_from {row[3]}'")
        for row in options.OPTIONS
    ]
    return "\n".join(lines) + "\n"


def _fish_option(row: Row, condition: str) -> str:
    name, short, value, _, text = row
    more = f" -s {short}" if short else ""
    if name == "on":
        more += f" -x -a {_quoted(f'any local ({HOSTS})')}"
    elif value:
        more += " -r"
    return f"complete -c quine -n {condition} -l {name}{more} -d {_quoted(text)}"


def _quoted(text: str) -> str:
    """Return `text` as one word for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""The command line of the verbs that are called in loops (an agent, `run`, ps, tape and others): one table.

Laws
1. TABLE is both the options that are parsed and those that --help prints (quine/cli/help.py); nothing is listed
   twice. RunOptions has a field for each of them.
2. Options end at `--` or at the first word that is not an option, as with ssh and env: the rest belongs to the mission
   or to the command.
3. Standard library only, and little of it: typer would cost more time than the whole client.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Row = tuple[str, str, str, str, str]

# option, short form, value name ("" for a switch), verbs it belongs to (VERB:COMMAND for one command of a verb), help
TABLE: tuple[Row, ...] = (
    (
        "on",
        "",
        "WHERE",
        "agent run",
        "where it runs: a host, user@host[:port], @tag, any, local; a,b = either; !x = not",
    ),
    ("on", "", "WHERE", "ps top", "on these hosts, too: a host, @tag, any; a,b = either; !x = not"),
    ("on", "", "WHERE", "wait logs kill attach", "its host; left out: here, then all hosts are asked"),
    ("file", "f", "FILE", "agent", "read the mission from FILE, - for stdin"),
    ("binary", "b", "", "agent", "read stdin into a file first and tell the agent its path"),
    ("model", "", "NAME", "agent", "model name sent to the API (QUINE_MODEL_ID)"),
    ("max-turns", "", "N", "agent", "sh calls of a life, 0 = unlimited (QUINE_MAX_TURNS, 20)"),
    ("max-depth", "", "N", "agent", "levels of the tree (QUINE_MAX_DEPTH, 5)"),
    ("max-agents", "", "N", "agent", "live agents of the tree, 0 = unlimited (QUINE_MAX_AGENTS, 10)"),
    ("max-tokens", "", "N", "agent", "tokens of the tree, more than 0 (QUINE_MAX_TOKENS)"),
    ("max-cost", "", "USD", "agent", "cost of the tree, more than 0 (QUINE_MAX_COST)"),
    ("deadline", "", "SECONDS", "agent", "time of the tree, more than 0 (QUINE_DEADLINE)"),
    (
        "interrupt",
        "",
        "agent|command",
        "agent",
        "whom ^C ends first; with `command` a second one ends the agent (QUINE_INTERRUPT, agent)",
    ),
    ("max-cost", "", "USD", "budget", "cost of all agents below"),
    ("max-tokens", "", "N", "budget", "tokens of all agents below, as 500k or 2M"),
    (
        "max-agents",
        "",
        "N",
        "budget",
        "live agents at one time, 0 = unlimited; one too many is refused with 77",
    ),
    ("concurrent", "", "N", "budget", "inferences at one time; more of them wait (20)"),
    ("deadline", "", "TIME", "budget", "time of all agents below, from the start of CMD, as 90, 5m or 2h"),
    (
        "deadline",
        "",
        "SECONDS",
        "run",
        "its time, 0 = no limit; then TERM, 5 s later KILL, and exit status 124",
    ),
    (
        "inventory",
        "",
        "FILE",
        "agent run ps top wait logs kill attach",
        "the hosts (QUINE_INVENTORY, ./inventory.toml)",
    ),
    ("fs", "", "URL", "agent run", "the files tier: origin:[DIR], file://, s3:// and others (QUINE_FS)"),
    ("mount", "", "", "agent run", "show it the files tier as a directory, whose path is in QUINE_MOUNT"),
    ("cwd", "", "DIR", "agent run", "directory to start in"),
    (
        "files",
        "",
        "PATH",
        "agent run",
        "have it there before it starts: file, directory, 'PATTERN' or FROM:NAME; may be repeated",
    ),
    (
        "returns",
        "",
        "PATTERN",
        "agent run wait",
        "bring it back here after it has ended, all or nothing; may be repeated; also --fetch",
    ),
    ("returns-limit", "", "SIZE[,N]", "agent run wait", "bytes and names that may come back (10G,100k)"),
    ("env", "", "K[=V]", "agent run", "set or pass an environment variable; may be repeated"),
    ("limit", "", "NAME=VALUE", "agent run", "as core cpu data fsize nofile nproc stack; may be repeated"),
    ("terminal", "t", "", "run", "give it a terminal over there, as ssh -t; ~. leaves"),
    ("retry", "", "N", "agent run", "try again up to N times, on another host first, if it never started"),
    ("idempotent", "", "", "agent run", "with --retry: twice is harmless; retry also if its end is lost"),
    ("detach", "", "", "agent run", "let it run on without this process; its id is printed"),
    (
        "job",
        "",
        "ID",
        "agent run",
        "its id, a UUID; one that was detached already is not started again; of several hosts the id chooses one",
    ),
    ("stdin", "i", "", "agent run", "with --detach: its stdin stays open, for attach --stdin"),
    ("output-limit", "", "SIZE", "agent run", "with --detach: unread output, then it waits (1G)"),
    ("stdin", "i", "", "attach", "pass our stdin to the job, including its end"),
    (
        "from",
        "",
        "N[,M]",
        "attach",
        "leave out N bytes of its stdout, M of its stderr; end: only what is new",
    ),
    ("report", "", "FILE|FD", "agent run", "write one JSON object on how it ended"),
    ("quiet", "q", "", "agent run", "no messages but errors"),
    ("verbose", "v", "", "agent run", "operational detail on stderr"),
    ("all", "a", "", "ps", "those that have ended, too"),
    ("json", "", "", "ps top budget tape:ls tape:cost tape:verify", "one JSON object a line"),
    ("tree", "", "", "tape:cost", "of the whole tree of that session"),
    ("force", "", "", "tape:replay", "also run what others may have written"),
    ("dry", "", "", "tape:replay", "run nothing: print what the guest was sent"),
    ("timeout", "", "SECONDS", "wait", "wait no longer; then the exit status is 124"),
    ("follow", "f", "", "logs tape:show", "go on until it has ended"),
    ("follow", "f", "", "ps", "list again as things change"),
    ("stderr", "", "", "logs", "print the job's stderr instead of its stdout"),
    ("both", "", "", "logs", "its stdout to stdout and its stderr to stderr"),
    ("offset", "", "N", "logs", "leave out the first N bytes"),
    ("tail", "n", "N", "logs", "only the last N lines; with --follow and what comes after them"),
    ("signal", "s", "NAME", "kill", "the signal: a name or a number; also as -NAME; 0 only looks (TERM)"),
    ("list", "l", "", "kill", "the names of signals; with a number its name"),
    (
        "data-dir",
        "",
        "DIR",
        "ps top wait logs kill attach tape",
        "where tapes and jobs are (QUINE_DATA_DIR, .quine)",
    ),
    ("delay", "d", "SECONDS", "top", "time between two looks (1)"),
    ("batch", "b", "", "top", "print text, as where stdout is no terminal, once or as often as -n says"),
    ("iterations", "n", "N", "top", "print text N times"),
    ("completion", "", "SHELL", "agent", "print the completion of bash, zsh or fish"),
    ("help", "h", "", "agent run budget ps top wait logs kill attach tape", "this text"),
    ("version", "", "", "agent run", "version and build hash"),
)
MOUNT = "QUINE_MOUNT"
MOUNT_WANTED, MOUNT_NEEDED = "auto", "needed"  # its values before there is one: if it can be had; or no start
REPEATED = ("env", "limit", "files", "returns", "arg-file")
ALIASES = {"fetch": "returns", "spool": "output-limit"}  # the second is the old spelling, which 1.0 drops

VERBS = {
    "run": "one plain command, here or on a node",
    "each": "one command on every host that matches, at the same time, and the outputs together",
    "rsh": "a command line on a host, with the command line of ssh: for rsync -e, git, parallel, borg, sftp -S",
    "xargs": "one command or agent for each item of the input, many at a time, here or on hosts",
    "budget": "one budget for all agents that a command starts; `budget show`, `budget raise ID`",
    "hosts": "the hosts of the inventory; `hosts check`: test login and build",
    "deploy": "put this binary on hosts; `deploy build -o FILE`",
    "tape": "inspect sessions: ls show tree cost replay verify archive",
    "doctor": "check this machine, or each step of the way to hosts, with a cure for each problem",
    "node": "the daemon; started for you",
    "ps": "agents and detached jobs, running and ended",
    "top": "the batches, agents and jobs that run, live",
    "wait": "wait for them, and leave as they left",
    "kill": "signal them",
    "logs": "output of jobs that nobody waits for",
    "attach": "be the proxy of a running job again",
    "fs": "the files that all agents of a tree share: ls cat put get cp mv rm find sync mount …",
}
UNBUILT: tuple[str, ...] = ()  # reported as not built if it is the first word; not in the help


def rows(verb: str, table: Iterable[Row] = TABLE) -> list[Row]:
    """Return the options of a verb. For VERB:COMMAND: its own, and those of all commands of the verb."""
    names = {verb, verb.partition(":")[0]}
    return [row for row in table if not names.isdisjoint(row[3].split())]


def listing(table: Iterable[Row]) -> list[str]:
    """Return the lines of --help on these options."""
    lines = []
    for name, short, value, _, text in table:
        names = f"-{short}" if short else "  "
        names += f"{', ' if short else '  '}--{name}" if name else ""
        left = names + (f" {value}" if value else "")
        lines.append(f"  {left:28} {text}")
    return lines


class RunOptions:
    """The options of one command line, which do not change. One that was not given is "", False or ().

    No dataclass: that module would double the time in which a client starts.
    """

    all: bool = False
    batch: bool = False
    binary: bool = False
    both: bool = False
    completion: str = ""
    concurrent: str = ""
    cwd: str = ""
    data_dir: str = ""
    deadline: str = ""
    delay: str = ""
    detach: bool = False
    dry: bool = False
    env: tuple[str, ...] = ()
    file: str = ""
    files: tuple[str, ...] = ()
    follow: bool = False
    force: bool = False
    from_: str = ""
    fs: str = ""
    help: bool = False
    idempotent: bool = False
    interrupt: str = ""
    inventory: str = ""
    iterations: str = ""
    job: str = ""
    json: bool = False
    limit: tuple[str, ...] = ()
    list: bool = False
    max_agents: str = ""
    max_cost: str = ""
    max_depth: str = ""
    max_tokens: str = ""
    max_turns: str = ""
    model: str = ""
    mount: bool = False
    offset: str = ""
    tail: str = ""
    on: str = ""
    output_limit: str = ""
    quiet: bool = False
    report: str = ""
    retry: str = ""
    returns: tuple[str, ...] = ()
    returns_limit: str = ""
    signal: str = ""
    stderr: bool = False
    stdin: bool = False
    terminal: bool = False
    timeout: str = ""
    tree: bool = False
    verbose: bool = False
    version: bool = False

    def __init__(self, **given: object) -> None:
        if unknown := given.keys() - RunOptions.__annotations__.keys():
            raise TypeError(f"no such option: {', '.join(unknown)}")
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: options do not change")

    def replace(self, **changed: object) -> RunOptions:
        """Return the same options but for those that are named."""
        return RunOptions(**vars(self) | changed)

    @property
    def elsewhere(self) -> bool:
        """Whether --on names anything but this machine."""
        return self.on not in ("", "local")


def field(name: str) -> str:
    """Return the name that the value of an option has in Python."""
    return "from_" if name == "from" else name.replace("-", "_")


def as_words(options: object, names: Iterable[str]) -> list[str]:
    """Return the options of these names as words of a command line."""
    words = []
    for name in names:
        given = getattr(options, field(name))
        if given is True:
            words.append(f"--{name}")
        elif given:
            words += [f"--{name}={each}" for each in (given if isinstance(given, tuple) else (given,))]
    return words


class Parser:
    """Reads options of `table` into `values`; `unknown` makes the error for a word that is none of them.

    `spellings` are other spellings of whole words.
    """

    def __init__(
        self,
        table: Iterable[Row],
        unknown: Callable[[str], Misconfigured],
        spellings: Mapping[str, str] | None = None,
    ) -> None:
        self.values: dict[str, Any] = {}
        self._longs = {row[0]: row for row in table}
        self._shorts = {row[1]: row for row in self._longs.values() if row[1]}
        self._unknown = unknown
        self._spellings = spellings or {}

    def take(self, todo: list[str]) -> None:
        """Take the options from the end of `todo`, which is in reverse, until `--` or another word is the last.

        Raises Misconfigured for a wrong one.
        """
        while todo and todo[-1].startswith("-") and todo[-1] not in ("-", "--"):
            written = todo.pop()
            word = self._spellings.get(written, written)
            if word.startswith("--"):
                name, given, value = word[2:].partition("=")
                row = self._longs.get(ALIASES.get(name, name))
            else:
                given, value = "", word[2:]
                row = self._shorts.get(word[1])
            if row is None:
                raise self._unknown(word)
            name, _, metavar, _, _ = row
            if not metavar:
                if given:
                    raise Misconfigured(f"--{name} takes no value")
                if value:
                    todo.append("-" + value)  # -qv
                self.values[field(name)] = True
                continue
            if not given and not value:
                if not todo:
                    raise Misconfigured(f"{word} needs a value: {metavar}")
                value = todo.pop()
            if not value:
                # An unset variable in a script: --on "" must not mean this machine, nor --report "" no report.
                raise Misconfigured(f"--{name} is empty; it needs a value: {metavar}")
            if name in REPEATED:
                self.values[field(name)] = (*self.values.get(field(name), ()), value)
            else:
                self.values[field(name)] = value


def parse(verb: str, words: list[str]) -> tuple[RunOptions, list[str]]:
    """Return the options and the words after them. Raise Misconfigured for a wrong one."""
    parser, todo = _parser(verb), words[::-1]
    parser.take(todo)
    if todo[-1:] == ["--"]:
        todo.pop()
    return RunOptions(**parser.values), todo[::-1]


def parse_around(verb: str, words: list[str]) -> tuple[RunOptions, list[str]]:
    """Parse as `parse` does, with options on either side of the other words. After `--` no word is an option."""
    parser, todo = _parser(verb), words[::-1]
    others: list[str] = []
    while True:
        parser.take(todo)
        if not todo or todo[-1] == "--":
            return RunOptions(**parser.values), [*others, *todo[-2::-1]]
        others.append(todo.pop())


def _parser(verb: str) -> Parser:
    table = rows(verb)

    def unknown(word: str) -> Misconfigured:
        from quine.base.slips.options import unknown

        return unknown(verb, word, [row[0] for row in table])

    return Parser(table, unknown)


def environment(options: RunOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of --env: K=V sets one, K passes on the caller's. Raise Misconfigured without a name."""
    found: dict[str, str] = {}
    for text in options.env:
        name, given, value = text.partition("=")
        if not name:
            raise Misconfigured(f"--env {text}: no name")
        if given:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return found


def limits(options: RunOptions) -> dict[str, str]:
    """Return the limits of --limit NAME=VALUE. Raise Misconfigured for a wrong one."""
    found: dict[str, str] = {}
    for text in options.limit:
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

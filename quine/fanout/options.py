"""The command line of `quine xargs`: one table, read by the parser of quine/base/cli_options.py.

Law: OPTIONS is the only source for parsing, --help, completion, reference and man page.
"""

from __future__ import annotations

from quine.base import sizes
from quine.base.cli_options import Parser, RunOptions, field, listing
from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import Row

V = "xargs"
# option, short form, value name ("" for a switch), verb, help
OPTIONS: tuple[Row, ...] = (
    ("arg-file", "a", "FILE", V, "items from FILE instead of stdin, - for stdin; several: every combination"),
    ("null", "0", "", V, "items end with a NUL, as of find -print0"),
    ("delimiter", "d", "TEXT", V, "items end with TEXT; \\n \\t \\0 \\\\ and \\xHH are known"),
    ("no-run-if-empty", "r", "", V, "leave out items that are empty or only blanks"),
    ("link", "", "", V, "combine several sources item by item; a shorter one begins again"),
    ("max-args", "n", "N", V, "N items to a job"),
    ("max-lines", "L", "N", V, "N lines to a job; a line with a blank at its end goes on in the next"),
    ("replace", "I", "TEXT", V, "TEXT instead of {} stands for the item"),
    ("colsep", "C", "REGEX", V, "an item has columns {1} {2} with this between them"),
    (
        "header",
        "",
        ":",
        V,
        "the first record of each source names its columns: {name}; with --pipe each block begins with it",
    ),
    ("csv", "", "", V, "items are records of comma-separated values"),
    ("jsonl", "", "", V, "items are JSON objects, one a line; {name} is a field, {} the whole"),
    ("shuf", "", "", V, "in a random order; reads all items first"),
    (
        "stdin",
        "",
        "item|none|FILE",
        V,
        "stdin of each job: its item, nothing, or FILE, with replacement strings",
    ),
    ("pipe", "", "", V, "blocks of stdin are the stdin of jobs, instead of items"),
    ("block", "", "SIZE", V, "with --pipe: at most SIZE bytes a block of whole records (10M)"),
    ("recend", "", "TEXT", V, "with --pipe: a record ends with TEXT (\\n)"),
    ("on", "", "WHERE", V, "where the jobs run: a host, @tag, any, local; a,b = either; !x = not"),
    (
        "jobs",
        "P",
        "N",
        V,
        "N at a time, 0 = as many as slots allow; by default the slots of the hosts, or else their processors",
    ),
    ("cwd", "", "DIR", V, "directory to start in"),
    (
        "files",
        "",
        "PATH",
        V,
        "have it there before the job starts: file, directory, 'PATTERN' or FROM:NAME, with replacement strings",
    ),
    (
        "returns",
        "",
        "PATTERN",
        V,
        "bring it back here after the job has ended, all or nothing; with replacement strings",
    ),
    ("returns-limit", "", "SIZE[,N]", V, "bytes and names that an item may bring back (10G,100k)"),
    (
        "cleanup",
        "",
        "",
        V,
        "after an item has ended remove over there what --files brought and --returns fetched",
    ),
    ("env", "", "K[=V]", V, "set or pass an environment variable; may be repeated"),
    ("limit", "", "NAME=VALUE", V, "limit: as core cpu data fsize nofile nproc stack; may be repeated"),
    (
        "timeout",
        "",
        "SECONDS|N%",
        V,
        "end a job that takes longer, 0 = no limit; N%: of the median of those that are done",
    ),
    ("delay", "", "SECONDS", V, "time between two starts"),
    ("load", "", "N|N%", V, "start no job on a host whose load is N or more; N%: of its processors"),
    ("keep-order", "k", "", V, "outputs in the order of the items"),
    ("line-buffer", "", "", V, "pass on each line at once, instead of an output as a whole"),
    ("tag", "", "", V, "begin each line of output with the item and a TAB"),
    (
        "results",
        "",
        "DIR|FILE",
        V,
        "keep the outputs of each job in files below DIR, too; or instead in one table, FILE.csv .tsv or .jsonl",
    ),
    ("fold", "", "", V, "print identical outputs once, at the end, each under its items"),
    ("json", "", "", V, "one JSON object an item instead of its output"),
    (
        "json-limit",
        "",
        "SIZE",
        V,
        "with --json or a table: bytes of each stream that stand there, 0 = no limit (1G)",
    ),
    (
        "retries",
        "",
        "N",
        V,
        "run an item up to N times until it is done, on a host where it has not failed (1)",
    ),
    ("idempotent", "", "", V, "running an item twice is harmless: also try again when its outcome was lost"),
    ("halt", "", "WHEN", V, "now or soon, then ,fail=N ,success=N or ,done=N, also N%: when to stop (never)"),
    ("exit-count", "", "", V, "exit status: the number of items that are not done, 101 for more than 100"),
    ("report", "", "FILE|FD", V, "write one JSON object with the counts at the end"),
    ("joblog", "", "FILE", V, "record how each item ended"),
    ("resume", "", "", V, "with --joblog: run the items that it does not have"),
    ("resume-failed", "", "", V, "with --joblog: run the items that it does not have as done"),
    (
        "resume-elsewhere",
        "",
        "",
        V,
        "with --resume: the batch of the log ran on another machine, and has ended there",
    ),
    ("mission", "", "TEXT", V, "the mission of agents, also where it reads like a command"),
    ("model", "", "NAME", V, "of agents: model name sent to the API (QUINE_MODEL_ID)"),
    ("max-turns", "", "N", V, "of agents: sh calls of a life, 0 = unlimited (QUINE_MAX_TURNS, 20)"),
    ("max-depth", "", "N", V, "of agents: levels of the tree (QUINE_MAX_DEPTH, 5)"),
    ("max-agents", "", "N", V, "live agents of the batch, 0 = unlimited (QUINE_MAX_AGENTS, 10)"),
    (
        "max-tokens",
        "",
        "N",
        V,
        "tokens of the batch, more than 0; when they are spent it stops (QUINE_MAX_TOKENS)",
    ),
    ("max-cost", "", "USD", V, "cost of the batch, more than 0; when it is spent it stops (QUINE_MAX_COST)"),
    ("deadline", "", "SECONDS", V, "time of the batch of agents, more than 0 (QUINE_DEADLINE)"),
    ("detach", "", "", V, "let the batch run on without this process; its id is printed"),
    (
        "from",
        "",
        "HOST",
        V,
        "with --detach: the batch of commands goes on at HOST, and this machine may leave",
    ),
    (
        "job",
        "",
        "ID",
        V,
        "with --detach: its id, a UUID; a batch that was detached already is not started again",
    ),
    ("output-limit", "", "SIZE", V, "with --detach: output that nobody has read, then the batch waits (1G)"),
    ("dry-run", "", "", V, "print the commands instead of running them; with --resume of what is left"),
    ("inventory", "", "FILE", V, "the hosts (QUINE_INVENTORY, ./inventory.toml)"),
    ("fs", "", "URL", V, "the files tier: origin:[DIR], file://, s3:// and others (QUINE_FS)"),
    ("quiet", "q", "", V, "no messages but errors"),
    ("verbose", "v", "", V, "operational detail on stderr"),
    ("help", "h", "", V, "this text"),
)

# of no meaning with --pipe
HOUR = 3600.0  # seconds; longer times are no bound of a start, and JSON has no infinity
OF_ITEMS = ("null", "delimiter", "no-run-if-empty", "link", "replace", "colsep", "csv", "jsonl", "shuf")
PIPED = "of the options about input --pipe has -a, -n, -L, --header, --block and --recend"

HEAD = """\
usage: quine xargs [OPTIONS] [--on WHERE] -- CMD [ARG…] [::: ITEM…] [:::: FILE…]
       quine xargs [OPTIONS] [--on WHERE] MISSION… [::: ITEM…] [:::: FILE…]

Run one command, or one agent, for each item of the input, many at a time, here or on hosts. Items are the lines of
stdin, or the words after `:::`, or the lines of the files after `::::`. In CMD and ARG {} is the item, {.} the same
without extension, {/} its base name, {//} its directory, {/.} base name without extension, {#} the number of the job,
{%} its slot, {1} {2.} {-1/} one of several arguments. Without any of them the item is the last argument. No shell
reads the command: sh -c '…' sh {} has one. They stand for the item in a MISSION, too; without any of them the item is
the agent's material, on its stdin. All agents of a batch are one tree, and share its limits. Options come before the
mission: behind its first word one is refused (2); a mission that has the name of an option in it is one quoted word."""

CLOSING = (
    "^C once: no more items are started; twice: all jobs are ended.",
    "exit status: 0 all done; 2 usage; 69 nothing was started; 74 an outcome was lost; 77 denied; 123 some items",
    "  failed, were killed, ran out of time or were never started; 128+n died of signal n",
)


def unknown(word: str) -> Misconfigured:
    """Return the error for a word that is no option."""
    from quine.base.slips.options import unknown

    return unknown(V, word, [row[0] for row in OPTIONS])


class Options:
    """The options of one command line. One that was not given is "", False or ()."""

    arg_file: tuple[str, ...] = ()
    block: str = ""
    cleanup: bool = False
    colsep: str = ""
    csv: bool = False
    delay: str = ""
    delimiter: str = ""
    dry_run: bool = False
    exit_count: bool = False
    fold: bool = False
    halt: str = ""
    header: str = ""
    help: bool = False
    joblog: str = ""
    jobs: str = ""
    json: bool = False
    json_limit: str = ""
    jsonl: bool = False
    keep_order: bool = False
    line_buffer: bool = False
    link: bool = False
    load: str = ""
    max_args: str = ""
    max_lines: str = ""
    mission: str = ""
    no_run_if_empty: bool = False
    null: bool = False
    pipe: bool = False
    recend: str = ""
    replace: str = ""
    results: str = ""
    resume: bool = False
    resume_elsewhere: bool = False
    resume_failed: bool = False
    retries: str = ""
    shuf: bool = False
    stdin: str = ""
    tag: bool = False
    timeout: str = ""

    def __init__(self, **given: object) -> None:
        """Options that `quine run` has, too, go to `spawn`, which says how a job is started."""
        mine = Options.__annotations__.keys() - {"spawn"}
        vars(self).update({name: value for name, value in given.items() if name in mine})
        self.spawn = RunOptions(**{name: value for name, value in given.items() if name not in mine})

    @staticmethod
    def has(name: str) -> bool:
        """Whether an option is one of these, and not of `spawn`."""
        return field(name) in Options.__annotations__

    @property
    def named(self) -> bool:
        """Whether {name} is a replacement string."""
        return self.jsonl or bool(self.header and not self.pipe)

    def seconds(self, name: str) -> float:
        """Return the value of an option that is a time; 0.0 if it was not given. Raises Misconfigured."""
        return sizes.seconds(getattr(self, field(name)) or "0", f"--{name}")

    @property
    def patience(self) -> float:
        """Return the seconds of --timeout, for a start that its host does not answer; 0.0 for none."""
        return 0.0 if self.share("timeout") else min(self.seconds("timeout"), HOUR)

    def share(self, name: str) -> float:
        """Return the value of an option that may be N%, as a share; 0.0 if it is none. Raises Misconfigured."""
        text = getattr(self, field(name))
        if not text.endswith("%"):
            return 0.0
        try:
            value = float(text[:-1]) / 100
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise Misconfigured(f"--{name} {text[:40]}: should be a share, as 150%")
        return value

    def number(self, name: str, least: int = 1, default: int = 0) -> int:
        """Return the value of an option that is a whole number. Raises Misconfigured."""
        text = getattr(self, field(name))
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise Misconfigured(f"--{name} {text[:40]}: should be a whole number, {least} or more")
        return int(text)

    def bytes(self, name: str, default: bytes) -> bytes:
        """Return the value of an option that is a separator, its escapes translated. Raises Misconfigured."""
        import os
        import re

        text = getattr(self, field(name))
        if not text:
            return default
        known = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

        def translated(found: re.Match[bytes]) -> bytes:
            escape = found[1]
            if len(escape) == 3:
                return bytes.fromhex(escape[1:].decode())
            if escape not in known:
                raise Misconfigured(f"--{name} {text[:40]}: no such escape: \\{os.fsdecode(escape)}")
            return known[escape]

        return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", translated, os.fsencode(text), flags=re.DOTALL)


def elsewhere(options: Options) -> bool:
    """Whether --from names anything but this machine."""
    return options.spawn.from_ not in ("", "local")


def parse(words: list[str]) -> tuple[Options, list[str], bool]:
    """Return the options, the words after them, and whether `--` stands between. Raise Misconfigured."""

    parser, todo = Parser(OPTIONS, unknown), words[::-1]
    parser.take(todo)
    taken = words[: len(words) - len(todo)]
    dashes = todo[-1:] == ["--"]
    if dashes:
        todo.pop()
    elif "--" in taken:  # as a value, and the command would be taken for a mission
        option = taken[taken.index("--") - 1]
        raise Misconfigured(f"{option} takes a value, and -- follows it", f"give it one: {option} VALUE --")
    options = Options(**parser.values)
    _check_pipe(options)
    return options, todo[::-1], dashes


def _check_pipe(options: Options) -> None:
    """Refuse options about items with --pipe, which has none. Raises Misconfigured."""
    if not options.pipe:
        return
    for name in OF_ITEMS:
        if getattr(options, field(name)):
            raise Misconfigured(f"--{name} is about items, and --pipe has blocks of records instead", PIPED)


def usage() -> str:
    """Return the text of --help."""
    return "\n".join([HEAD, "", "options:", *listing(OPTIONS), "", *CLOSING])

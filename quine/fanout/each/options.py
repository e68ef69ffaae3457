"""The command line of `quine each`: one table, read by the parser of quine/base/cli_options.py.

Law: OPTIONS is the only source for parsing, --help, completion, reference and man page.
"""

from __future__ import annotations

import re

from quine.base import sizes
from quine.base.cli_options import Parser, RunOptions, listing
from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import Row

V = "each"
MOST = 128  # hosts at one time, without -P
EXAMPLE = "quine each [OPTIONS] WHERE -- CMD [ARG…]"
# option, short form, value name ("" for a switch), verb, help
OPTIONS: tuple[Row, ...] = (
    ("fold", "", "", V, "identical outputs once, with the list of their hosts: h[1-3,7]"),
    ("tag", "", "", V, "begin each line of output with the host and a TAB, instead of a line above them"),
    ("line-buffer", "", "", V, "pass on each line at once, with its tag"),
    ("keep-order", "k", "", V, "outputs in the order of the inventory"),
    ("json", "", "", V, "one JSON object a host instead of its output"),
    ("json-limit", "", "SIZE", V, "with --json: bytes of each stream in the object, 0 = no limit (1G)"),
    ("jobs", "P", "N", V, f"N hosts at a time ({MOST})"),
    ("timeout", "", "SECONDS", V, "end a command that takes longer; 0 = no limit"),
    ("stdin", "", "all|FILE", V, "stdin of each command: a copy of ours, or of FILE (nothing)"),
    ("cwd", "", "DIR", V, "directory to start in (the home directory)"),
    ("env", "", "K[=V]", V, "set or pass an environment variable; may be repeated"),
    ("limit", "", "NAME=VALUE", V, "limit: as core cpu data fsize nofile nproc stack; may be repeated"),
    ("inventory", "", "FILE", V, "the hosts (QUINE_INVENTORY, ./inventory.toml)"),
    ("quiet", "q", "", V, "no messages but errors"),
    ("verbose", "v", "", V, "operational detail on stderr"),
    ("help", "h", "", V, "this text"),
)

HEAD = """\
usage: quine each [OPTIONS] WHERE -- CMD [ARG…]

Run a command on every host that matches WHERE, at the same time. The output of each is passed on as a
whole when it has ended, below a line that names the host; a line on stderr has the host and a TAB
before it. WHERE may have lists of hosts as --fold prints them: 'gpu[1-3,7]'. No shell reads the
command: sh -c '…' has one. Commands start in the home directory, with an empty stdin."""

CLOSING = (
    "^C ends all of them.",
    "exit status: 74 if the outcome is lost somewhere; else 69 if it was not started somewhere, 77 if it was denied;",
    "  else the largest one of a host: 124 where the time was over, 128+n where signal n ended it; 2 usage",
)

LIST = re.compile(r"(!?)([^,!\[\]]*(?:\[[^\[\]]*\][^,!\[\]]*)+)")  # a term of WHERE that is a folded list


def unknown(word: str) -> Misconfigured:
    """Return the error for a word that is no option."""
    from quine.base.slips.options import unknown

    return unknown(V, word, [row[0] for row in OPTIONS])


class Options:
    """The options of one command line. One that was not given is "" or False."""

    fold: bool = False
    help: bool = False
    jobs: str = ""
    json: bool = False
    json_limit: str = ""
    keep_order: bool = False
    line_buffer: bool = False
    stdin: str = ""
    tag: bool = False
    timeout: str = ""

    def __init__(self, **given: object) -> None:
        """Options that `quine run` has, too, go to `spawn`, which says how a job is started. Raises Misconfigured."""
        mine = Options.__annotations__.keys()
        vars(self).update({name: value for name, value in given.items() if name in mine})
        self.spawn = RunOptions(**{name: value for name, value in given.items() if name not in mine})
        forms = [
            name for name in ("fold", "tag", "json", "line-buffer") if getattr(self, name.replace("-", "_"))
        ]
        if len(forms) > 1 and forms != ["tag", "line-buffer"]:
            raise Misconfigured(f"one of --{', --'.join(forms)}: each is another form of the output")
        if self.keep_order and (self.line_buffer or self.fold):
            raise Misconfigured(f"-k is for outputs as a whole, and not for --{forms[-1]}", "leave one out")

    @property
    def most(self) -> int:
        """How many hosts at one time. Raises Misconfigured."""
        text = self.jobs or str(MOST)
        if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
            raise Misconfigured(f"--jobs {text[:40]}: should be a whole number, 1 or more")
        return int(text)

    @property
    def seconds(self) -> float:
        """--timeout; 0.0, no limit, if it was not given. Raises Misconfigured."""
        return sizes.seconds(self.timeout or "0", "--timeout")


def parse(words: list[str]) -> tuple[Options, str, list[str]]:
    """Return the options, WHERE and the command. Raise Misconfigured."""

    parser, todo = Parser(OPTIONS, unknown), words[::-1]
    parser.take(todo)
    where = todo.pop() if todo and todo[-1] != "--" else ""
    parser.take(todo)
    if todo[-1:] == ["--"]:
        todo.pop()
    return Options(**parser.values), spread(where), todo[::-1]


def spread(where: str) -> str:
    """Return WHERE with the hosts of its lists named one by one. Raises Misconfigured."""
    from quine.base.host_ranges import unfold

    def names(term: re.Match[str]) -> str:
        return (term[1] or ",").join([term[1] + found[0], *found[1:]]) if (found := unfold(term[2])) else ""

    try:
        return LIST.sub(names, where)
    except ValueError as error:
        raise Misconfigured(f"WHERE: {error}", "as h[1-3,7]") from None


def usage() -> str:
    """Return the text of --help."""
    return "\n".join([HEAD, "", "options:", *listing(OPTIONS), "", *CLOSING])

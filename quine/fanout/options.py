"""The command line of `quine xargs`: one table, read by the parser of quine/base/cli_options.py.

Law: OPTIONS is the only source for parsing, --help, completion, reference and man page.
"""

from __future__ import annotations

from quine.base.cli_options import Parser, field, listing
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
    ("dry-run", "", "", V, "print the commands instead of running them"),
    ("help", "h", "", V, "this text"),
)

HEAD = """\
usage: quine xargs [OPTIONS] [--on WHERE] -- CMD [ARG…] [::: ITEM…] [:::: FILE…]

Run one command for each item of the input, many at a time, here or on hosts. Items are the lines of stdin, or the
words after `:::`, or the lines of the files after `::::`. In CMD and ARG {} is the item, {.} the same without
extension, {/} its base name, {//} its directory, {/.} base name without extension, {#} the number of the job, {%} its
slot, {1} {2.} {-1/} one of several arguments. Without any of them the item is the last argument. No shell reads the
command: sh -c '…' sh {} has one."""


class Options:
    """The options of one command line. One that was not given is "", False or ()."""

    arg_file: tuple[str, ...] = ()
    block: str = ""
    colsep: str = ""
    csv: bool = False
    delimiter: str = ""
    dry_run: bool = False
    help: bool = False
    jsonl: bool = False
    link: bool = False
    max_args: str = ""
    max_lines: str = ""
    no_run_if_empty: bool = False
    null: bool = False
    pipe: bool = False
    recend: str = ""
    replace: str = ""
    shuf: bool = False
    stdin: str = ""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)

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


def parse(words: list[str]) -> tuple[Options, list[str], bool]:
    """Return the options, the words after them, and whether `--` stands between. Raise Misconfigured."""

    def unknown(word: str) -> Misconfigured:
        from difflib import get_close_matches

        near = get_close_matches(word.lstrip("-").partition("=")[0], [row[0] for row in OPTIONS], 1)
        return Misconfigured(
            f"no such option: {word}", f"did you mean --{near[0]}?" if near else "see quine xargs --help"
        )

    parser, todo = Parser(OPTIONS, unknown), words[::-1]
    parser.take(todo)
    dashes = todo[-1:] == ["--"]
    if dashes:
        todo.pop()
    return Options(**parser.values), todo[::-1], dashes


def usage() -> str:
    """Return the text of --help."""
    return "\n".join([HEAD, "", "options:", *listing(OPTIONS)])

"""The command line of `quine fs`: one table of commands and one of options, read by the parser of cli_options.py.

Laws
1. OPTIONS is the only source for parsing, --help and completion.
2. Options may stand before, between and after the paths, as with the GNU tools; after `--` everything is a path.
3. Only the standard library is imported, and little of it: scripts call these commands in loops.
"""

from __future__ import annotations

from quine.base.cli_options import Parser, listing, rows
from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.base.cli_options import Row

    Values = Mapping[str, object]

ALL = "ls cat put get cp mv rm find stat mkdir url sync mount"
MANY = "put get cp rm sync"  # commands that do many things at a time
SOURCES = "ls cat get cp mv rm find stat url"  # commands whose paths may be patterns

# option, short form, value name ("" for a switch), commands it belongs to, help
OPTIONS: tuple[Row, ...] = (
    ("long", "l", "", "ls", "mode, size and time of each"),
    ("human", "h", "", "ls", "sizes as 4.0K, 1.5M"),
    ("recursive", "R", "", "ls", "and what is in directories, all the way down"),
    ("directory", "d", "", "ls", "directories themselves, not what is in them"),
    ("one", "1", "", "ls", "one name a line; it is never otherwise"),
    ("all", "a", "", "ls", "names that begin with a dot, too; they always are shown"),
    ("offset", "", "N", "cat", "leave out the first N bytes"),
    ("length", "", "N", "cat", "no more than N bytes"),
    ("recursive", "r", "", "put get cp rm", "directories, with all that is in them"),
    ("if-absent", "", "", "put cp mv", "only where nothing is there; else exit status 1, no change"),
    ("no-clobber", "n", "", "put get cp mv", "leave what is there; else exit status 1"),
    ("mode", "", "OCTAL", "put", "permissions of the files, such as 0755; else they keep their own"),
    ("follow", "L", "", "put sync", "put what symbolic links point to; else they are refused"),
    ("no-target-directory", "T", "", "put get cp mv", "the last path is a name, no directory to go into"),
    ("force", "f", "", "rm", "a path that does not exist is no error"),
    ("parents", "p", "", "mkdir", "a directory that exists is no error; those above are made in any case"),
    ("name", "", "GLOB", "find", "whose last name is like this; also as -name"),
    ("type", "", "f|d", "find", "files, or directories; also as -type"),
    ("max-depth", "", "N", "find", "no deeper than N below PATH; also as -maxdepth"),
    ("delete", "", "", "sync", "remove what SOURCE does not have"),
    ("max-delete", "", "N", "sync", "with --delete: remove no more than N files and directories"),
    ("force", "", "", "sync", "with --delete: also where SOURCE is empty, or is not there"),
    ("dry-run", "n", "", "sync", "say what would be done, and do nothing"),
    ("checksum", "c", "", "sync", "compare contents instead of times; reads both sides"),
    ("json", "", "", "ls find stat", "one JSON object a line"),
    ("null", "0", "", "ls find url", "end names with a NUL, not a newline; also as -print0"),
    ("jobs", "j", "N", MANY, "so many at a time (8)"),
    ("literal", "F", "", SOURCES, "* ? [ ] in a path mean themselves"),
    ("quiet", "q", "", MANY, "no progress on a terminal"),
    ("verbose", "v", "", MANY + " mv", "say on stderr what was done"),
    ("fs", "", "URL", ALL, "another files tier than QUINE_FS"),
    ("foreground", "f", "", "mount", "stay, and end with ^C"),
    ("help", "h", "", ALL.removeprefix("ls ") + " umount", "this text"),
    ("help", "", "", "ls", "this text"),
)

USAGE = "quine fs COMMAND [OPTIONS] [PATH…]"
ABOUT = "The files that all agents of a tree share, wherever they run."
# command: usage, summary, further text of --help
COMMANDS: dict[str, tuple[str, str, str]] = {
    "ls": (
        "[OPTIONS] [PATH…]",
        "names in directories",
        "Without PATH, of the root. Names come in the order of their bytes, those of directories end with / where\n"
        "a terminal shows them or -l does.",
    ),
    "cat": ("[OPTIONS] PATH…", "the contents of files to stdout", ""),
    "put": (
        "[OPTIONS] LOCAL… PATH",
        "files of this machine into the tier",
        "LOCAL - is stdin. As with cp: with several LOCAL, or where PATH is a directory or ends with /, they come\n"
        "into that directory. A file appears whole or not at all, with its mode and time; holes stay holes.",
    ),
    "get": (
        "[OPTIONS] PATH… LOCAL",
        "files of the tier to this machine",
        "LOCAL - is stdout. As with cp: with several PATHs, or where LOCAL is a directory, they come into it. A file\n"
        "appears whole or not at all, with its mode and time; nothing is written outside of LOCAL.",
    ),
    "cp": (
        "[OPTIONS] PATH… TARGET",
        "copy within the tier",
        "The store copies where it can; no byte comes here.",
    ),
    "mv": ("[OPTIONS] PATH… TARGET", "rename within the tier", ""),
    "rm": ("[OPTIONS] PATH…", "remove files, empty directories, with -r everything", ""),
    "find": (
        "[PATH…] [OPTIONS]",
        "files and directories below a path",
        "Each path on a line, a directory before what is in it; PATH itself too, where one is given.",
    ),
    "stat": ("[OPTIONS] PATH…", "attributes of files and directories", ""),
    "mkdir": ("[OPTIONS] PATH…", "make directories", "put makes those above a file by itself."),
    "url": ("[OPTIONS] PATH…", "how somebody with access to the store names it", "Without secrets."),
    "sync": (
        "[OPTIONS] SOURCE TARGET",
        "make one directory like another, one way",
        "One of the two is in the tier and is written tier:PATH.\n"
        "A file with the same size, time and mode is not sent again.\n"
        "Files that only TARGET has stay, unless --delete; that removes nothing where SOURCE is empty, unless --force.",
    ),
    "mount": (
        "[OPTIONS] [DIR]",
        "show the tier as the directory DIR; without DIR list what is mounted",
        "It stays until it is unmounted. A file that is written appears when it is closed, whole or not at all, and\n"
        "close says what went wrong. Needs /dev/fuse, and to be root or to have fusermount3; see quine doctor.",
    ),
    "umount": ("DIR…", "end that", ""),
}

# commands of `quine fs` with a command line of their own
OTHERS = {
    "python": "a Python in which fsspec knows quine://",
}
FINDS = {"-name": "--name", "-type": "--type", "-print0": "--null", "-maxdepth": "--max-depth"}
PREFIX = "tier:"  # marks a path of the tier; only sync needs it


def parse(command: str, words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Return (options by long name, with _ for -; paths). Raises Misconfigured."""
    table = rows(command, OPTIONS)

    def unknown(word: str) -> Misconfigured:
        from difflib import get_close_matches

        name = word[2:].partition("=")[0]
        long = word.startswith("--")
        near = get_close_matches(name, [row[0] for row in table], 1) if long and len(name) > 1 else []
        hint = f"did you mean --{near[0]}?" if near else f"quine fs {command} --help"
        return Misconfigured(f"no such option: {word if long else word[:2]}", hint)

    parser, todo = Parser(table, unknown, FINDS if command == "find" else {}), words[::-1]
    paths: list[str] = []
    while True:
        parser.take(todo)
        if not todo:
            return parser.values, paths
        if (word := todo.pop()) == "--":
            return parser.values, paths + todo[::-1]
        paths.append(word)


def number(values: Values, name: str, least: int = 0, default: int | None = None) -> int | None:
    """The value of an option that is a whole number. Raises Misconfigured."""
    text = values.get(name.replace("-", "_"))
    if text is None:
        return default
    if not (
        isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least
    ):
        raise Misconfigured(f"--{name} {text}: should be a whole number, {least} or more")
    return int(text)


def usage(command: str = "") -> str:
    """The text of --help, of one command or of all."""
    if not command:
        lines = [f"usage: {USAGE}", "", ABOUT, "", "commands:"]
        lines += [f"  {name:8} {summary}" for name, (_, summary, _) in COMMANDS.items()]
        lines += [f"  {name:8} {summary}" for name, summary in OTHERS.items()]
        return "\n".join([*lines, "", *CLOSING, "quine fs COMMAND --help says more."])
    words, summary, more = COMMANDS[command]
    lines = [f"usage: quine fs {command} {words}", "", f"{summary[0].upper()}{summary[1:]}."]
    lines += [more] if more else []
    lines += ["", "options:", *listing(rows(command, OPTIONS))]
    return "\n".join([*lines, "", *CLOSING])


CLOSING = (
    "Paths of the tier are relative to its root: a/b and /a/b are the same, tier:a/b too. * ? [ ] and ** in them match",
    "names; quote them for the shell.",
    "exit status: 0 done; 1 something failed; 2 usage; 69 origin or store cannot be reached; 74 not known whether",
    "  it was done, or stdout cannot be written; 128+n died of signal n",
)

"""ls and find: names in the tier, printed as the standard ls and find do.

Laws
1. A directory is listed by one request; there is no request for each name in it.
2. Names are printed by the laws of `output`: as bytes in a pipe, escaped on a terminal.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured
from quine.files import paths as names
from quine.files.api import DIRECTORY_MODE, Entry, walked
from quine.files.cli import glob
from quine.files.cli.options import number
from quine.files.cli.output import as_json, long, path_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Tier
    from quine.files.cli.context import Call
    from quine.files.cli.options import Values


def ls(call: Call) -> int:
    """Print files first, then directories, with a heading for each if there are several, as the standard ls does."""
    paths = call.some("/")
    recursive = bool(call.values.get("recursive"))
    files: list[tuple[Entry, str]] = []
    directories: list[tuple[Entry, str]] = []
    listed: dict[str, list[Entry]] = {}
    for clean, written in call.expand(paths):
        try:
            if not call.values.get("directory"):
                # A listing fails for a file, so it needs no stat before it: one round trip, not two.
                try:
                    listed[clean] = list(call.tier.list(clean))
                    directories.append((Entry(clean, "directory", mode=DIRECTORY_MODE), written))
                    continue
                except NotADirectoryError:
                    pass
            files.append((call.tier.stat(clean), written))
        except OSError as problem:
            call.failed(problem)
    for entry, written in files:
        _show(call, entry, written if written.strip("/") else "/")
    todo = [(entry.path, written) for entry, written in reversed(directories)]
    headed = recursive or len(directories) + len(files) > 1
    first = not files
    while todo:
        clean, written = todo.pop()
        try:
            entries = listed.pop(clean) if clean in listed else list(call.tier.list(clean))
        except OSError as problem:
            call.failed(problem)
            continue
        if headed and not call.values.get("json") and not call.values.get("null"):
            if not first:
                call.out.write(b"\n")
            call.out.write(path_bytes(written or "/", call.out.terminal()) + b":\n")
        first = False
        for entry in entries:
            within = names.join(written.rstrip("/"), names.name(entry.path))
            headless = headed and call.values.get("null")
            _show(call, entry, within if headless else names.name(entry.path))
        if recursive:
            todo += [
                (entry.path, names.join(written.rstrip("/"), names.name(entry.path)))
                for entry in reversed(entries)
                if not entry.is_file
            ]
    return call.end()


def _show(call: Call, entry: Entry, name: str) -> None:
    if call.values.get("json"):
        call.out.write(as_json(entry))
        return
    terminal = call.out.terminal()
    line = path_bytes(name, terminal)
    if not entry.is_file and (terminal or call.values.get("long")) and not name.endswith("/"):
        line += b"/"
    if call.values.get("long"):
        line = long(entry, bool(call.values.get("human"))).encode() + line
    call.out.write(line + (b"\0" if call.values.get("null") else b"\n"))


def find(call: Call) -> int:
    kind = {"f": "file", "d": "directory", None: None}.get(_text(call.values, "type"), "")
    if kind == "":
        raise Misconfigured(f"--type {call.values['type']}: should be f or d")
    deepest = number(call.values, "max-depth")
    name = _text(call.values, "name")
    matches = glob.like(name) if name is not None else None

    def show(entry: Entry, written: str) -> None:
        if (kind is None or entry.kind == kind) and (matches is None or matches(names.name(entry.path))):
            if call.values.get("json"):
                call.out.write(as_json(entry))
            else:
                line = path_bytes(written, call.out.terminal())
                call.out.write(line + (b"\0" if call.values.get("null") else b"\n"))

    for clean, written in call.expand(call.some("/")):
        try:
            _find(call.tier, clean, written.rstrip("/"), deepest, show)
        except OSError as problem:
            call.failed(problem)
    return call.end()


def _find(
    tier: Tier, top: str, written: str, deepest: int | None, show: Callable[[Entry, str], None]
) -> None:
    if top:
        entry = tier.stat(top)
        show(entry, written)
        if entry.is_file:
            return
    prefix = len(top) + 1 if top else 0
    for entry in tier.walk(top) if deepest is None else walked(tier, top, deepest):
        show(entry, names.join(written, entry.path[prefix:]))


def _text(values: Values, name: str) -> str | None:
    value = values.get(name)
    return None if value is None else str(value)

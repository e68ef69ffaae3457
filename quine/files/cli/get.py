"""get: files of the tier to this machine, or to stdout.

Laws
1. A file appears whole or not at all, with its time, and its mode as far as the umask allows.
2. Nothing is written outside of the directory that was named, whatever names the store has and whatever links lie in
   the directory. A link named as the destination is followed; a device or a pipe is written to, not replaced.
"""

from __future__ import annotations

import errno
import os
import stat

from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.api import BLOCK, Request, error
from quine.files.cli import localfs
from quine.files.cli.destination import Made, below, crew_of, keeps, operands
from quine.files.cli.output import escaped
from quine.files.exclusions import at, obeyed, obeyed_below, own, say_left_out, within
from transport.atomic import follow
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from quine.files.cli.context import Call
    from quine.files.cli.pool import Crew, Task

RECURSE = "is a directory; -r gets it with what is in it"


def get(call: Call) -> int:
    sources, last = operands(call)
    if last == "-":
        return _get_stdout(call, sources)
    many = len(sources) > 1 or last.endswith("/")
    into = not call.values.get("no_target_directory") and (many or os.path.isdir(last))
    expanded = [(path, source) for source in sources for path, _ in call.expand([source])]
    if len(expanded) > 1 and call.values.get("no_target_directory"):
        raise Misconfigured("-T takes one path and its target")
    into = into or len(expanded) > 1
    with _Here(last, into) as here, crew_of(call.values, call.tier) as crew:
        if into:
            here.folder()  # if it is no directory, report that once
        left, obeys = [], obeyed_below(last) if here.into else ()
        made = Made(call, [paths.name(path) for path, _ in expanded])
        for path, source in expanded:
            name = paths.name(path)
            if here.into and (obeyed(name) or name in obeys) and call.is_pattern(source):
                left.append(path)
                continue
            try:
                left += _get(call, crew, path, here, made)
            except OSError as problem:
                crew.failed(problem)
        say_left_out(left, lambda path: f"quine fs get -r {path}")
        crew.progress.found_all = True
        return crew.finish() or call.end()


class _Here:
    """The local destination: a directory, or a name in one. Directories are opened when first needed."""

    def __init__(self, written: str, into: bool) -> None:
        self.written, self.into = written, into
        self._open: list[localfs.Folder] = []
        self._folder: localfs.Folder | None = None

    def folder(self) -> localfs.Folder:
        """The directory that files are written into."""
        if self._folder is None:
            path = self.written if self.into else os.path.dirname(self.written.rstrip("/")) or "."
            self._folder = localfs.Folder(path)
            self._open.append(self._folder)
        return self._folder

    def name(self, path: str) -> str:
        """The name of a file of the tier in that directory. Raises EISDIR if it can have none."""
        own = paths.name(path) if self.into else os.path.basename(self.written.rstrip("/"))
        if own in ("", ".", ".."):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self.written)
        return own

    def end(self, path: str) -> tuple[localfs.Folder, str] | int:
        """Return the destination of a file: (directory, name), or a descriptor of a device or pipe for the caller.

        A named link is followed, as `>` does. A link inside a named directory is replaced.
        """
        if self.into:
            return self.folder(), self.name(path)
        self.name(path)
        end = follow(self.written)
        if isinstance(end, int):
            return os.dup(end)
        try:
            kind = stat.S_IFMT(os.stat(end).st_mode)
        except FileNotFoundError:
            kind = stat.S_IFREG
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            return os.open(end, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        folder = localfs.Folder(os.path.dirname(end) or ".")
        self._open.append(folder)
        return folder, os.path.basename(end)

    def top(self, path: str) -> localfs.Folder:
        """The local directory for a directory of the tier; made if it is missing."""
        own = paths.name(path) if self.into else ""
        made = os.path.join(self.written, own) if own else self.written
        try:
            os.mkdir(made)
        except FileExistsError:
            if made != self.written and os.path.islink(made):
                raise error(errno.ENOTDIR, made) from None
        folder = localfs.Folder(made, follow=made == self.written)
        self._open.append(folder)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._open:
            folder.__exit__()


def _get(call: Call, crew: Crew, path: str, here: _Here, made: Made) -> list[str]:
    """Get a path; return the paths at which something was left out."""
    name = paths.name(path)
    recursive = bool(call.values.get("recursive"))
    if not recursive and path:

        def fetch() -> Task:
            try:
                yield from get_named(call, crew, path, here)
            except IsADirectoryError as problem:
                if problem.filename != path or call.tier.stat(path).is_file:
                    raise
                raise OSError(errno.EISDIR, RECURSE, path) from None

        made.take(name, path, here.folder().shown(here.name(path)))
        crew.do(fetch)
        return []
    entry = call.tier.stat(path)
    if entry.is_file:
        made.take(name, path, here.folder().shown(here.name(path)))
        crew.progress.expect(entry.size)
        crew.do(get_named, call, crew, path, here)
        return []
    if not recursive:
        raise OSError(errno.EISDIR, RECURSE, path)
    folder = here.top(path)
    kept, obeys, left = own(call.tier, folder.path), obeyed_below(folder.path), set()
    for entry in call.tier.walk(path):
        relative = below(entry, path)
        if place := obeyed(relative) or at(relative, obeys):
            left.add(paths.join(path, place))
            continue
        if within(relative, kept):
            continue
        if entry.is_file:
            try:
                made.take(name, entry.path, folder.shown(relative))
            except FileExistsError as problem:
                crew.failed(problem)
                continue
            crew.progress.expect(entry.size)
            crew.do(get_file, call, crew, entry.path, folder, relative, entry.size, True)
        else:
            crew.do(folder.make, relative)
    return list(left)


def get_named(call: Call, crew: Crew, path: str, here: _Here) -> Task:
    """The task of getting one file to the destination of the command line. Raises OSError, Stopped."""
    if keeps(call) and not here.into and os.path.lexists(here.written):
        raise error(errno.EEXIST, here.written)
    end = here.end(path)
    if not isinstance(end, int):
        yield from get_file(call, crew, path, *end)
        return
    try:
        with call.tier.open(path) as reader:
            while block := reader.read(BLOCK):
                crew.tick(len(block))
                write_all(end, block)
    finally:
        os.close(end)
    crew.progress.file()
    call.say(f"{escaped(path)} -> {escaped(here.written)}")


def get_file(
    call: Call,
    crew: Crew,
    path: str,
    folder: localfs.Folder,
    relative: str,
    size: int | None = None,
    tree: bool = False,
) -> Task:
    """The task of getting one file of the tier, of `size` bytes if known, to `relative` in `folder`.

    `tree`: it is one of a tree, and not named itself. Raises OSError, Stopped.
    """
    absent = keeps(call)
    if absent and os.path.lexists(folder.shown(relative)):
        raise error(errno.EEXIST, folder.shown(relative))
    with (yield Request("get", path, size=size)) as reader:
        if not crew.progress.files_known:
            crew.progress.expect(reader.length)
        folder.fill(relative, reader, crew.tick, absent, tree)
    crew.progress.file()
    call.say(f"{escaped(path)} -> {escaped(folder.shown(relative))}")


def _get_stdout(call: Call, sources: list[str]) -> int:
    if call.values.get("recursive"):
        raise Misconfigured("-r does not go with stdout (-)")

    def copy(path: str) -> None:
        with call.tier.open(path) as reader:
            call.out.copy(reader)

    call.each(copy, sources)
    return call.end()

"""put: files of this machine, or stdin, into the tier.

Laws
1. A file appears whole or not at all. A put that is killed, or whose link is cut, leaves nothing under the name.
2. A link on the command line is followed. A link inside a tree is refused (unless -L), so that the put holds no copy of
   files that the tree only points to. The rest of the tree is put all the same.
"""

from __future__ import annotations

import errno
import os

from quine.base.errors import OK, Misconfigured, need_stdin
from quine.files import paths
from quine.files.api import BLOCK, Request
from quine.files.cli import localfs
from quine.files.cli.destination import Made, Target, crew_of, keeps, needed, operands
from quine.files.cli.output import escaped
from quine.files.cli.pool import once
from quine.files.cli.progress import Progress
from quine.files.exclusions import own
from transport.writes import read_some

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Writer
    from quine.files.cli.context import Call
    from quine.files.cli.options import Values
    from quine.files.cli.pool import Crew, Task


def put(call: Call) -> int:
    sources, last = operands(call)
    target = Target(call, last, len(sources) > 1)
    mode = _mode(call.values)
    if "-" in sources:
        if len(sources) > 1:
            raise Misconfigured("stdin (-) goes alone")
        return _put_stdin(call, target, mode)
    with crew_of(call.values, call.tier) as crew:
        made = Made(call, list(map(_name, sources)))
        for source in sources:
            try:
                _put(call, crew, source, target, mode, made)
            except OSError as problem:
                crew.failed(problem)
        crew.progress.found_all = True
        return crew.finish()


def _mode(values: Values) -> int | None:
    text = values.get("mode")
    if text is None:
        return None
    if not (
        isinstance(text, str) and len(text) <= 5 and text.strip("01234567") == "" and int(text, 8) <= 0o777
    ):
        raise Misconfigured(f"--mode {text}: should be octal, such as 0644")
    return int(text, 8)


def _name(source: str) -> str:
    name = os.path.basename(source.rstrip("/"))
    return "" if name in (".", "..") else name


def _put(call: Call, crew: Crew, source: str, target: Target, mode: int | None, made: Made) -> None:
    name = _name(source)
    if not os.path.isdir(source):

        def attempt(path: str) -> Task:
            return put_file(call, crew, source, path, mode)

        size = os.stat(source).st_size
        made.take(name, source, paths.join(target.path, name))
        crew.progress.expect(size)
        crew.do(target.try_each, name, attempt)
        return
    if not call.values.get("recursive"):
        raise OSError(errno.EISDIR, "is a directory; -r puts it with what is in it", source)
    top = target.under(name)
    if top:
        call.tier.mkdir(top, exist_ok=True)
    walk = localfs.walk(
        source, bool(call.values.get("follow")), crew.failed, leave_out=own(call.tier, source)
    )
    for found in needed(walk):
        path, here = paths.join(top, found.path), os.path.join(source, found.path)
        if found.kind == "file":
            try:
                made.take(name, here, path)
            except FileExistsError as problem:
                crew.failed(problem)
                continue
            crew.progress.expect(found.stat.st_size)
            crew.do(put_file, call, crew, here, path, mode, "" if call.values.get("follow") else found.path)
        elif found.kind == "directory":
            crew.do(once, Request("mkdir", path, exist_ok=True))
        else:
            crew.failed(refused(found.kind, here))


def refused(kind: str, path: str) -> OSError:
    """The error for a link, a device, a pipe or a socket."""
    if kind == "link":
        return OSError(errno.ELOOP, "a symbolic link; -L puts what it points to", path)
    return OSError(errno.EINVAL, "neither a file nor a directory", path)


def put_file(
    call: Call, crew: Crew, source: str, path: str, mode: int | None = None, found: str = ""
) -> Task:
    """The task of putting one local file; `found` is as for `localfs.Source`. Raises OSError, Stopped."""
    path, absent = paths.clean(path), keeps(call)
    with localfs.Source(source, found) as file:
        if mode is None:
            mode = file.stat.st_mode & localfs.PERMISSIONS
        mtime, size = file.stat.st_mtime, file.stat.st_size
        content = file.small() if crew.far else None
        if content is None:
            with call.tier.create(
                path, if_absent=absent, mode=mode, mtime=mtime, size=size or None
            ) as writer:
                file.feed(writer, crew.tick)
                writer.commit()
    if content is not None:
        yield Request("put", path, size=size, mode=mode, mtime=mtime, if_absent=absent, content=content)
        crew.tick(size)
    crew.progress.file()
    call.say(f"{escaped(source)} -> {escaped(path)}")


def _put_stdin(call: Call, target: Target, mode: int | None) -> int:
    need_stdin()
    if target.known and target.into():
        raise Misconfigured("stdin has no name; the target must be that of a file")
    if mode is None:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    progress = Progress(quiet=bool(call.values.get("quiet")))
    try:
        with call.tier.create(target.path, if_absent=keeps(call), mode=mode) as writer:
            _pour_stdin(writer, progress)
            writer.commit()
    finally:
        progress.clear()
    call.say(f"- -> {escaped(target.path)}")
    return OK


def _pour_stdin(writer: Writer, progress: Progress) -> None:
    while True:
        try:
            block = read_some(0, BLOCK)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, "stdin") from None
        if not block:
            return
        writer.write(block)
        progress.add(len(block))

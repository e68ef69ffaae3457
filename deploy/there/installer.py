"""Runs on the host, sent there as text: receives the binary, checks it, unpacks it, becomes the dial.

    answers on stdout, each a line that begins with the marker:
        fail WORD TEXT    nothing was installed; WORD is one of FAILURES in deploy/host_requirements.py
        have              installed; the bytes of the dial follow

Laws
1. Standard library only, no import of ours, Python 3.9: this program runs before anything of ours is there.
2. The name <cache>/<name> exists only as a whole: made aside in the same directory, then renamed. So nothing
   half-installed can be started, and two installers at once do no harm: the second finds it done. Nothing is synced:
   that took a tenth of a first command, and what a loss of power has damaged does not start, and is replaced.
3. Bytes that came stay, in <cache>/.part-<name>, when the connection is lost: the next installer goes on behind them.
   Several may write to it at once, without a lock, which a dead connection would hold: the name of the file decides
   which bytes are right at each place, nobody shortens it, and each verifies the whole by a descriptor of its own.
4. The cache is the user's own, and no other user can write to it: one of them could make any of these names first.
   It may lie behind links. No other user can change the directories and links on the way to it either, from the home
   on, or from / where it is not below that: one of them could put another directory in its place.
5. Whatever happens, the directory made aside is removed; one that a killed installer left is removed by the next.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO, NoReturn

FILE = "quine.pyz"  # in an installation: the file as it was sent; `lib` has its contents, `quine` starts it
CONTENT = "content.zip"  # in that file: all of it, not compressed, so that the file is one compressed stream
UNPACKED = 6  # times the size of the binary: the room that an installation takes
START_SECONDS = 60
STALE = 3600  # seconds after which a directory made aside, or a part that came, belongs to nobody
KEPT = 3  # installations that stay, the newest; and those in use
USED = (
    1800  # seconds for which a note of use (`note_use` of transport/this_build.py) says that a host runs one
)
CHUNK = 1 << 16
WORDS = {errno.ENOSPC: "full", errno.EDQUOT: "full"}  # of errors; "write" for others
WORDS.update(dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT), "readonly"))
# PyPy takes the bytes of names and arguments for those of the locale, also where that is C, as it often is at a login,
# and has no -X utf8. The program takes back what is set here, for its jobs: see `quine/base/exposure.py`.
UTF8 = (
    'case "${LC_ALL:-${LC_CTYPE:-$LANG}}" in *UTF-8*|*utf8*|*utf-8*) ;; *) QUINE_LOCALE="$LC_ALL:$LC_CTYPE"; '
    'LC_CTYPE=C.UTF-8; export QUINE_LOCALE LC_CTYPE; [ -z "$LC_ALL" ] || LC_ALL=C.UTF-8;; esac\n'
)


class Failure(Exception):
    """One word for the origin, one text for people."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(word, text)
        self.word = word
        self.text = text


def main(
    marker: str,
    base: str,
    name: str,
    sha256: str,
    size: int,
    offset: int,
    setup: str,
    mode: str,
    source: BufferedReader,
) -> NoReturn:
    """Install the binary, whose bytes from `offset` on come from `source`; then exec the dial if the mode is "dial".

    `setup`: lines of the shell that come before each start of this Python.
    """
    umask = os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # unwinds: law 5
    folder = Path(base).expanduser()
    target = folder / name
    try:
        make(folder)
        forget(folder, target)
        with receive(folder, name, sha256, size, offset, source) as part:
            install(part, target, setup)
            if mode != "dial":
                try_out(target)
    except (Failure, OSError) as error:
        give_up(marker, error, folder)
    say(marker, "have")
    if mode != "dial":
        sys.exit(0)
    os.environ["PATH"] = f"{target}:{os.environ.get('PATH', os.defpath)}"
    os.umask(umask)  # the node's jobs have that of the login
    launcher = str(target / "quine")
    os.execv(launcher, [launcher, "node", "--dial"])


def say(marker: str, text: str) -> None:
    os.write(1, f"{marker} {text}\n".encode(errors="replace"))


def give_up(marker: str, error: Failure | OSError, folder: Path) -> NoReturn:
    if isinstance(error, OSError):
        error = Failure(WORDS.get(error.errno or 0, "write"), f"{error.filename or folder}: {error.strerror}")
    say(marker, f"fail {error.word} {' '.join(error.text.split())}")
    sys.exit(69)


def make(folder: Path) -> None:
    """Make the cache if it is missing. Raises Failure if other users may have made it, or can write or replace it.

    The umask is 077: parents are made by that.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        raise Failure("owner", f"{folder} belongs to user id {facts.st_uid}")
    if others_write(facts):
        raise Failure("owner", f"{folder} can be written by others (mode {facts.st_mode & 0o7777:04o})")
    judge_way(str(folder), os.path.expanduser("~"))


def judge_way(path: str, home: str) -> None:
    """Raise Failure if another user can change a directory or a link on the way to `path`.

    As `named` of transport/provenance/safe_path.py, but by path: whoever may change a name is judged before it is used.
    """
    at, todo = split(path, home)
    links, root = 0, os.stat("/").st_uid
    while True:
        facts = os.lstat(at)
        link = stat.S_ISLNK(facts.st_mode)
        if facts.st_uid not in (0, os.geteuid(), root):
            raise Failure("owner", f"{at}, on the way to {path}, belongs to user id {facts.st_uid}")
        if not link and not facts.st_mode & stat.S_ISVTX and others_write(facts):
            mode = f"mode {facts.st_mode & 0o7777:04o}"
            raise Failure("owner", f"{at}, on the way to {path}, can be written by others ({mode})")
        if link:
            links += 1
            if links > 40:  # as the kernel allows
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            at, names = split(os.path.join(os.path.dirname(at), os.readlink(at)), home)
            todo += names
        elif todo:
            at = os.path.normpath(os.path.join(at, todo.pop()))
        else:
            return


def split(path: str, home: str) -> tuple[str, list[str]]:
    """Return the directory in which the judgement of a path begins, and the names behind it, the last one first."""
    below = ".." not in path.split("/") and path.startswith(home.rstrip("/") + "/")
    rest = path[len(home) :] if below else path
    names = [name for name in reversed(rest.split("/")) if name not in ("", ".")]
    return os.path.realpath(home) if below else "/", names


def others_write(facts: os.stat_result) -> bool:
    return bool(facts.st_mode & 0o002) or bool(facts.st_mode & 0o020 and not is_private(facts.st_gid))


def is_private(group: int) -> bool:
    """Say whether the user is the only member of a group that has his name, which umask 002 is made for, or of root's.

    As in transport/provenance/safe_path.py.
    """
    import grp
    import pwd

    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container with another uid, as a rule in the group of root
        return group == 0 and not entry.gr_mem
    private = group == 0 or (group == user.pw_gid and entry.gr_name == user.pw_name)
    return private and set(entry.gr_mem) <= {user.pw_name, "root"}


class Part:
    """The file with the bytes that came. Leaving the context removes it, unless its bytes can be used again."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.keep = True

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.keep:
            self.path.unlink(missing_ok=True)
        os.close(self.fd)

    def open(self) -> BinaryIO:
        """Return it from its beginning. By its descriptor: its name may have gone, or be another one's by now."""
        file = os.fdopen(os.dup(self.fd), "rb")
        file.seek(0)
        return file


def receive(folder: Path, name: str, sha256: str, size: int, offset: int, source: BufferedReader) -> Part:
    """Write the bytes behind the first `offset`, verify all by reading the file back, and return it."""
    facts = os.statvfs(folder)
    free, needed = facts.f_bavail * facts.f_frsize, size * (1 + UNPACKED) - offset
    if free < needed:
        raise Failure("full", f"{folder} has {free >> 20} MB free, {needed >> 20} MB are needed")
    path = folder / f".part-{name}"
    part = Part(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        if os.fstat(part.fd).st_size < offset:
            raise Failure("moved", "another connection has removed the bytes that were there")
        os.lseek(part.fd, offset, os.SEEK_SET)
        left = size - offset
        while left:
            data = source.read1(min(left, CHUNK))
            if not data:
                raise Failure("cut", f"{size - left} of {size} bytes came")
            view = memoryview(data)
            while view:
                view = view[os.write(part.fd, view) :]
            left -= len(data)
        os.ftruncate(part.fd, size)
        part.keep = False
        with part.open() as file:
            got = digest(file)
        if got != sha256:
            raise Failure("corrupt", f"its SHA-256 begins with {got[:16]}, not {sha256[:16]}")
        return part
    except BaseException:
        part.__exit__()
        raise


def digest(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while data := file.read(CHUNK):
        found.update(data)
    return found.hexdigest()


def install(part: Part, target: Path, setup: str = "", flags: str = "-I -S -X utf8") -> None:
    """Make the installation of a file that has been verified, and rename it to its name.

    Its Python takes the bytes of names and arguments for UTF-8, as the origin does, whatever the locale there is.
    """
    work = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        try:
            with part.open() as file, zipfile.ZipFile(BytesIO(zipfile.ZipFile(file).read(CONTENT))) as packed:
                packed.extractall(work / "lib")
        except (zipfile.BadZipFile, ImportError, RuntimeError) as error:
            raise Failure("unpack", str(error)) from None
        with part.open() as file, open(work / FILE, "wb") as copy:
            shutil.copyfileobj(file, copy)
        os.utime(work / FILE, (time.time() - 10,) * 2)  # surely older than the launcher, on any file system
        start = f"exec {shlex.quote(sys.executable)} {flags} {shlex.quote(str(target / 'lib'))}"
        launcher = work / "quine"
        locale = UTF8 if sys.implementation.name == "pypy" else ""
        launcher.write_bytes(os.fsencode(f'#!/bin/sh\n{setup}{locale}{start} "$@"\n'))
        launcher.chmod(0o700)
        if not os.access(launcher, os.X_OK):
            raise Failure("noexec", f"{target.parent} is on a file system mounted noexec")
        put(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def try_out(target: Path) -> None:
    """Raise Failure if the installation does not start. A dial needs no trial: it starts it."""
    try:
        done = subprocess.run(
            [str(target / "quine"), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure("start", f"not done in {START_SECONDS} s") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        lines = [line for line in text.splitlines() if ": hint: " not in line]
        raise Failure("start", (lines or [f"status {done.returncode}"])[-1][:500])


def put(work: Path, target: Path) -> None:
    """Rename the work to its name. An equal installation stays: another installer may have made it, and started it
    already. A different one goes: it is damaged, or made for another Python.
    """
    for _ in range(3):
        try:
            work.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if same(work, target):
            for path in target.rglob("__pycache__"):  # made by its Python, so not compared
                shutil.rmtree(path, ignore_errors=True)
            return
        aside = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
        target.rename(aside / "was")
        shutil.rmtree(aside, ignore_errors=True)
    raise Failure("write", f"{target} cannot be replaced")


def same(work: Path, target: Path) -> bool:
    """Say whether every file of `work` is in `target`, with the same bytes."""
    try:
        return all(
            path.is_dir() or path.read_bytes() == (target / path.relative_to(work)).read_bytes()
            for path in work.rglob("*")
        )
    except OSError:
        return False


def forget(base: Path, target: Path) -> None:
    """Remove the leftovers of killed installers, and old installations that no process runs.

    Other installers do the same at the same time: an entry that has gone, or cannot be removed, is no failure.
    """
    old: list[tuple[float, Path]] = []
    for path in base.iterdir():
        changed = modified(path)
        if path.name.startswith((".new-", ".old-", ".part-")):
            if changed < time.time() - STALE:
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    path.unlink()
        elif len(path.name) == len(target.name) and path.name != target.name:
            old.append((changed, path))
    spare = [path for _, path in sorted(old, reverse=True)[KEPT - 1 :]]
    running = contents("cmdline") if spare else ""  # an installation in use is named in one
    for path in spare:
        notes = glob.glob(f"{glob.escape(str(path))}/used-*")  # of hosts with this home
        if str(path) not in running and not any(modified(note) > time.time() - USED for note in notes):
            shutil.rmtree(path, ignore_errors=True)
    forget_layers(base)


def forget_layers(base: Path) -> None:
    """Remove the layers (deploy/there/layers.py) that no installation names and no process has loaded."""
    named: set[str] = set()
    for folder in base.iterdir():
        with contextlib.suppress(OSError):  # it is a file, or another installer has removed it
            named |= {
                os.path.realpath(folder / name) for name in os.listdir(folder) if name.startswith("layer-")
            }
    spare = [path for path in base.glob("layer-*") if os.path.realpath(path) not in named]
    spare = [path for path in spare if modified(path) < time.time() - STALE]
    loaded = contents("maps") if spare else ""
    for path in spare:
        if os.path.realpath(path) not in loaded:
            shutil.rmtree(path, ignore_errors=True)


def modified(path: Path | str) -> float:
    """Return the time of its last change, 0 if it has gone."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def contents(name: str) -> str:
    """Return that file of /proc of all processes that it can be read of."""
    found = []
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return "\n".join(found)


def unpacked(file: Path, base: Path) -> Path:
    """Return the directory `lib` of the installation of `file`, the binary as a person starts it; made if need be."""
    with Part(file, os.open(file, os.O_RDONLY | os.O_CLOEXEC)) as part:
        with part.open() as content:
            target = base / digest(content)
        umask = os.umask(0o077)
        make(base)
        if not (target / "quine").exists():
            forget(base, target)
            install(part, target, flags="")
        os.umask(umask)
    return target / "lib"

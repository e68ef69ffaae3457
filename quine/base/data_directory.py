"""The data directory: `.quine` in the current directory, or what QUINE_DATA_DIR names; and the mark of its user.

Laws
1. A repository, an archive or another user can bring a `.quine`. A data directory must belong to the user, must not be
   writable by others, and must have the user's mark. `.quine` must not be a link.
2. The mark is a digest under a secret in the user's state directory. It holds on another machine, on NFS and in a copy,
   and who does not know the secret cannot make one.
3. A directory without a mark is marked at its first use, unless it holds links or git tracks it; of one that was found
   that is said. One that is made here is marked at once. Where no secret can be kept there are no marks: each use looks
   at all the rest. It gets a `.gitignore` in any case, so that `git add -A` takes no tape.
4. Other things that quine obeys where it finds them are sealed under the same secret, in a way that makes no mark.
5. Each name that quine keeps in it is no link and the user's, with a mark, too: `git pull` brings files into it.
   Directories (KEPT) are judged when the data directory is opened; each is opened, and made, by safe_path.inside.
6. A directory with a mark is the user's wherever it is. Without one, and named by an option, the way to it must be
   safe, too (transport/provenance/safe_path.py).
"""

from __future__ import annotations

import errno
import os
import stat

from quine.base import dirs
from quine.base.errors import Misconfigured, say
from quine.base.text import plain
from transport.address import state_directory
from transport.lean import Mapping, blake2b, contextlib
from transport.provenance import safe_path
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = ".quine"
MARK = ".mark"
IGNORE = ".gitignore"
KEPT = ("bin", "jobs", "outputs", "replays")  # directories in it; the shared files judge their own
SECRET = "mark-secret"  # in the state directory
_SIZE = 16  # bytes of a random number, and of a digest
_SECRET = 64  # characters of the secret
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ELSEWHERE = "or name another directory with QUINE_DATA_DIR"
_fleeting = b""  # a secret of this process, where none can be kept
_judged: set[tuple[int, int]] = set()  # (device, inode) of those that this process has found to be the user's


def named(environ: Mapping[str, str] = os.environ) -> str:
    """Return the data directory as it is named, relative to the current one where it is not; nothing is looked at."""
    return environ.get("QUINE_DATA_DIR") or NAME


def path(environ: Mapping[str, str] = os.environ, option: str = "") -> str:
    """Return the absolute path of the data directory. Raises Misconfigured if a link or a file is in its place."""
    told = option or environ.get("QUINE_DATA_DIR")
    if not told:
        with _about(NAME):
            safe_path.require_folder(NAME)
    return dirs.absolute(told or NAME)


def checked(environ: Mapping[str, str] = os.environ, option: str = "") -> str:
    """Return it as it is named, for who only reads there. One that was found is the user's, or raise Misconfigured."""
    if told := option or environ.get("QUINE_DATA_DIR"):
        _require_named(place := os.path.expanduser(told))
        return place
    require_own(path(environ))
    return NAME


def _require_named(place: str) -> None:
    """Raise Misconfigured if names in a directory that is only read are links or another user's than its owner's."""
    try:
        fd = os.open(place, safe_path.FOLDER & ~os.O_NOFOLLOW)
    except OSError:
        return  # as for `require_own`
    try:
        with _about(place):
            _require_names(fd, place)
    finally:
        os.close(fd)


def _require_names(fd: int, place: str) -> None:
    """Raise Unsafe, or OSError, if what quine keeps in the directory is not as quine has made it."""
    for name in KEPT:
        try:
            os.close(safe_path.below(fd, [name], place, safe_path.FOLDER))
        except FileNotFoundError:
            pass


def require_own(place: str) -> None:
    """Raise Misconfigured if the directory at `place` exists and may not belong to the user."""
    with contextlib.suppress(OSError):  # it is not there, or cannot be opened: its user says so
        os.close(opened(place))


def opened(place: str, make: bool = False) -> int:
    """Return a descriptor of the directory at `place`, an absolute path. Raises Misconfigured, OSError."""
    new = make and not os.path.isdir(place)
    if new:
        dirs.make(place)
    fd = os.open(place, safe_path.FOLDER & ~os.O_NOFOLLOW)
    try:
        with _about(place):
            facts = os.fstat(fd)
            safe_path.judge(facts, place)
            known = facts.st_dev, facts.st_ino
            if known not in _judged:
                if new:
                    _mark(fd)
                elif not _is_marked(fd, place):
                    _adopt(fd, place)
                else:
                    with contextlib.suppress(OSError):
                        _ignore(fd, missing=False)
                _require_names(fd, place)
                _judged.add(known)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _about(place: str) -> Iterator[None]:
    try:
        yield
    except safe_path.Unsafe as unsafe:
        detail, hint = (plain(text, newlines=False) for text in (str(unsafe), unsafe.hint))  # they name files
        raise Misconfigured(f"the data directory {place}: {detail}", f"{hint}, {_ELSEWHERE}") from None
    except FileNotFoundError:
        raise  # another process has removed the directory
    except (
        OSError
    ) as error:  # verbs that read go on after an OSError: they take the directory for a missing one
        why = (error.strerror or str(error)).lower()
        raise Misconfigured(f"the data directory {place}: {why}", f"look at it, {_ELSEWHERE}") from None


def _adopt(fd: int, place: str) -> None:
    """Mark a directory that has no mark of this user. Raises Unsafe if it may be somebody else's."""
    names = [name for name in os.listdir(fd) if not name.startswith((MARK, IGNORE))]
    if _is_marked(fd, place):
        return  # by another process, which has just made it; its files came after that
    found = place == dirs.absolute(NAME)
    if not found:  # somebody has named the way
        os.close(safe_path.named(place, safe_path.FOLDER))
    for inside in (".", "jobs"):
        with contextlib.suppress(FileNotFoundError):
            for name in _links(fd, inside):
                raise safe_path.Unsafe(f"{name} in it is a symlink", f"look at it, then rm {place}/{name}")
    from transport.provenance import git_index  # here: only a directory without a mark needs it

    true = os.readlink(f"/proc/self/fd/{fd}")
    if index := git_index.tracks(true):
        split = os.path.basename(index).startswith(git_index.SHARED)
        raise safe_path.Unsafe(
            "git tracks it, so it may have come with a repository",
            f"{'git update-index --no-split-index, then ' * split}git rm -r --cached {true} if it is yours",
        )
    if _mark(fd) and found and names:
        say(
            f"quine: note: {place} has no mark of yours yet, and is taken for your data directory from now on\n"
        )


def _links(fd: int, inside: str) -> list[str]:
    """Return the links in the directory, or in one that is in it. Raises FileNotFoundError, Unsafe."""
    below = safe_path.found(inside, safe_path.FOLDER, fd)
    try:
        with os.scandir(below) as entries:
            return [os.path.normpath(f"{inside}/{entry.name}") for entry in entries if entry.is_symlink()]
    finally:
        os.close(below)


def _digest(secret: bytes, number: str) -> str:
    return blake2b(number.encode(), key=secret, digest_size=_SIZE).hexdigest()


def _is_marked(fd: int, place: str) -> bool:
    """Return whether the directory has the mark of this user. Raises Unsafe if another thing is in its place."""
    try:
        mark = os.open(MARK, safe_path.FILE, dir_fd=fd)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(mark).st_mode):
            raise safe_path.Unsafe(
                f"{MARK} in it is no regular file", f"look at it, then rm -r {place}/{MARK}"
            )
        number, _, digest = os.read(mark, 200).decode("ascii", "replace").strip().partition(" ")
    finally:
        os.close(mark)
    secret = _secret(make=False)
    return bool(secret) and digest == _digest(secret, number)


def _mark(fd: int) -> bool:
    """Put a `.gitignore` into a directory, and our mark. Return whether the mark is there now."""
    number = os.urandom(_SIZE).hex()
    try:
        _ignore(fd, missing=True)  # first, and also where no secret can be kept
        if not (secret := _secret(make=True)):
            return False
        _publish(MARK, f"{number} {_digest(secret, number)}\n".encode(), fd)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT):
            return False  # the next write there will say so
        raise
    return True


def _ignore(fd: int, missing: bool) -> None:
    """Write a `.gitignore` in place of an empty one, as a full disk left it, or of a missing one. Raises OSError."""
    try:
        facts = os.stat(IGNORE, dir_fd=fd, follow_symlinks=False)
        wanted = stat.S_ISREG(facts.st_mode) and not facts.st_size
    except FileNotFoundError:
        wanted = missing
    if wanted:
        _publish(IGNORE, b"*\n", fd)


def marked_at(place: str) -> int | None:
    """Return when this user marked the directory, in ns, or None if nobody has. Raises Misconfigured.

    It is st_ctime, which an archive cannot set: a file whose st_ctime is earlier lay there before.
    """
    try:
        fd = os.open(place, safe_path.FOLDER & ~os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with _about(place):
            marked = _is_marked(fd, place)
            return os.stat(MARK, dir_fd=fd, follow_symlinks=False).st_ctime_ns if marked else None
    finally:
        os.close(fd)


def seal(text: bytes) -> str:
    """Return a digest of `text` that this user alone can make; where no secret can be kept, this process alone."""
    global _fleeting
    if secret := _kept_secret(make=True):
        return _sealed(secret, text)
    _fleeting = _fleeting or os.urandom(32)
    return _sealed(_fleeting, text)


def is_sealed(text: bytes, digest: str) -> bool:
    """Return whether `digest` is the seal of `text`."""
    return any(digest == _sealed(secret, text) for secret in (_kept_secret(make=False), _fleeting) if secret)


def _sealed(secret: bytes, text: bytes) -> str:
    return blake2b(text, key=secret, digest_size=_SIZE, person=b"quine-seal").hexdigest()


def _kept_secret(make: bool) -> bytes:
    try:
        return _secret(make)
    except safe_path.Unsafe:
        return b""


def _publish(name: str, data: bytes, directory: int | None = None, over: bool = True) -> None:
    """Write a file aside, and give it its name when it is whole and on the disk. A failure leaves nothing behind.

    Raises OSError, without `over` FileExistsError if the name is taken.
    """
    aside = f"{name}-{os.urandom(8).hex()}"
    fd = os.open(aside, _NEW, 0o600, dir_fd=directory)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        if over:
            os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.link(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        with contextlib.suppress(OSError):  # it was renamed
            os.unlink(aside, dir_fd=directory)


def _secret(make: bool) -> bytes:
    """Return the user's secret, or b"" if it cannot be read or, with `make`, created. Raises Unsafe."""
    folder = state_directory()
    place = os.path.join(folder, SECRET)
    broken = False
    try:
        if secret := _read(place):
            return secret
        broken = True
    except OSError:
        pass
    if not make:
        return b""
    try:
        dirs.make(folder)
        with contextlib.suppress(FileExistsError):  # another process was first
            _publish(place, os.urandom(_SECRET // 2).hex().encode(), over=broken)
        return _read(place)
    except OSError:
        return b""


def _read(place: str) -> bytes:
    """Return the secret in a file; b"" if it is not whole, as after a crash. Raises OSError, Unsafe."""
    fd = safe_path.named(place)
    try:
        secret = os.read(fd, _SECRET)
        return secret if len(secret) == _SECRET else b""
    finally:
        os.close(fd)

"""Mounting and unmounting, by system call where permitted, else by fusermount3; and the list of current mounts.

Laws
1. Only a mount that the kernel lists as ours is ever unmounted.
2. A missing prerequisite is reported in one sentence, with its cure.
"""

from __future__ import annotations

import errno
import os

from transport.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

DEVICE = "/dev/fuse"
KIND = "fuse.quine"
_NOSUID, _NODEV = 2, 4
_DETACH, _NOFOLLOW = 2, 8


def lacking(opens: bool = True) -> tuple[str, str]:
    """Return why nothing can be mounted here, and the cure; ("", "") if it can, as far as visible without trying.

    `opens`: also the device is opened, for which the kernel may load a module.
    """
    try:
        if opens:
            os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
        else:
            os.stat(DEVICE)
            if not os.access(DEVICE, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        return f"there is no {DEVICE}", "modprobe fuse; a container needs --device /dev/fuse"
    except OSError as error:
        why = (error.strerror or "").lower()
        return (
            f"{DEVICE} cannot be opened: {why}",
            "its mode should be 0666; a container needs --device /dev/fuse",
        )
    if not _may_mount() and _helper() is None:
        return "only root may mount, and there is no fusermount3", "install the package fuse3"
    return "", ""


def mount(path: str, source: str) -> int:
    """Mount at `path`, and return the descriptor of the kernel's requests. Raises Refused."""
    why, cure = lacking()
    if why:
        raise Refused(f"the files tier cannot be mounted: {why}", cure)
    helper = _helper()
    try:
        if _may_mount():
            try:
                return _mount_ourselves(path, source)
            except PermissionError:
                if helper is None:
                    raise
        assert helper is not None
        return _mount_by(helper, path, source)
    except OSError as error:
        cure = "a container needs --device /dev/fuse and --cap-add SYS_ADMIN"
        if error.errno == errno.EACCES:
            cure = "without root, choose a mount point that you own"
        why = (error.strerror or str(error)).lower()
        raise Refused(f"the files tier cannot be mounted at {path}: {why}", cure) from None


def unmount(path: str, lazily: bool = True) -> None:
    """Unmount. Raises OSError: EINVAL if nothing of ours is mounted there, EBUSY unless lazily."""
    if not is_mounted(path):
        raise OSError(errno.EINVAL, "nothing of quine is mounted there", path)
    if _may_mount():
        number = _call("umount2", os.fsencode(path), _NOFOLLOW | (_DETACH if lazily else 0))
        if not number:
            return
        if number != errno.EPERM:
            raise OSError(number, os.strerror(number), path)
    helper = _helper()
    if helper is None:
        raise OSError(errno.EPERM, "only root may unmount, and there is no fusermount3", path)
    import subprocess

    words = [helper, "-u", "-q", *(["-z"] if lazily else []), "--", path]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode and is_mounted(path):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)


def is_mounted(path: str) -> bool:
    """Return whether shared files are mounted there. It reads the kernel's list, because the path itself may hang."""
    return bool(sources(path))


def sources(path: str) -> list[str]:
    """Return the source names of our mounts at `path`, the latest last."""
    return [source for place, source in mounted() if place == path]


def mounted() -> list[tuple[str, str]]:
    """Return (path, source name) of all our mounts, the latest last."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            before, _, after = line.partition(b" - ")
            kind, source = after.split(b" ")[:2]
            if kind == KIND.encode():
                found.append((os.fsdecode(_plain(before.split(b" ")[4])), os.fsdecode(_plain(source))))
    return found


def _plain(text: bytes) -> bytes:
    """Decode `\\040` for a space and the like, as the kernel writes paths."""
    parts = text.split(b"\\")
    return parts[0] + b"".join(bytes([int(part[:3], 8) & 0xFF]) + part[3:] for part in parts[1:])


def _may_mount() -> bool:
    """Return whether this process has CAP_SYS_ADMIN in its namespace."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"CapEff:"):
                    return bool(int(line.split()[1], 16) >> 21 & 1)
    except OSError:
        pass
    return False


def _helper() -> str | None:
    """As shutil.which, whose module takes a node longer to load than all of this takes."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder, name) for name in ("fusermount3", "fusermount") for folder in folders)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def _options(fd: int) -> str:
    return f"fd={fd},rootmode=40755,user_id={os.getuid()},group_id={os.getgid()},default_permissions"


def _mount_ourselves(path: str, source: str) -> int:
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = os.fsencode(_options(fd))
    number = _call("mount", os.fsencode(source), os.fsencode(path), KIND.encode(), _NOSUID | _NODEV, options)
    if number:
        os.close(fd)
        raise OSError(number, os.strerror(number), path)
    return fd


def _mount_by(helper: str, path: str, source: str) -> int:
    """Mount by fusermount3, which returns the descriptor over a socket; the socket's number is in its environment."""
    import socket
    import subprocess

    ours, theirs = socket.socketpair()
    with ours, theirs:
        options = f"nosuid,nodev,default_permissions,fsname={source.replace(',', '_')},subtype=quine"
        done = subprocess.run(
            [helper, "-o", options, "--", path],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        theirs.close()
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0].removeprefix(f"{helper}: ")
            number = errno.EACCES if "mountpoint" in said else errno.EPERM
            raise OSError(number, said[:200] or "fusermount3 failed", path)
        ours.settimeout(10)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise OSError(errno.EPERM, "fusermount3 gave no descriptor", path)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


_libc: ctypes.CDLL | None = None


def _call(name: str, *args: bytes | int) -> int:
    """Call a function of the C library; return its errno, 0 on success."""
    global _libc
    import ctypes

    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    return 0 if getattr(_libc, name)(*args) == 0 else ctypes.get_errno() or errno.EIO

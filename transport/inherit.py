"""The inherited memo: values that a process passes to its descendants outside of argv and environment.

Laws
1. A secret is never in an environment or an argv, where `ps` and `/proc/*/environ` show it. It is in a sealed memfd
   whose number the environment names (QUINE_CREDENTIALS_FD). So every descendant that inherits descriptors can read
   it, and no process can change it.
2. Reading never moves a shared file position (pread), so any number of processes read it at once.
3. A descriptor of another process is a name that may mean another file a moment later, as in a shell that makes pipes.
   So what was seen there is opened by what it was (`MemoryFile.opened`). A file without its seals, which its maker has
   not finished yet, counts as absent, and so does a named pipe or a file of FUSE with the name of a memfd.
4. A walk over the processes above reaches the top, or raises Unseen. One that breaks off would show a process outside
   of its tree, and a command could have it break off: it ends those between, or takes descriptors away.
"""

from __future__ import annotations

import os

from transport import quickjson
from transport.address import ancestors as ancestors
from transport.address import closed_since, pass_over
from transport.errors import Unseen
from transport.lean import Any, NamedTuple, prctl
from transport.provenance.memory_file import FIRST_FD as FIRST_FD
from transport.provenance.memory_file import inode_at as inode_at
from transport.provenance.memory_file import link as link
from transport.provenance.memory_file import reopened as reopened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "QUINE_CREDENTIALS_FD"
NAME = "quine-credentials"
LINK = link(NAME)
APART = "quine-apart"  # name of the memfd that marks a daemon, see `stand_apart`
PR_SET_CHILD_SUBREAPER = 36
LIMIT = 64 << 20  # bytes; a memo is a few keys, and over exec a session with its mission

_first = 0  # pid of the job that this process belongs to: nothing above it is of its tree

# NPMTOKEN and PGPASSWORD end in such a word, AWS_SECRET_ACCESS_KEY_ID has one in the middle.
_SECRET_ENDS = (
    *("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS"),
    "CONNECTION_STRING",  # AZURE_STORAGE_CONNECTION_STRING has the account's key in it
)
_SECRET_WORDS = {*_SECRET_ENDS, "PASS", "PWD", "PAT", "AUTH", "SSHPASS"}
# Their passwords are for a proxy of this network. Commands here need them, and a host has no use for them.
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
_OUR_SECRETS = ("QUINE_API_KEY", "QUINE_FS_OPTIONS")
# The AWS and AZURE names say where the role of a machine finds its keys, and hold none: libraries need them.
_NO_SECRETS = (
    *("PWD", "OLDPWD", "SSH_AUTH_SOCK"),
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "AZURE_FEDERATED_TOKEN_FILE",
)


def is_secret(name: str) -> bool:
    """True if the name of an environment variable says that its value is a key, a token or a password."""
    if name.startswith("QUINE_"):
        return (
            name in _OUR_SECRETS
        )  # the list is complete: QUINE_MAX_TOKENS is none, nor is the memo's number
    upper = name.upper()
    words = upper.split("_")
    return name not in _NO_SECRETS and (upper.endswith(_SECRET_ENDS) or not _SECRET_WORDS.isdisjoint(words))


def withholds(name: str, value: str, here: bool = False) -> bool:
    """True if the variable is a secret, by its name or by a password in its value.

    `here`: for a command of this machine, which keeps the proxies: without them it would reach nothing.
    """
    return is_secret(name) or (_opens(name, value) and not (here and name.lower() in _PROXIES))


def scrubbed(environ: Mapping[str, str], here: bool = False) -> dict[str, str]:
    """An environment without the secrets of `withholds`, and without the memo of its owner."""
    return {
        name: value
        for name, value in environ.items()
        if name != VARIABLE and not withholds(name, value, here)
    }


def _opens(name: str, value: str) -> bool:
    """True if the value holds `user:password@`, or is the URL of the shared files and holds a signature.

    The authority of a URL ends at the first of `/?#`, or where a text or a list goes on. A value without a URL may
    itself begin so, as data source names do; an address of mail and a digest of an image are no such thing.
    """
    if name == "QUINE_FS" and "=" in value.partition("?")[2]:
        return True
    if "@" not in value:
        return False
    places = value.split("://")
    if len(places) == 1:
        user, _, host = value.partition("@")
        bare = not any(letter.isspace() or letter in "/@" for letter in user) and not user.startswith(
            "mailto:"
        )
        return bare and ":" in user[1:] and not host.startswith("sha256:")
    return any(":" in _authority(place).rpartition("@")[0] for place in places[1:])


def _authority(rest: str) -> str:
    return next(
        (rest[:at] for at, letter in enumerate(rest) if letter in "/?#,;'\"<>" or letter.isspace()), rest
    )


def write(memo: Mapping[str, object], name: str = NAME) -> int:
    """Put `memo` into a sealed memfd and return its descriptor, not inheritable yet.

    Pass it on with `pass_fds=[fd]` (or os.set_inheritable) and name it in the child's environment under
    VARIABLE. The caller owns the descriptor.
    """
    import fcntl

    raw = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(raw, quickjson.dumps(memo).encode())
        fcntl.fcntl(raw, fcntl.F_ADD_SEALS, _seals())
        return fcntl.fcntl(raw, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    finally:
        os.close(raw)


def read(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The inherited memo; {} if there is none, or the descriptor is not a sealed memo of this program."""
    named = environ.get(VARIABLE, "")
    if not named:
        return {}
    import fcntl  # here: most clients have no memo

    seals = _seals()
    try:
        fd = int(named)
        if fd < 0 or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals != seals:
            return {}
        memo = quickjson.loads(os.pread(fd, min(os.fstat(fd).st_size, LIMIT), 0))
    except (ValueError, OSError):
        return {}
    return memo if isinstance(memo, dict) else {}


def renew(environ: Mapping[str, str], state: Mapping[str, object]) -> None:
    """Execute this program anew, as the same process with the same words. Raises OSError.

    Its environment is `environ`, and its memo is the one that this names, with `state` for the new program alone.
    """
    import sys

    from transport.this_build import same_command

    memo = read(environ)
    fd = write({**memo, "exec": {"pid": os.getpid(), **state}})
    os.set_inheritable(fd, True)
    if memo:
        os.set_inheritable(int(environ[VARIABLE]), False)  # nothing reads it any more
    argv = [*same_command(), *sys.argv[1:]]
    os.execve(argv[0], argv, {**environ, VARIABLE: str(fd)})


def renewed(memo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that this process has left to itself over an exec; {} if there is none."""
    state = memo.get("exec")
    return state if isinstance(state, dict) and state.get("pid") == os.getpid() else {}


def _seals() -> int:
    """Return the seals of a memo: nobody changes it, nor the seals."""
    import fcntl

    return fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def hold_standard_streams() -> None:
    """Open /dev/null at 0, 1 and 2 where they are closed: the next file or socket would take their numbers.

    Opened for reading, 1 and 2 as well: a write to a closed descriptor must fail as before.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)


def stand_first() -> None:
    """Say that this process is a job that a node has just made: nothing above it is of its tree."""
    global _first
    _first = os.getpid()


def stand_nowhere() -> None:
    """Say that this process, a fork of a job, belongs to none: it looks at processes of other trees, also that job."""
    global _first
    _first = 0


def stand_apart() -> None:
    """Say that this process is a daemon: nothing above it is of the trees of its descendants.

    A daemon is adopted by init, or by a process above it that adopts orphans. That one may hold the ledger of the tree
    in which somebody needed a node first. Any process can make this mark, see `held_above`.
    """
    os.memfd_create(APART, os.MFD_CLOEXEC)  # held until the end of this process


class MemoryFile(NamedTuple):
    """A memfd, as one process holds it."""

    pid: int
    inode: int
    path: str  # /proc/PID/fd/N

    @property
    def number(self) -> int:
        return int(self.path.rpartition("/")[2])

    def opened(self, flags: int) -> int:
        """Open it anew, as `reopened`. Raises OSError, also if the process has closed it since."""
        return reopened(self.path, flags, self.inode)

    def memo(self) -> dict[str, object]:
        """Return the memo that it is, as `read`; {} if the process has closed it since. Raises any other OSError."""
        try:
            fd = self.opened(os.O_RDONLY)
        except OSError as error:
            if closed_since(error):
                return {}
            raise
        try:
            return read({VARIABLE: str(fd)})
        finally:
            os.close(fd)


def held_above(*names: str, pid: int = 0, whole: bool = False, most: int = 0) -> dict[str, list[MemoryFile]]:
    """Memfds of these names that a process and its ancestors hold.

    The process is this one, unless `pid` is another.

    In order from the process to the top of its tree, which is below a daemon. It may have cleared its environment or
    closed its descriptors (`env -i`, Python's subprocess), or name something else; it still descends from holders of
    the true ones. A walk takes a millisecond or two. Raises Unseen.

    A command can mark itself as a daemon. So a mark ends no tree whose files are held on both sides of it: a true
    daemon has closed those of its starter, and its jobs get others. With `whole` it ends none: for a decision that is
    wrong without a file from above, and right with one of another tree. With `most` it raises Unseen where there are
    more descriptors: a command can hold very many.
    """
    left = most or float("inf")
    wanted = {link(name): name for name in names}
    parts: list[dict[str, list[MemoryFile]]] = [{name: [] for name in names}]  # and one for each mark
    for each, _ in ancestors(pid or os.getpid()):
        marked = False
        for target, path in _open_files(each):
            left -= 1
            if left < 0:
                raise Unseen(f"the processes above it hold more than {most} descriptors")
            marked = marked or target == link(APART)
            if target in wanted and (inode := _finished(path, target)):
                parts[-1][wanted[target]].append(MemoryFile(each, inode, path))
        if each == _first:
            break
        if marked and not whole:
            parts.append({name: [] for name in names})
    ours = parts[: _belonging(parts)]
    return {name: [one for part in ours for one in part[name]] for name in names}


def _finished(path: str, target: str) -> int:
    """Return the inode of a memfd, 0 if it is there no more, or its maker has not sealed it yet. Raises Unseen."""
    import fcntl

    try:
        fd = reopened(path, os.O_RDONLY, target=target)
    except OSError as error:
        # One that its process shows, and that cannot be opened: a command may have taken away its mode.
        pass_over(error, hidden=error.filename == path)
        return 0
    try:
        sealed = target == link(APART) or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
        return os.fstat(fd).st_ino if sealed else 0
    finally:
        os.close(fd)


def _belonging(parts: list[dict[str, list[MemoryFile]]]) -> int:
    """Return how many parts of a walk belong to the tree of the first one: to the last that shares a file with it."""
    inodes = [{each.inode for held in part.values() for each in held} for part in parts]
    shared = [at for at in range(1, len(parts)) if not inodes[at].isdisjoint(set().union(*inodes[:at]))]
    return 1 + max(shared, default=0)


def users_environment() -> dict[str, str]:
    """Return the environment in which the user has started this tree, or this process if it is in none.

    Not that of a command in it, whose PATH or HOME its agent may have chosen, and which may have marked itself as a
    daemon: the first agent above all was started by the user. The runtime directory is that of this process: one in
    another place is not the user's.
    """
    own, kept = dict(os.environ), "XDG_RUNTIME_DIR"
    while held := held_above(NAME, whole=True)[NAME][-1:]:
        try:
            with open(f"/proc/{held[0].pid}/environ", "rb") as file:
                entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
            os.lstat(held[0].path)  # one that has ended shows an empty environment
        except OSError as error:
            pass_over(error, hidden=False)
            continue  # then that of one which is above as well
        found = {name: value for name, given, value in entries if given}
        return {**found, **({kept: own[kept]} if kept in own else {})}
    return own


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield (target, path that opens it anew) of each descriptor; nothing for another user's process. Raises Unseen."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        pass_over(error, hidden=True)
        return
    for number in numbers:
        path = f"/proc/{pid}/fd/{number}"
        try:
            target = os.readlink(path)
        except OSError as error:
            pass_over(error, hidden=True)
            continue  # closed since
        yield target, path


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process a subreaper, or none: orphans below it become its children, not those of process 1.

    In many containers process 1 reaps nothing. The setting outlives an exec, and a fork does not inherit it. Without
    prctl(2) the orphans go to process 1.
    """
    prctl(PR_SET_CHILD_SUBREAPER, int(adopt))


def close_others(keep: set[int]) -> None:
    """Close inherited descriptors except `keep` and the standard streams: a daemon holds nothing of its starter."""
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and int(number) not in keep:
            try:
                os.close(int(number))
            except OSError:
                pass  # the descriptor of the listing itself

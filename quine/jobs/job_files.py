"""The files of detached jobs on this machine: their directories, the copies of their input, and their removal.

Laws
1. Input is copied whole into a file without a name before its job starts: its giver may be gone afterwards.
2. A directory is removed when its job has ended, and not before; not within a day, for its result may not be read yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

from quine.base import dirs
from quine.base.errors import LOST, NOT_STARTED, OK, USAGE, Failure, Misconfigured, need_stdin, say
from quine.base.sessions import is_session
from quine.tape import places
from quine.tape.registry import integer, lives, record, state_directory
from transport import inherit
from transport.errors import Refused
from transport.launcher import workdir
from transport.provenance import regular_file
from transport.writes import is_no_input, read_some, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quine.base.cli_options import RunOptions

COMMAND, AGENT, BATCH = "a command", "an agent", "a batch"  # kinds of jobs
MADE = "-detaching"  # suffix of the directory that a remote node makes for this verb
KEPT = 1000  # jobs that ended before today, at most
KEPT_DAYS = 30
DAY = 86400  # seconds
NEVER = float("inf")
ARGUMENT = 4096  # characters of one argument that the record of a command shows
COPY = 1 << 20
ENDLESS = 8 << 30  # bytes of a stream of input of a batch; more is taken to be endless
ENDLESS_HINT = "an endless input goes without --detach; a large one can be a file: -a FILE"


def directory_of(job: str) -> str:
    return os.path.join(state_directory(), "jobs", job)


def made_directory() -> str:
    """Return the directory of all jobs, which is made if it is not there. Raises Failure."""
    jobs = os.path.join(state_directory(), "jobs")
    try:
        dirs.make(jobs)
    except OSError as error:
        raise unwritable(error, jobs) from None
    return jobs


def alone(job: str, step: str = ".laying") -> None:
    """A step, as staging, is serialised per job id; a second caller blocks here and then finds the job started.

    The lock belongs to the process: it survives an exec, and the supervisor that is forked does not hold it.
    """
    jobs = made_directory()
    try:
        low = os.open(f"{jobs}/{step}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fd = fcntl.fcntl(low, fcntl.F_DUPFD, inherit.FIRST_FD)
        finally:
            os.close(low)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, int(job.replace("-", "")[-15:], 16))
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        here = os.environ.get("QUINE_NODE_NAME", "")
        raise Failure(NOT_STARTED, f"no lock for job {job} in {jobs}: {why}", host=here) from None


def own_directory(job: str, cwd: str, folder: str) -> tuple[str, int]:
    """Return the job's directory, and a descriptor that holds it, -1 if it was not made for jobs. Raises Failure.

    Its name is `folder` if the job was told of none. It is beside the one that a node made for this verb and removes
    after it, and is made and judged as that of any job. Its name is known before, so another user may have made it
    where others can write. The caller may be in it: a job of a node, or this verb after its files were laid out.
    """
    above, name = os.path.split(cwd)
    path = os.path.join(above, folder) if name == f"{job}{MADE}" else cwd
    if path == cwd and name not in (job, folder) and not ("token" in inherit.read() and is_session(name)):
        return cwd, -1
    try:
        return path, workdir.enter(path)
    except OSError as error:
        why = f"cannot make {path}: {error.strerror or error}"
        here = os.environ.get("QUINE_NODE_NAME", "")
        raise Failure(NOT_STARTED, why, "set workdir in the inventory", here) from None


def unwritable(error: OSError, jobs: str) -> Failure:
    """Return the failure of a write to the directory of all jobs. On a host it names the host."""
    why = f"the job cannot be put on record: {error.filename or jobs}: {(error.strerror or '').lower()}"
    return Failure(NOT_STARTED, why, "set XDG_STATE_HOME", os.environ.get("QUINE_NODE_NAME", ""))


def keep_mission(directory: str, mission: str) -> None:
    with open(regular_file.written(f"{directory}/mission", 0), "w", encoding="utf-8") as file:
        file.write(mission)


def tell(job: str) -> int:
    """Print the id of a job that runs."""
    try:
        print(job, flush=True)
    except OSError as error:
        runs = f"the job runs, and its id is {job}"
        if error.errno == errno.EPIPE:
            say(f"quine: hint: {runs}\n")
            raise
        raise Failure(LOST, f"cannot write stdout: {(error.strerror or '').lower()}", runs) from None
    return OK


def is_started(job: str) -> bool:
    """Return whether a job with this id is on record."""
    return os.path.exists(f"{directory_of(job)}/job")


def bound(options: RunOptions, job: str, kind: str) -> tuple[RunOptions, bool]:
    """Return the options with the host of this id of the caller's in place of WHERE, and whether it is noted just now.

    It is noted before anything is sent there: the answer may be lost with this process. The host of an agent is in the
    record of its proxy, which is here. Raises Misconfigured for an id that was started as another kind, or where WHERE
    does not reach. Other starts of it wait until this process has ended.
    """
    from deploy.inventory import opened
    from quine.base import allowed_hosts

    # A job of a node may be the verb of the caller of this very job.
    if not options.job or "token" in inherit.read():
        return options, False
    alone(job, ".starting")
    noted, mine = places.host_of(job), record(directory_of(job))
    here = not noted and mine.get("node") == os.uname().nodename
    where, place = options.on if options.elsewhere else "", str(mine.get("on") or "") if here else noted
    if here:
        if (kind_of(mine), place) == (kind, where):
            return options, False
    elif where != noted and where and kind != AGENT:
        try:
            known = allowed_hosts.naming(opened(allowed_hosts.find(options, os.environ)), options.on)
            if not noted:
                host = known.select(options.on, lambda hosts: [0] * len(hosts), pick=job).name
                places.note_host(job, host)
                return options.replace(on=host), True
            reached = noted in (host.name for host in known.matching(options.on))
        except (Refused, OSError, ImportError):
            return options, False  # the node tells it better
        if reached:
            return options.replace(on=noted), False
    elif not noted or (noted == where and kind != AGENT):
        return options, False
    what = f"sent to {place}" if place else "started on this machine"
    raise Misconfigured(
        f"job {job} was {what}{f' as {kind_of(mine)}' if here else ''}, and an id starts one job",
        f"quine wait {f'--on {noted} ' if noted else ''}{job}; for another job leave out --job",
    )


def kind_of(facts: Mapping[str, object]) -> str:
    """Return what a record is of."""
    return BATCH if facts.get("batch") is True else AGENT if facts.get("agent") is True else COMMAND


def there_already(job: str, kind: str) -> int:
    """Print the id of a job whose directory is there. Raises Failure if it is another kind, or was never started."""
    if is_started(job):
        if (other := kind_of(record(directory_of(job)))) != kind:
            why = f"job {job} was started as {other}, and an id starts one job"
            cure = f"quine wait {job}; for another job leave out --job"
            raise Failure(USAGE, why, cure, os.environ.get("QUINE_NODE_NAME", ""))
        return tell(job)
    raise Failure(
        NOT_STARTED,
        f"job {job} is being started by another process, or was never started",
        f"quine wait {job}",
    )


# -- input -----------------------------------------------------------------------------------------


def taken(jobs: str) -> int:
    """Copy our stdin into a file without a name; /dev/null if it is a terminal, not open for reading, or empty.

    Raises Failure if no more of it can be read, as of a file on a server: a part is not what the job is for.
    """
    if not os.isatty(0):
        try:
            fd = _copied(jobs, 0)
            if os.fstat(fd).st_size:
                return fd
            os.close(fd)
        except _Unreadable as error:
            if not is_no_input(0, error.cause):
                raise Failure(NOT_STARTED, f"cannot read stdin: {error}") from None
    return os.open(os.devnull, os.O_RDONLY)


def taken_whole(jobs: str, path: str) -> int:
    """Copy the input of a batch, - for stdin, a terminal's too, up to its end, into a file without a name.

    Raises OSError if that cannot be written, and Misconfigured if the input cannot be read or has no end.
    """
    name = "stdin" if path == "-" else path
    if path == "-":
        need_stdin()
    try:
        source = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Misconfigured(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    try:
        there = os.fstat(source)
        if stat.S_ISCHR(there.st_mode) and there.st_rdev in map(os.makedev, (1, 1, 1, 1), (5, 7, 8, 9)):
            raise Misconfigured(f"{name} has no end, and --detach takes its input over whole", ENDLESS_HINT)
        low = _copied(jobs, source, float("inf") if stat.S_ISREG(there.st_mode) else ENDLESS)
    except _Unreadable as error:
        raise Misconfigured(f"{name}: {error}") from None
    finally:
        if source:
            os.close(source)
    return raised(low)


def raised(low: int) -> int:
    """Return a descriptor at a number that no program expects, and close `low`, which it duplicates."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, inherit.FIRST_FD)
    finally:
        os.close(low)


class Inputs:
    """The inputs of a batch, copied whole.

    `argv_of` returns its command line; it gets a function that takes the path of an input, - for stdin, and returns
    the one from which the batch reads it.
    """

    def __init__(self, argv_of: Callable[[Callable[[str], str]], list[str]]) -> None:
        self._argv_of = argv_of
        self.stdin = -1
        self.fds: tuple[int, ...] = ()

    def take(self, jobs: str) -> list[str]:
        """Copy them, and return the command line. Raises as `taken_whole`."""

        def path_of(path: str) -> str:
            if path == "-" and self.stdin >= 0:
                return path
            fd = taken_whole(jobs, path)
            if path == "-":
                self.stdin = fd
                return path
            self.fds += (fd,)
            return f"/dev/fd/{fd}"

        argv = self._argv_of(path_of)
        if self.stdin < 0:
            self.stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return argv

    def keep(self, directory: str) -> None:
        """Write what the job needs beside its inputs into its directory. Raises OSError."""


class _Unreadable(Exception):
    """A read has failed: `cause`."""

    def __init__(self, cause: OSError) -> None:
        super().__init__((cause.strerror or "cannot be read").lower())
        self.cause = cause


def nameless(jobs: str) -> int:
    """Open a new file without a name."""
    path = os.path.join(jobs, f".stdin.{os.getpid()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def _copied(jobs: str, source: int, most: float = float("inf")) -> int:
    """Copy all that `source` gives into a file without a name, and return it, at its beginning."""
    fd = nameless(jobs)
    try:
        size = 0
        while data := _read(source):
            write_all(fd, data)
            size += len(data)
            if size > most:
                what = f"more than {int(most) >> 30} GiB of input came, and --detach takes it over whole"
                raise Misconfigured(what, ENDLESS_HINT)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read(source: int) -> bytes:
    try:
        return read_some(source, COPY)
    except OSError as error:
        raise _Unreadable(error) from None


# -- garbage ---------------------------------------------------------------------------------------


def collect(jobs: str) -> None:
    """Remove jobs that ended a month ago, and of those that ended before today the oldest, if there are too many."""
    names = sorted(name for name in os.listdir(jobs) if is_session(name))
    now = time.time()
    month, day = now - KEPT_DAYS * DAY, now - DAY
    # Ids sort by the time of their start.
    if not names or (len(names) <= KEPT and _begun(names[0]) > month):
        return
    ended: list[tuple[float, str]] = []
    for name in names:
        with contextlib.suppress(OSError):
            if (end := _end_of(f"{jobs}/{name}", _begun(name) < month)) < day:
                ended.append((end, name))
    ended.sort()
    for at, (end, name) in enumerate(ended):
        if end < month or at < len(ended) - KEPT:
            remove(f"{jobs}/{name}")


def _begun(name: str) -> float:
    """Return the time at which an id was made."""
    return (int(name[:8], 16) << 16 | int(name[9:13], 16)) / 1000


def _end_of(directory: str, old: bool) -> float:
    """Return the time at which a job ended: of its status; of an `old` one that is lost here, of its last sign of life.

    Another machine may have the name of this one, and this home. The supervisor there touches the record (`note_use`).
    """
    try:
        return os.stat(f"{directory}/status").st_mtime
    except FileNotFoundError:
        job = record(directory) if old else {}
        mine = job.get("node") == os.uname().nodename
        if not mine or lives(integer(job.get("supervisor")), integer(job.get("supervisor_started"))):
            return NEVER
        return max(os.stat(f"{directory}/{name}").st_mtime for name in ("job", "stdout", "stderr"))


def remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def quoted(word: str) -> str:
    """Quote an argument for people as a shell does, cut to ARGUMENT characters."""
    plain = word and all(c.isalnum() or c in "%+,-./:=@_" for c in word)
    text = word if plain else "'" + word.replace("'", "'\\''") + "'"
    return text[:ARGUMENT].encode("utf-8", "backslashreplace").decode()


def command_text(words: list[str]) -> str:
    """Return a command line for people."""
    return " ".join(map(quoted, words))

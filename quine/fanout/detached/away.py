"""`quine xargs --detach --from HOST`: the batch as a detached job of a host, with all of its input sent there.

Laws
1. The command line means there what it would mean if it were typed there, in the home directory, but for the hosts of
   --on: those are the hosts of this machine's inventory, as `deploy.onward` has them.
2. No key goes there, and no variable that --env does not name. Agents need keys, so they are refused.
3. All of the input is taken before anything is sent: the batch starts whole or not at all.
"""

from __future__ import annotations

import os
import threading

from quine.base.cli_options import RunOptions, as_words, environment
from quine.base.errors import Misconfigured
from quine.base.sessions import is_session, new_session
from quine.fanout.detached.here import command_line
from quine.jobs.detach import send, supervisor_quota, verb_there
from quine.jobs.job_files import BATCH, bound, made_directory, taken_whole
from transport import quickjson
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deploy.host import Host
    from quine.fanout.options import Options

THEIRS = ("on", "inventory")  # options that are resolved here
MARK = "\0"  # on both sides of the number of an input in the command line, or of HOSTS
HOSTS = "hosts"  # the inventory
COPY = 1 << 18


def detach_at(options: Options, words: list[str], shown: str, mission: bool) -> int:
    """Start the batch at a host, which prints its id. Return the exit status."""
    if mission:
        raise Misconfigured(
            "--from is for commands: agents of a batch need the keys of this machine, which stay here",
            "leave --from out; their places are chosen by --on",
        )
    job = options.spawn.job or new_session()
    if not is_session(job):
        raise Misconfigured(f"--job {job[:80]!r} is not a UUID in lower case", "leave it out")
    supervisor_quota(options.spawn)
    start, tables, more = _hosts(options)
    taken = _Taken(made_directory())
    argv = command_line(options, words, mission, taken.path_of, THEIRS, more)
    head = quickjson.dumps({"argv": argv, "hosts": tables, "inputs": taken.sizes}).encode() + b"\n"
    _, first = bound(options.spawn.replace(on=start.name), job, BATCH)
    return _send(options, start, job, first, shown, head, taken.fds)


def _hosts(options: Options) -> tuple[Host, dict[str, object], list[str]]:
    """Return the host of --from, the inventory for it, and the options by which the batch uses that.

    Raises Misconfigured and NoSuchHost.
    """
    from deploy.onward import tables
    from quine.base.allowed_hosts import known

    inventory = known(options.spawn)
    starts = inventory.matching(options.spawn.from_)
    if len(starts) > 1:
        names = ", ".join(host.name for host in starts[:8])
        raise Misconfigured(f"--from {options.spawn.from_} means {len(starts)} hosts", f"name one of {names}")
    (start,) = starts
    chosen = inventory.matching(options.spawn.on) if options.spawn.elsewhere else []
    if not any(host.name != start.name for host in chosen):
        bound = [f"--jobs={start.slots}"] if start.slots and not options.jobs else []
        return start, {}, bound
    return start, tables(start, chosen, inventory), ["--on=any", f"--inventory={MARK}{HOSTS}{MARK}"]


class _Taken:
    """The inputs, copied whole. `path_of` puts a mark with a number in the place of a path, which the host replaces."""

    def __init__(self, jobs: str) -> None:
        self._jobs = jobs
        self.fds: list[int] = []
        self.sizes: list[tuple[str, int]] = []  # with "-" for stdin

    def path_of(self, path: str) -> str:
        if path == "-" and any(name == path for name, _ in self.sizes):
            return path
        fd = taken_whole(self._jobs, path)
        self.fds.append(fd)
        self.sizes.append((path if path == "-" else "", os.fstat(fd).st_size))
        return path if path == "-" else f"{MARK}{len(self.fds) - 1}{MARK}"


def _send(
    options: Options, start: Host, job: str, first: bool, shown: str, head: bytes, fds: list[int]
) -> int:
    """Run the verb that starts the batch over there, with the command line and the inputs as its stdin."""
    limit = as_words(options.spawn, ["output-limit"])
    words = ["xargs", "--sent", f"--job={job}", *limit, "--", shown]
    spawn = verb_there(words, start.name, options.spawn)
    passed = options.spawn.replace(env=tuple(name for name in options.spawn.env if "=" not in name))
    spawn.env = environment(passed, os.environ)
    spawn.cwd, spawn.context["home"] = None, True  # the same path as here, where the inventory says so
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)
    threading.Thread(target=_pour, args=(write, head, fds), daemon=True).start()
    quiet = RunOptions(quiet=options.spawn.quiet, verbose=options.spawn.verbose)
    return send(spawn, job, first, quiet, "--from")


def _pour(write: int, head: bytes, fds: list[int]) -> None:
    """Write all of it into the pipe; the other end closes it if the verb over there has ended."""
    try:
        write_all(write, head)
        for fd in fds:
            while data := os.read(fd, COPY):
                write_all(write, data)
    except OSError:
        pass
    finally:
        os.close(write)

"""The caller's side of staging: it has the files, and the returns appear here.

Laws
1. Staging wraps the remote job: it lays out the files, and then becomes the command. A separate job sends the returns
   after the command has exited or was killed.
2. A result that --returns names is here whole, or on its host and said to be there. If it does not come, it is asked
   for again; then the job is lost, whatever its own end. A job that was ended by its caller, or by its deadline, brings
   nothing: a part of a result would replace a finished one.
3. A command without --files and --returns loads none of this. Modules that sending the job does not need are loaded
   while it is in transit.
"""

from __future__ import annotations

import os
import time
from copy import copy

from quine.base import backoff
from quine.base.errors import DEADLINE, FAILED, LOST, NOT_STARTED, Misconfigured, say
from quine.base.text import shown_path
from quine.files import exclusions
from quine.staging import scan, spec
from quine.staging.returns_limit import Bound
from transport.client import client
from transport.lean import signal
from transport.spawn import Spawn
from transport.status import Status, clip, signal_name, signal_number
from transport.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from quine.files.select import Services
    from quine.staging.files_sender import Giving, Others
    from quine.staging.notes import Claim
    from quine.staging.returns_receiver import OnPut, Taking
    from transport.rpc.incoming import Incoming

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 4.0
SOONEST = 60.0  # seconds for which a host may say nothing, also when the deadline of its job is over


def still_there(place: str) -> str:
    """Return the hint about results in a directory of a host, which may have any name."""
    return f"the results are still on the host, in {shown_path(harmless(place))}"


def pause_of_returns(failed: int) -> float:
    """Return the seconds after which returns that were cut so many times are asked for again."""
    return backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE)


class Staging:
    """The files and returns of one job; `folder` is the caller's directory. Raises Misconfigured for a bad name."""

    tries = 5  # for returns that are cut; this machine's node dials the host anew for each

    def __init__(
        self,
        files: list[str],
        returns: list[str],
        folder: str,
        data_dir: str = "",
        limit: str = "",
        own: Collection[bytes] | None = None,
        obeys: Iterable[str] = (),
    ) -> None:
        """`limit` is that of the option --returns-limit; `own`: files that the caller writes (`spec.written`).

        `obeys`: files that it obeys, besides those that its environment names.
        """
        self._folder = os.path.abspath(folder)
        self._bounds: dict[bytes, tuple[bytes, ...]] = {}  # of those that only match a pattern
        self.sources = spec.sources(files, self._folder, self._bounds)  # (path, name over there)
        self.inputs = [path for path, _ in self.sources]  # files of the caller that the job reads
        self.on_put: OnPut | None = None  # see `Taking`, also of the next one
        self.withholds: Callable[[], bool] | None = None
        self.lasting = False
        self.came: list[str] | None = None  # names of what came, once that is known
        self.place = ""  # directory there of results that were left, as a run before has noted it
        # Those in `sources`, or below one, that other jobs do not have.
        self.alone: list[tuple[bytes, bytes]] = []
        self.varying: list[str] = []  # those of `patterns` that other jobs do not have
        self.around: Others | None = None  # results of other jobs in the directory of this one
        self._returns = spec.returns(returns)
        self._bound = Bound(limit) if returns else None
        self._data_dir = os.path.join(self._folder, data_dir) if data_dir else ""
        self._own = spec.written() if own is None else own
        self._obeyed = exclusions.located([*obeys, *exclusions.named_files(os.environ)]) if returns else []
        self.key = scan.key_of(*(name for _, name in self.sources))  # of the record on the remote host
        self._giving: Giving | None = None
        self._moves = True

    def moving(self) -> Staging:
        """Return the staging of a job elsewhere.

        Raises Misconfigured for results that would go through a link, or replace a file that the caller writes
        or obeys.
        """
        folder = os.fsencode(self._folder)
        kept = (self._own, "this command writes there itself"), (self._obeyed, "quine obeys that file here")
        for pattern in self._returns:
            spec.check_way(pattern, self._folder)
            text = spec.text_of(pattern)
            for paths, why in kept:
                names = spec.names_below(paths, folder)
                if any(exclusions.naming(name, [text, spec.name_of(pattern) or ""]) for name in names):
                    raise Misconfigured(
                        f"--returns {text}: {why}, and the result would replace that",
                        "another name for one of the two",
                    )
        return self

    def in_place(self, files: Sequence[str]) -> Staging:
        """Return the staging of a job in the caller's directory: nothing moves. Raises Misconfigured for FROM:NAME."""
        spec.check_names(files, self._folder)
        found = copy(self)
        found._moves, found.sources = False, []
        return found

    def run(
        self,
        spawn: Spawn,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        *,
        services: Services | None,
        claim: Claim | None = None,
        **more: Any,
    ) -> Status:
        """Run a job by `client.run`; stage its files before it starts, and fetch its returns after it has ended.

        With a `claim` it is in a race: its returns come only if it is the winner.
        """
        job = self.dressed(spawn, services)
        if self.sources:
            more["on_sent"] = self.begin
        told: list[int] = []
        begun = time.monotonic()
        status = self.judged(client.run(job, stdin, stdout, stderr, services, on_fatal=told.append, **more))
        if not self.brings(status):
            return status
        late = spawn.deadline and status.code == DEADLINE and status.detail
        if number := next((each for each in told if each != signal.SIGINT or status.code), 0):
            self.leave(status, job, number)  # a job that succeeds after a ^C has gone on, and is finished
        elif late or (status.code and claim):
            self.leave(status, job)
        else:
            left = spawn.deadline - (time.monotonic() - begun) if spawn.deadline else None
            self.bring(self.sender(job, status), status, stderr, claim, left)
        return status

    def dressed(self, spawn: Spawn, services: Services | None) -> Spawn:
        """Return the job that lays out the files and then becomes that of `spawn`. `services` answer its requests."""
        self._giving = None
        job = Spawn(**spawn.to_json())
        if self.sources:
            phase = "agent" if spawn.own else "in"
            # A directory made for this job alone is never staged again, so it needs no record.
            key = scan.ONCE if job.cwd is None and job.directory == job.id else self.key
            job.argv = ["node", "--stage", phase, key, "--", *spawn.argv]
            job.own = True
            assert services, "whoever gives files answers requests"
            services.offer("stage", self._given)
            if self.around:
                self.around.where = services.where
        return job

    def judged(self, status: Status) -> Status:
        """Return how the job has ended, or that it was not started because it could not have its files."""
        giving = self._giving
        if giving and giving.failure and (status.state, status.code) == ("exited", NOT_STARTED):
            host = "" if giving.is_ours else status.host  # "": no host is to blame, and none would have them
            return Status("unreachable", NOT_STARTED, host=host, detail=giving.failure, hint=giving.cure)
        if not self._moves and status.state in ("exited", "signaled"):
            self._look(status)
        return status

    def _look(self, status: Status) -> None:
        """The job ran here: look for its results, and put the error of those that are not here into `status`."""
        from quine.staging.content import error_text
        from quine.staging.source import check_read

        missing = spec.matching(self._returns, self._folder)[1]
        try:
            check_read(missing, self._folder)
        except OSError as error:
            self.lose(status, f"--returns {', '.join(map(spec.text_of, missing))}: {error_text(error)}")
        else:
            self._spoil(status, spec.not_there(missing))

    def brings(self, status: Status) -> bool:
        """Whether there are files to be brought back."""
        return self.returns and status.state in ("exited", "signaled")

    @property
    def returns(self) -> bool:
        """Whether the job is to return files."""
        return self._moves and bool(self._returns)

    @property
    def patterns(self) -> list[str]:
        """The names and patterns there of the files that the job is to return."""
        return self._returns if self._moves else []

    @property
    def is_in_place(self) -> bool:
        """Whether the returns may replace the files that the job reads, or something in them."""
        # A link that is named is read, and its target may be what is replaced.
        paths = {found for path in self.inputs for found in (spec.located(path), os.path.realpath(path))}
        folder = os.path.realpath(os.fsencode(self._folder))
        names = [spec.name_below(path, folder) for path in paths]
        words = [spec.literal(os.fsdecode(name) or ".") for name in names if name is not None]
        return any(spec.overlap(pattern, word) for pattern in self._returns for word in words)

    def leave(self, status: Status, job: Spawn, number: int = 0) -> None:
        """Leave the returns of a job where they are, and say so in its status.

        `number`: the signal that it was told to end by, which has ended it, whatever else it says.
        """
        if not status.pid:
            return  # it never ran
        if number and not status.code:
            status.state, status.signal, status.code = "signaled", signal_name(number), 128 + number
        self.unfinished(status)
        # A directory of its own is `left` if anything is in it.
        shared = "" if job.directory == job.id else job.directory
        if not status.hint and (place := status.left or job.cwd):
            status.hint = still_there(place)
        elif not status.hint and shared:
            status.hint = f"{still_there(shared)} in its workdir (~/quine, if the inventory names no other)"

    def sender(self, job: Spawn, status: Status) -> Spawn:
        """Return the job that sends the returns of `job`."""
        return Spawn(
            self.out,
            own=True,
            where=status.host or job.where,
            env=job.env,
            cwd=job.cwd,
            tree=job.tree,
            folder=job.folder,
            lease=job.lease,
            context={**job.context, "control": True},
        )

    def begin(self) -> None:
        """The job is on its way: prepare its files, in a thread."""
        if self.sources:
            self._giving = self.giving()
            self._giving.look_ahead()

    def _given(self, incoming: Incoming) -> None:
        assert self._giving  # the first request comes after the job was sent
        self._giving.given(incoming)

    def giving(self) -> Giving:
        """Return the sender of one job."""
        from quine.staging.files_sender import Giving, Matched

        named = [part for pair in self.sources for part in pair]
        leave_out = scan.identity(self._data_dir) if self._data_dir else None
        given = Matched(self.sources, leave_out, self._written(), self._bounds)
        return Giving(given, scan.key_of(*named), self.around)

    def _written(self) -> list[str]:
        """Return the names over there of files that the caller writes, in the directories of --files."""
        return [
            os.path.join(os.fsdecode(name), each)
            for path, name in self.sources
            for each in spec.names_below(self._own, path)
        ]

    def taking(self, claim: Claim | None = None) -> Taking:
        """Return the receiver of one job."""
        from quine.staging.returns_receiver import Taking

        ours = os.path.relpath(self._data_dir, self._folder) if self._data_dir else ""
        folder = os.fsencode(self._folder)
        own = spec.names_below(self._own, folder)
        taking = Taking(self._returns, folder, ours, claim, self._bound, own, self._obeyed)
        taking.on_put, taking.withholds, taking.lasting = self.on_put, self.withholds, self.lasting
        return taking

    @property
    def out(self) -> list[str]:
        """The command that sends the returns. With a detached job's id appended, it uses that job's directory."""
        return ["node", "--stage", "out", self.key]

    def bring(
        self,
        out: Spawn,
        status: Status,
        stderr: int = 2,
        claim: Claim | None = None,
        left: float | None = None,
    ) -> str:
        """Fetch the returns by the job `out`; put errors into `status`. `left` are the seconds until its deadline.

        Those end no transfer, but a host that says nothing is not waited for much longer. Return the signal that this
        process was told to end by meanwhile, or "".
        """
        place = ""
        for failed in range(1, self.tries + 1):
            taking = self.taking(claim)
            taking.place = place
            if left is not None:
                taking.patience = min(taking.patience, max(left, SOONEST))
            taking.bring(out, stderr)
            place = taking.place
            if not taking.is_cut or failed == self.tries:
                break
            time.sleep(pause_of_returns(failed))
            out.id = os.urandom(16).hex()
        self.brought(taking, status)
        say(taking.note(status.host), stderr)
        return taking.signal

    def brought(self, taking: Taking, status: Status) -> None:
        """Put the error of returns that did not come, if any, into `status`."""
        if not taking.failure:
            self.came = taking.came
            self._spoil(status, spec.not_there(taking.missing))
            return
        if taking.stopped:
            self.unfinished(status, taking.stopped)
            return
        end = f"it was killed by {status.signal}" if status.signal else f"it exited with {status.code}"
        self._add(status, f"{end}, and {taking.fault}" if status.code else taking.fault)
        if taking.beaten:
            status.code = status.code or FAILED
        elif taking.signal:
            number = signal_number(taking.signal)
            status.state, status.code, status.signal = "signaled", 128 + number, taking.signal
        else:
            self.lose(status)
        if not status.hint and (place := taking.place or status.left):
            more = "; --returns-limit SIZE,NAMES, 0 = no limit" if taking.is_too_much else ""
            status.hint = f"{still_there(place)}{more}"

    @classmethod
    def unfinished(cls, status: Status, place: str = "") -> None:
        """The job was stopped, whatever it says, and its returns stay in `place`."""
        if not status.code:
            status.state, status.code, status.signal = "signaled", 128 + signal.SIGTERM, "TERM"
        cls._add(status, "it was not to finish, and nothing was brought back")
        if place and not status.hint:
            status.hint = still_there(place)

    @classmethod
    def lose(cls, status: Status, why: str = "") -> None:
        """The returns do not come, and are not asked for again if there is a reason `why`."""
        cls._add(status, why)
        status.state, status.code, status.signal = "lost", LOST, None

    def brought_before(self, status: Status, code: int) -> None:
        """The process before brought the returns, and noted the exit status `code` with them."""
        if code and not status.code:
            self._spoil(status, "some of --returns were not there to be brought back")

    @classmethod
    def _spoil(cls, status: Status, fault: str) -> None:
        if fault:
            cls._add(status, fault)
            status.code = status.code or FAILED

    @staticmethod
    def _add(status: Status, fault: str) -> None:
        status.detail = clip("; ".join(filter(None, [status.detail, fault])))

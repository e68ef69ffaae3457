"""The receiver of --returns: it accepts only the files asked for, and all of them appear here, or none.

Laws
1. Received names are checked against the request, and files are created in a private directory. They are renamed into
   place after the sending job has ended. Names that quine or git would obey here come only if the request names them,
   and files that this process writes itself do not come.
2. A separate process does the renames, out of reach of signals that kill this one. If it is killed then they are
   finished here, and reported as done if nothing is left of them.
3. A handler that outlives the sending job accepts nothing more, and does not wait for its words.
4. The umask holds: a file that is 0777 on a host is open to nobody whom the user keeps out.
5. A host that sends no byte for `patience` seconds, while this end waits for it, is given up. It may read all of the
   results for their digests before it sends the first byte. Before it has begun to send them it may have to be dialled:
   that has START seconds, after which they may be asked for again.
6. A host may test guesses: a file that is here already is not asked for. So a sending job has no more conversations
   than an honest one needs, whose files change meanwhile, and each tests one guess of a file that was asked for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import compress

from quine.base import procs
from quine.files.exclusions import OBEYED, Kept, Places, left_out, obeyed_here, written_here
from quine.staging import content, notes, scan, spec
from quine.staging.apply import Layout
from quine.staging.content import (
    KNOWN,
    Broken,
    CountedLine,
    Cut,
    Feed,
    Heard,
    error_text,
    listed,
    place_of,
    tell,
    text_field,
)
from quine.staging.manifest import IMPLIED, BadManifest, Manifest, digest_of, names_in, parse, shown
from quine.staging.renames import is_unfinished, recover
from quine.staging.returns_limit import Bound, TooMuch
from quine.staging.source import bits
from transport.client import client
from transport.client.overtime import GRACE, NEVER
from transport.client.time_limits import LOOK, START, Patience
from transport.errors import Abandoned, RequestError
from transport.rpc.incoming import Streaming
from transport.status import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from quine.staging.notes import Claim
    from transport.rpc.incoming import Incoming
    from transport.spawn import Spawn
    from transport.status import Status

    # Called with the names that are about to be replaced, and the paths of what comes. Returns an error, or "".
    OnPut = Callable[[Iterator[tuple[bytes, bytes]]], str]


EVERY = 10.0  # seconds until a folder is looked through again for what killed processes have left
# When that is due, by folder: a batch has its results in one, with all those of the batches before.
_looked: dict[bytes, float] = {}
_named: set[tuple[bytes, str]] = set()  # names that this process has said to be left alone, or its own


class Taking:
    """Receives the files that match `returns` into `folder`. `ours` is quine's own directory there, or empty."""

    def __init__(
        self,
        returns: list[str],
        folder: bytes,
        ours: str,
        claim: Claim | None = None,
        bound: Bound | None = None,
        own: Sequence[str] = (),
        obeyed: Sequence[bytes] = (),
    ) -> None:
        """With a `claim` the files appear only if it can be taken, and nothing that was asked for is missing.

        `own`: names of files that the caller writes; `obeyed`: paths of those that it obeys.
        """
        self._returns, self._folder, self._claim = returns, folder, claim
        self._bound = bound or Bound()
        self._kept = Kept(folder, own, obeyed)
        self._places = Places(
            {*OBEYED, ours} - {"", *self._kept.names}, deep=True
        )  # that a pattern has to name
        self._turn = threading.Lock()
        self._over = False
        self._conversations: dict[Incoming, None] = {}  # whose handlers have no end yet
        self._heard = Heard()
        self._begun = False  # a job that sends them is heard
        self._rounds = 0  # conversations so far
        self.patience = self._bound.patience
        self.late = False  # its host was silent for longer than that
        self.layout: Layout | None = None
        self.failure = "nothing came"
        self.is_too_much = False  # of what is within the limit, nothing came either
        self.place = ""  # directory of the sending job, as it is: the next may be started in it
        self.signal = ""  # the signal that this process was told to end by meanwhile
        self.stopped = ""  # the directory of a job that was not to finish: they stay where they are
        self.beaten = False  # the claim was not to be had, or they are withheld: they stay where they are
        self._settled = False  # the failure is none of the way here, and would be the same again
        self.missing: list[str] = []
        self.came: list[str] = []  # the topmost names of what came
        self.foreign: list[str] = []  # private directories here that are not the user's
        # Files that stayed, as they are newer than results in the private directory of a killed process.
        self.newer: list[tuple[bytes, bytes]] = []
        self.left_out: list[str] = []  # places at which the job has something that no pattern names
        self.written: list[str] = []  # files of the caller that the job has, too
        self.obeyed: list[str] = []  # files of that kind that quine obeys here
        self.on_put: OnPut | None = None
        self.lasting = False  # they are on the disk before they are here: the copy on their host is to go
        self.withholds: Callable[[], bool] | None = None  # with some missing: whether all stay there

    def bring(self, out: Spawn, stderr: int) -> None:
        """Fetch the returns by the sending job `out`."""
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self.begin()
            self._quiet = Patience(START, None, time.monotonic())
            services, told, left = self.services, self._told, self._left
            self.end(client.run(out, null, null, stderr, services, on_fatal=told, left=left))
        except Exception as error:
            # Our own error, or Refused: the command has ended all the same, and its status must be reported.
            self.failure = str(error)
        finally:
            os.close(null)
            self.close()

    def begin(self) -> None:
        """Finish what an earlier process has left. Raises OSError."""
        now = time.monotonic()
        if now >= _looked.get(self._folder, now):
            self.foreign = recover(self._folder, self.newer)
            _looked[self._folder] = time.monotonic() + EVERY

    @property
    def services(self) -> dict[str, Streaming]:
        """The services of the sending job."""
        return {"stage": Streaming(self.taken)}

    def heard(self) -> object:
        """Return another value than before if bytes have come, or if this end is at work."""
        return self._heard.value

    def _left(self) -> float:
        """Return the seconds until the sending job is to be ended, as `client.run` asks for them; a few at most."""
        left = self._quiet.left(time.monotonic(), 2 * (LOOK + GRACE))
        self.late = self._begun and left <= 0
        return min(left, LOOK) if left > 0 else -NEVER

    def end(self, ended: Status) -> None:
        """The sending job has ended: put in place what came."""
        self._hang_up()
        if self.signal:
            self.failure = f"this process was ended by {self.signal}"
        elif self.layout and not self.failure:
            self._settled = True
            self._put(self.layout)
        elif self.failure and self.late:
            self._settled = True
            self.failure = f"their host was silent for {self.patience:g} s"
        elif self.failure and ended.state != "exited":
            self.failure = ended.detail or f"killed by {ended.signal}"

    def _put(self, layout: Layout) -> None:
        if self.missing and self.withholds and self.withholds():
            self.beaten, self.failure = True, spec.not_there(self.missing)
            return
        if self._claim and (self.missing or not self._claim.take()):
            self.beaten = True
            self.failure = spec.not_there(self.missing) or "another has won the race"
            return
        self.failure = (self.on_put and self.on_put(layout.arrivals())) or _apart(layout, self._folder)
        if self.failure and self._claim:
            self._claim.give_back()

    def _told(self, number: int) -> None:
        self.signal = signal_name(number)

    @property
    def is_cut(self) -> bool:
        """Whether nothing came, and another try may bring it."""
        return bool(self.failure) and not (self._settled or self.signal)

    def close(self) -> None:
        """Take nothing more."""
        self._hang_up()
        with self._turn:
            if self.layout:
                self.layout.close()
                self.layout = None

    def _hang_up(self) -> None:
        """Take nothing more; the handler that has the turn waits no longer for a host that may say nothing."""
        self._over = True  # first: a handler that begins now sees it
        for incoming in list(self._conversations):
            incoming.abandon("the job that sends them has ended")
        with self._turn:
            pass

    @property
    def fault(self) -> str:
        """The error, or "" if there is none."""
        if self.failure:
            return f"the files cannot be brought back: {self.failure}"
        return spec.not_there(self.missing)

    def note(self, host: str) -> str:
        """Return the lines about what was left out and left alone; "" if nothing was."""
        text = left_out(self.left_out, lambda place: f"--returns {place}")
        text += ", or a file that tar makes there" if any("/" in place for place in self.left_out) else ""
        text = f"{host}: {text}" if text and host else text
        own = written_here(self._new(self.written)), obeyed_here(self._new(self.obeyed))
        foreign = notes.left_alone(self._new(self.foreign))
        stay = notes.newer([name for _, name in self.newer]) if self.newer else ""
        return "".join(f"quine: {each}\n" for each in (text, *own, foreign, stay) if each)

    def _new(self, names: list[str]) -> list[str]:
        """Return those names here that this process has not named yet."""
        found = [name for name in names if (self._folder, name) not in _named]
        _named.update((self._folder, name) for name in found)
        return found

    def taken(self, incoming: Incoming) -> None:
        """Answer one request `stage` of the sending job."""
        self._conversations[incoming] = None
        if not self._begun:
            self._quiet = Patience(self.patience, self.heard, time.monotonic())
            self._begun = True
        try:
            self._in_turn(incoming)
        finally:
            del self._conversations[incoming]

    def _in_turn(self, incoming: Incoming) -> None:
        with self._turn:
            if self._over:
                raise Broken("nothing is taken any more")
            line = CountedLine(incoming, self._heard)
            with self._heard:
                self._take(line)

    def _take(self, incoming: CountedLine) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if asked.get("say") == "failed":
                self.failure, self._settled = text_field(asked, "why"), True
                self.stopped = place_of(asked, "stopped")
                return
            if asked.get("say") != "out":
                raise Broken("nothing is given here any more")
            self._rounds += 1
            if self._rounds > content.ROUNDS:
                raise Broken(f"their job has tried more than {content.ROUNDS} times")
            self.place = place_of(asked)
            self.failure, self._settled = "nothing came", False  # until this conversation succeeds
            without, own = self._places.names, self._kept.names
            tell(incoming, {"returns": self._returns, "without": without, "own": own})
            message, packed = feed.hear(self._bound.manifest)
            self._bound.check_names(names_in(packed))
            if digest_of(packed) != message.get("tree"):
                raise Broken("another manifest than was announced")
            manifest = parse(packed, whole="." in self._returns)
            self._check(manifest)
            self._mask(manifest)
            self.came = [os.fsdecode(name) for name in manifest.roots if name]
            self.missing = listed(message, "missing", set(self._returns).__contains__)
            self.left_out = listed(
                message, "left", lambda name: self._places.at(name) == name not in self._kept.names
            )
            self.obeyed = listed(message, "left", self._kept.obeyed.__contains__)
            self.written = listed(message, "left", set(own).difference(self._kept.obeyed).__contains__)
            self._lay_aside(manifest, incoming, feed)
            tell(incoming, {"say": "done"})
            self.failure = ""
        except TooMuch as error:
            self.failure, self.is_too_much, self._settled = str(error), True, True
            raise RequestError(KNOWN + self.failure) from None
        except (BadManifest, Broken) as error:
            self._settled = not isinstance(error, Cut)
            self.failure = f"the received files were refused: {error}"
            raise RequestError(KNOWN + self.failure) from None
        except Abandoned as error:
            self.failure = str(error)
            raise
        except OSError as error:
            self._settled = True
            self.failure = error_text(error)
            raise RequestError(KNOWN + self.failure) from None

    def _check(self, manifest: Manifest) -> None:
        """Raise BadManifest unless it holds only the names asked for, and the directories above them."""
        returns, places = self._returns, self._places
        firsts = {os.fsdecode(name.partition(b"/")[0]) for name in manifest.names}
        met = places.any_obeyed(b"\n".join(manifest.names)) or any(places.begin(first) for first in firsts)
        if self._kept.names and any(self._kept.places.begin(first) for first in firsts):
            for index, name in enumerate(manifest.names):
                if why := self._kept.fault(name, manifest.is_directory(index)):
                    raise BadManifest(f"{shown(name)} {why}")
        allowed = [
            spec.allowed(name, spec.heeded(name, returns, places) if met else returns)
            for name in manifest.names
        ]
        leading: set[bytes] = set()
        for name in compress(manifest.names, allowed):
            while (name := name.rpartition(b"/")[0]) and name not in leading:
                leading.add(name)
        for index, name in enumerate(manifest.names):
            if name[: len(scan.ASIDE)].lower() == scan.ASIDE:
                raise BadManifest(f"{shown(name)} is quine's own")
            leads = manifest.is_directory(index) and manifest.modes[index] & IMPLIED and name in leading
            if not (allowed[index] or leads):
                raise BadManifest(f"{shown(name)} was not asked for")
        self._bound.check_bytes(manifest)

    def _mask(self, manifest: Manifest) -> None:
        mask = procs.umask() or 0
        for index, mode in enumerate(manifest.modes):
            if manifest.is_file(index) or manifest.is_directory(index):
                manifest.modes[index] = mode & ~mask

    def _lay_aside(self, manifest: Manifest, incoming: CountedLine, feed: Feed) -> None:
        if self.layout:  # of an interrupted conversation
            self.layout.close()
            self.layout = None
        base = self._folder
        here = scan.scan([(os.path.join(base, root) if root else base, root) for root in manifest.roots])
        there = here.by_name()
        for name in manifest.names if self._kept.inodes else ():
            if name in there and self._kept.is_obeyed(name, scan.FACTS.unpack(there[name])[0]):
                raise BadManifest(f"{shown(name)} is another name of a file that quine obeys here")
        layout = self.layout = Layout(base, manifest, there, {})
        layout.lasting = self.lasting
        wanted = layout.wanted()
        layout.open()
        if wanted:
            tell(incoming, {"say": "want"}, bits(list(wanted.values()), len(manifest)))
        layout.fill(feed, set(wanted), None, None)


def _apart(layout: Layout, folder: bytes) -> str:
    """Rename everything into place in a child process. Return the error, or "" if there is none.

    The child has its own session: a signal that kills this process or its group leaves no partial result.
    """
    read, write = os.pipe()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                why = ""
                try:
                    layout.commit(undo=True)
                except OSError as error:
                    why = error_text(error) or "it cannot be renamed"
                except Exception as error:
                    why = repr(error)
                os.write(write, b"." + os.fsencode(why)[:4000])
                if not why:
                    layout.close()
            finally:
                os._exit(0)
        os.close(write)
        write = -1
        with open(read, "rb", closefd=False) as file:
            answer = file.read()
        os.waitpid(pid, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)
    begun, place = layout.is_journalled(), layout.place
    if answer:
        why = os.fsdecode(answer[1:])
    else:
        layout.leave()
        late: list[tuple[bytes, bytes]] = []
        recover(folder, late)
        if begun and not is_unfinished(folder, place):
            stay = [name for aside, name in late if aside == place]
            return notes.newer(stay) if stay else ""
        why = "the process that was to rename them was killed"
    if not (why and begun):
        return why
    _looked.pop(folder, None)
    return f"{why}; not all are in place, and the others are in {shown(place)}"

"""Places for agents on other machines: what the origin lends to a job, and how an agent over there asks for more.

The origin's ledger counts every place of the tree. An agent elsewhere forks into places that its machine was granted,
without asking; when they are used up it asks for some more. What lies idle there goes back when somebody is refused.

    over there, Grant                                  at the origin, Lender (in the face of the job)
    ask   least, most      ─────────────────────────▶  takes them from the tree's ledger, or none
    watch back, heard      ─────────────────────────▶  answered when somebody in the tree is refused
    (gives back what is idle, and watches again)

Laws
1. A place counts at the origin from before it is used over there until after it is given back: the sum holds whatever
   is lost on the way. What a face has lent dies with it.
2. Every message can come twice or late. An ask has a number, and what was given to one whose asker died before it had
   the answer goes back with the next; `back` is a total.
3. One asks at a time over there, and one watches. The watcher is woken by a signal, for an agent has one thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quine.book import AGENT, ASKING, LONGEST, SHORTEST, WATCHING, release
from quine.ledger import Ledger
from transport import quickjson
from transport.errors import RequestError
from transport.requests import Posted

MOST = 4  # places that are asked for at a time where one is needed
PATIENCE = 120.0  # seconds for the answer to somebody else's ask
LOOK = 0.1  # seconds between two looks whether somebody was refused
MAX_SHARES = 64  # machines below one job that have their places through it
WAKE = signal.SIGURG  # ignored by who has no handler for it: it harms nobody who gets it late

Ask = Callable[[str, bytes], bytes]


# -- over there ------------------------------------------------------------------------------------


class Grant:
    """ledger.Beyond, for the ledger of a share."""

    def __init__(self, ledger: Ledger, ask: Ask, post: Callable[[str, bytes], Posted] | None = None) -> None:
        """`ask` blocks; `post` sends a request whose answer wakes this process with WAKE."""
        self._ledger = ledger
        self._book = ledger.book
        self._ask = ask
        self._post = post
        self._posted: Posted | None = None
        self._watch = -1  # that we are the one who watches

    def more(self, limit: int, count: int) -> list[int] | None:
        """Ask the origin for places. OSError where it cannot be reached."""
        with self._asking():
            # What somebody else asked for meanwhile may do.
            held = self._ledger.take(limit, count, count)
            if held is not None:
                return held
            facts = self._book.numbers()
            if not facts.granted or limit < self._book.count(AGENT) + count:
                return None  # whatever the origin has
            need = count - max(0, facts.granted - self._book.count(AGENT))
            self._request(need, max(need, min(MOST, 1 << facts.asked)))
            held = self._ledger.take(limit, count, count)
            if held is None and self._idle():
                self._request(0, 0)  # who is refused keeps nothing from others
        self.watch()
        return held

    def _request(self, least: int, most: int) -> None:
        """Inside `_asking` only."""
        with self._book.changing() as facts:
            facts = facts._replace(asked=facts.asked + 1)
            self._book.put(facts)
        body = {"ask": facts.asked, "had": facts.had, "least": least, "most": most}
        try:
            answer: Any = quickjson.loads(self._ask("ledger", self._body(body)))
            got = int(answer["places"])
        except RequestError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(errno.EPROTO, f"the origin's answer cannot be read: {error}") from None
        with self._book.changing() as now:
            self._book.put(now._replace(had=facts.asked, granted=now.granted + max(0, got)))

    def _body(self, fields: Mapping[str, object]) -> bytes:
        facts = self._book.numbers()
        return quickjson.dumps({"ledger": facts.ident.hex(), "back": facts.back, **fields}).encode()

    def _idle(self) -> int:
        """Take out of the grant what nobody uses here; how many those are."""
        with self._book.changing() as facts:
            idle = max(0, facts.granted - max(1, self._book.count(AGENT)))
            if idle:
                self._book.put(facts._replace(granted=facts.granted - idle, back=facts.back + idle))
        return idle

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        fd, pause, over = -1, SHORTEST, time.monotonic() + PATIENCE
        while (fd := self._book.slot(ASKING, 1)[0]) < 0:
            if time.monotonic() > over:
                raise OSError(errno.ETIMEDOUT, "the origin does not answer")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        try:
            yield
        finally:
            os.close(fd)

    # -- what goes back ----------------------------------------------------------------------------

    def watch(self) -> None:
        """Hear of it when somebody in the tree is refused; where there is something to give, and nobody does yet."""
        if self._post is None or self._watch >= 0 or self._book.numbers().granted < 2:
            return
        self._watch, _ = self._book.slot(WATCHING, 1)
        if self._watch >= 0:
            signal.signal(WAKE, self._woken)
            with _unwoken():
                self._send(0)
                self._collect()

    def _woken(self, number: int, frame: object) -> None:
        """A signal handler, at any place in our code: what it touches is the book, and the socket of the watch."""
        with _unwoken():
            self._collect()

    def _send(self, heard: int) -> None:
        assert self._post
        body = self._body({"heard": heard, "lost": self._lost()})
        if self._posted:
            self._posted.close()
        self._posted = None
        self._posted = self._post("ledger", body)

    def _lost(self) -> int:
        """The ask whose asker died before it knew what it had got; 0 = none. While we hold the lock nobody asks."""
        fd, _ = self._book.slot(ASKING, 1)
        if fd < 0:
            return 0
        facts = self._book.numbers()
        os.close(fd)
        return facts.asked if facts.asked != facts.had else 0

    def _collect(self) -> None:
        """Give back what is idle, if that was asked for."""
        try:
            # A signal tells of the first byte only, so until there is no answer.
            while self._posted and (answer := self._posted.answer()) is not None:
                wanted = int(quickjson.loads(answer)["wanted"])
                if not self._book.held(ASKING):  # who asks needs what is idle here
                    self._idle()
                self._send(wanted)
        except (OSError, RequestError, ValueError, KeyError, TypeError):
            self.close()  # the origin has gone, or another watches: whoever asks next tries again

    def finish(self) -> None:
        """At the end of an agent: if it was the one who watched, it leaves nothing idle behind."""
        if self._watch < 0:
            return
        self.close()
        with contextlib.suppress(OSError), self._asking():
            if self._idle():
                self._request(0, 0)

    def close(self) -> None:
        """Watch no longer."""
        if self._posted:
            self._posted.close()
        if self._watch >= 0:
            os.close(self._watch)
        self._posted, self._watch = None, -1

    def disown(self) -> None:
        """In a forked child: the parent watches."""
        self.close()


@contextlib.contextmanager
def _unwoken() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [WAKE])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- at the origin ---------------------------------------------------------------------------------


class _Share:
    """The places of one machine's ledger."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.asked = 0  # its last ask,
        self.last: list[int] = []  # and what was given for it: of these nobody may know over there
        self.back = 0
        self.heard = 0
        self.watch = 0  # which watch is the last


class Lender:
    """What this process, the face of a job, has lent to it from its tree's ledger. Called from worker threads."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._shares: dict[str, _Share] = {}
        self._changed = threading.Condition()
        self._slot = (-1, -1)
        self._inferring = 0
        self._over = False

    @contextlib.contextmanager
    def inferring(self) -> Iterator[None]:
        """One inference of the job: not more at one time than it has places, whatever runs over there."""
        with self._changed:
            while self._limit and self._inferring >= self.places():
                self._changed.wait(LONGEST)
            self._inferring += 1
        try:
            yield
        finally:
            with self._changed:
                self._inferring -= 1
                self._changed.notify_all()

    def places(self) -> int:
        """For agents of the job, with that of its first one; 0 = no limit."""
        with self._changed:
            return 1 + sum(len(share.held) for share in self._shares.values()) if self._limit else 0

    def lend(self, ident: str, ask: int, had: int, least: int, most: int, back: int) -> int:
        """How many places were given: `least` to `most`, or none."""
        with self._changed:
            share = self._share(ident)
            if ask <= share.asked:
                raise RequestError(f"ledger: ask {ask} came, and {share.asked} was before")
            if had < share.asked:  # who had asked for these died before it knew
                self._drop(share, share.last)
            share.asked, share.last = ask, []
            self._take_back(share, back)
        # Not under the lock: others may have to be asked, and we may be one of them.
        given = self._ledger.lend(self._limit, least, most) if least and self._limit else []
        with self._changed:
            if share.asked != ask or self._over:
                release(given)
                raise RequestError(f"ledger: nobody waits for ask {ask} any more")
            share.held += given
            share.last = given
            self._note()
        return len(given)

    def watch(self, ident: str, back: int, heard: int, lost: int) -> int:
        """Blocks until somebody was refused since `heard`, and this share has something to give."""
        with self._changed:
            share = self._share(ident)
            if lost and lost == share.asked:
                self._drop(share, share.last)
            self._take_back(share, back)
            share.heard = min(heard, self._ledger.wanted())
            share.watch += 1
            ours, heard = share.watch, share.heard
            self._note()
            while share.watch == ours:
                if share.held and (wanted := self._ledger.wanted()) > heard:
                    return wanted
                self._changed.wait(LOOK if share.held else None)
        raise RequestError("ledger: another one watches")

    def close(self) -> None:
        """The job has ended: nothing is lent any more, nor to who is about to ask."""
        with self._changed:
            self._over = True
            for share in self._shares.values():
                share.watch += 1
                self._drop(share, share.held)
            if self._slot[0] >= 0:
                os.close(self._slot[0])
            self._slot = (-1, -1)

    def _share(self, ident: str) -> _Share:
        if self._over:
            raise RequestError("ledger: the job has ended")
        if ident not in self._shares and len(self._shares) >= MAX_SHARES:
            raise RequestError(f"ledger: more than {MAX_SHARES} shares of one job")
        return self._shares.setdefault(ident, _Share())

    def _take_back(self, share: _Share, back: int) -> None:
        count = min(max(0, back - share.back), len(share.held))
        share.back = max(share.back, back)
        self._drop(share, share.held[len(share.held) - count :])

    def _drop(self, share: _Share, places: list[int]) -> None:
        release(places)
        share.held = [fd for fd in share.held if fd not in places]
        share.last = [fd for fd in share.last if fd not in places]
        self._note()

    def _note(self) -> None:
        """For whoever is refused: how much is lent here, and what the last to hear of it has heard."""
        self._changed.notify_all()
        shares = [share for share in self._shares.values() if share.held]
        heard = min((share.heard for share in shares), default=0)
        self._slot = self._ledger.lent(self._slot, sum(len(share.held) for share in shares), heard)

"""The agents of a batch whose inferences wait for the provider, as the notes of these tell (quine/providers/way.py)."""

from __future__ import annotations

import time

from quine.jobs.batch_state import duration
from quine.providers.way import GOES_ON, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Waits:
    """They, by their sessions. Used from the threads of their requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, tuple[Wait, float]] = {}  # by session, and when the note came

    def hear(self, session: str, text: str) -> None:
        """Take a note of an inference, or "" at its end."""
        if wait := Wait.read(text):
            self._of[session] = wait, self._clock()
        elif text in ("", GOES_ON):
            self._of.pop(session, None)

    def look(self) -> tuple[str, str]:
        """Return for how many and how long, and the provider's words if its quota is used up; "" for neither."""
        now = self._clock()
        all_of_them = [(wait, (wait.seconds or 0.0) + begun - now) for wait, begun in [*self._of.values()]]
        under_way = [(wait, left) for wait, left in all_of_them if wait.seconds is None or left > 0]
        if not under_way:
            return "", ""
        known = [left for wait, left in under_way if wait.seconds is not None]
        words = next((wait.why for wait, _ in under_way if wait.quota), "")
        what = f"{len(under_way)} wait for the {'quota of the ' if words else ''}provider"
        return f"{what}, {duration(min(known))}" if known else what, words

    def noting(self, session: str, log: Callable[[str], None]) -> Callable[[str], None]:
        """Return the function that takes the notes of an agent: for its log, and for this."""

        def note(text: str) -> None:
            log(text)
            self.hear(session, text)

        return note

    def telling(self, session: str, infer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Return the handler of the inferences of an agent, which tells of their ends."""

        def told(body: bytes) -> bytes:
            try:
                return infer(body)
            finally:
                self.hear(session, "")

        return told

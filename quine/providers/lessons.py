"""Lessons: the optional parts of a request that its server refuses, as one inference finds out.

Laws
1. A part that is refused is left out of one more try. It is left out of later requests as well if that try was a
   success.
2. A full context refuses nothing for good: a part that is left out for it is so for this conversation alone.
3. A part that was left out is sent again, once, where a request is refused without it; and later on, if that helped.
"""

from __future__ import annotations

from quine.base.errors import FAILED
from quine.base.messages import GuestError, Overflow, Refused
from quine.providers.dialects.faults import Adapted


class Lesson:
    """The optional parts that a server refuses, as one inference finds out. `without` are left out now."""

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self._tried: frozenset[str] = frozenset()
        self._once: frozenset[str] = frozenset()  # tried for this conversation alone, which is long
        self._taken_back: frozenset[str] = frozenset()
        self.change = ""

    @property
    def without(self) -> frozenset[str]:
        return self._known | self._tried | self._once

    def learn(self, fault: GuestError) -> bool:
        """Return whether the request is to be sent once more in another form, because of this error."""
        if isinstance(fault, Adapted):
            new = fault.parts - self.without - self._taken_back
            fault = fault.fault
            if isinstance(fault, Overflow):
                self._once |= new
            else:
                self._tried |= new
            if new:
                self.change = "without what the server refused"
                return True
        if is_plain(fault) and self._known:
            self._taken_back, self._known = self._known, frozenset()
            self.change = "with what had been left out"
            return True
        return False

    def kept(self, known: frozenset[str]) -> frozenset[str]:
        """Return what is left out from now on, after a success. `known` is what others have found out since."""
        return (known - self._taken_back) | self._tried


def is_plain(fault: GuestError) -> bool:
    """Return True for a refusal without a known cause."""
    return isinstance(fault, Refused) and fault.status == FAILED and not fault.hint

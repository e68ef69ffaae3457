"""Lessons: the optional parts of a request that its server refuses, as one inference finds out.

Laws
1. A part that is refused is left out of one more try. It is left out of later requests as well if that try was a
   success.
2. A full context refuses nothing for good: a part that is left out for it is so for this conversation alone.
3. A part that was left out is sent again, once, where a request is refused without it; and later on, if that helped.
4. A lesson about a part that depends on the conversation counts for the tree that has learned it. A command can send a
   forged block, or ask for a reply of any length: the agents of other trees do not go without their thoughts for it.
"""

from __future__ import annotations

from quine.base.errors import FAILED
from quine.base.messages import GuestError, Overflow, Refused
from quine.providers.dialects.faults import Adapted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

MOST_TREES = 4096  # with lessons of their own


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

    @property
    def learned(self) -> tuple[frozenset[str], frozenset[str]]:
        """After a success: the parts that are left out from now on, and those that are sent again."""
        return self._tried, self._taken_back


class Lessons:
    """The lessons of all trees about one server and model. `own` are the parts that depend on the conversation."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = own
        self._of_all: frozenset[str] = frozenset()
        self._of_trees: dict[int, frozenset[str]] = {}

    def of(self, tree: int) -> frozenset[str]:
        """Return the parts that a request of this tree goes without."""
        return self._of_all | self._of_trees.get(tree, frozenset())

    def keep(self, tree: int, lesson: Lesson) -> None:
        """Note what an inference of this tree has learned, which was a success."""
        new, back = lesson.learned
        self._of_all -= back
        mine = self._of_trees.pop(tree, frozenset()) - back
        if new.isdisjoint(self._own):
            self._of_all |= new
        else:
            mine |= new
        if mine:
            self._of_trees[tree] = mine  # as the last one
            if len(self._of_trees) > MOST_TREES:
                del self._of_trees[next(iter(self._of_trees))]

    def all(self) -> list[str]:
        """Return the parts that requests of any tree go without."""
        return sorted(self._of_all.union(*self._of_trees.values()))


def is_plain(fault: GuestError) -> bool:
    """Return True for a refusal without a known cause."""
    return isinstance(fault, Refused) and fault.status == FAILED and not fault.hint

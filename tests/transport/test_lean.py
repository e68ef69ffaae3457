"""Named tuples without typing, managers without contextlib: as the real ones in all that the program does with them."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from transport import lean


class Ours(lean.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    z: tuple[int, ...] = ()

    @property
    def sum(self) -> int:
        return self.x + self.y

    def moved(self) -> Ours:
        return self._replace(x=self.x + 1)


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    z: tuple[int, ...] = ()


def test_a_named_tuple_is_made_read_and_compared_as_that_of_typing() -> None:
    for values, names in (((1,), {}), ((1, 5), {"z": (3,)}), ((), {"y": 4, "x": 3}), ((1, 2, (3,)), {})):
        ours, theirs = Ours(*values, **names), Theirs(*values, **names)
        assert tuple(ours) == theirs and ours == theirs and hash(ours) == hash(theirs)
        assert (ours.x, ours.y, ours.z) == (theirs.x, theirs.y, theirs.z)
        assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
        assert ours._asdict() == theirs._asdict() and ours._replace(y=9) == theirs._replace(y=9)
        assert type(ours._replace(y=9)) is Ours and type(Ours._make(theirs)) is Ours
    assert Ours._fields == Theirs._fields and Ours._field_defaults == Theirs._field_defaults
    assert Ours.__doc__ == Theirs.__doc__ and Ours(1).sum == 3 and Ours(1).moved() == (2, 2, ())


def test_wrong_fields_are_refused_as_by_typing() -> None:
    for kind in (Ours, Theirs):
        make: typing.Any = kind
        for values, names in (((), {}), ((1, 2, (), 4), {}), ((1,), {"x": 1}), ((1,), {"w": 1})):
            with pytest.raises(TypeError):
                make(*values, **names)
        with pytest.raises((ValueError, TypeError), match="w"):  # of typing: the latter since Python 3.13
            make(1)._replace(w=1)
        with pytest.raises(TypeError):
            make._make([1])
        with pytest.raises(AttributeError):
            make(1).x = 3
        with pytest.raises(AttributeError):
            make(1).w = 3


# -- contextlib --------------------------------------------------------------------------------------

FAULTS: dict[str, BaseException | None] = {
    "none": None,
    "value": ValueError("v"),
    "stop": StopIteration("s"),
    "runtime": RuntimeError("r"),
    "exit": SystemExit(3),
}


def acts(how: str) -> Iterator[str]:
    """A generator that ends in one of many ways."""
    if how == "never":
        return
    try:
        yield how
        if how == "twice":
            yield how
        if how == "fails at the end":
            raise KeyError("at the end")
    except BaseException as error:
        if how == "handles":
            return
        if how == "raises another":
            raise LookupError("another") from error
        if how == "raises a runtime error":
            raise RuntimeError("its own") from error
        if how == "goes on":
            yield how
        raise
    finally:
        if how == "fails in finally":
            raise OSError("finally")


WAYS = [
    "plain",
    "never",
    "twice",
    "handles",
    "raises another",
    "raises a runtime error",
    "goes on",
    "fails at the end",
]


def outcome(manager: Any, fault: BaseException | None) -> tuple[object, ...]:
    try:
        with manager as value:
            if fault:
                raise fault
    except BaseException as error:
        return (type(error), str(error), type(error.__cause__), error is fault)
    return ("done", value)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", [*WAYS, "fails in finally"])
def test_a_manager_of_a_generator_does_what_the_real_one_does(how: str, fault: str) -> None:
    ours = outcome(lean.contextmanager(acts)(how), FAULTS[fault])
    theirs = outcome(contextlib.contextmanager(acts)(how), FAULTS[fault])
    assert ours == theirs


def test_a_manager_keeps_the_name_of_its_function_and_passes_its_arguments() -> None:
    @lean.contextmanager
    def given(*values: int, **named: int) -> Iterator[object]:
        """Its text."""
        yield values, named

    assert (given.__name__, given.__doc__) == ("given", "Its text.")
    with given(1, 2, three=3) as got:
        assert got == ((1, 2), {"three": 3})


@pytest.mark.parametrize("kinds", [(), (ValueError,), (LookupError, ValueError), (BaseException,)])
@pytest.mark.parametrize("fault", FAULTS)
def test_suppress_does_what_the_real_one_does(kinds: tuple[type[BaseException], ...], fault: str) -> None:
    ours, theirs = (outcome(made(*kinds), FAULTS[fault]) for made in (lean.suppress, contextlib.suppress))
    assert ours == theirs


def test_a_traceback_does_not_grow_by_each_try() -> None:
    """One exception that is raised again and again, as an error that is kept."""

    @lean.contextmanager
    def plain() -> Iterator[object]:
        yield None

    kept = ValueError("kept")
    for _ in range(50):
        with contextlib.suppress(ValueError), plain():
            raise kept
    depth, trace = 0, kept.__traceback__
    while trace:
        depth, trace = depth + 1, trace.tb_next
    assert depth <= 51

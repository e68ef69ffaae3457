"""Named tuples without typing: as those of typing in all that the program does with them."""

from __future__ import annotations

import typing

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
        with pytest.raises(ValueError, match="w"):
            make(1)._replace(w=1)
        with pytest.raises(TypeError):
            make._make([1])
        with pytest.raises(AttributeError):
            make(1).x = 3
        with pytest.raises(AttributeError):
            make(1).w = 3

"""Substitutes for standard modules that a client loads at its start: signal, socket, deque, Mapping, blake2b, typing.

Laws
1. `signal` loads enum, and `socket` loads selectors, collections and functools: 8 ms, a third of a client's start time,
   for names of constants and for methods that no client calls. `hashlib` loads OpenSSL: 3 ms. So the C modules below
   them are imported directly.
2. A signal is a plain number here, and a socket has neither `with` nor `accept`. A module that needs more imports the
   standard module; both work on the same kernel objects.
3. `typing` loads re, and its NamedTuple compiles each annotation: 10 ms of the start of an agent, for what a checker
   of types reads. The one here makes the same classes of named fields; the other names stand for nothing at run time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections import deque
    from collections.abc import Mapping
    from hashlib import blake2b
    from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar
else:
    try:
        import _signal as signal
        import _socket as socket
        from _blake2 import blake2b
        from _collections import deque
        from _collections_abc import Mapping
    except ImportError:  # an interpreter that has them elsewhere
        import signal
        import socket
        from collections import deque
        from collections.abc import Mapping
        from hashlib import blake2b

    try:
        from _collections import _tuplegetter
    except ImportError:

        def _tuplegetter(index, doc):
            return property(lambda self: tuple.__getitem__(self, index))

    Any = NoReturn = Protocol = object

    def TypeVar(name, *kinds, **options):
        return object

    def _make(cls, values):
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, not {len(made)}")
        return made

    def _replace(self, /, **changed):
        made = tuple.__new__(type(self), map(changed.pop, self._fields, self))
        if changed:
            raise ValueError(f"unknown fields: {list(changed)!r}")
        return made

    def _asdict(self):
        return dict(zip(self._fields, self))

    def __repr__(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
        return f"{type(self).__name__}({fields})"

    def __getnewargs__(self):
        return tuple(self)

    def _completed(cls, values, named):
        """Return the values of all fields, where some were given by name, or were not."""
        fields, defaults = cls._fields, cls._field_defaults
        whole = list(values)
        for field in fields[len(values) :]:
            if field in named:
                whole.append(named.pop(field))
            elif field in defaults:
                whole.append(defaults[field])
            else:
                raise TypeError(f"{cls.__name__}: no value for {field!r}")
        if named or len(whole) > len(fields):
            raise TypeError(f"{cls.__name__}: too many values, or unknown ones: {list(named)!r}")
        return whole

    class _Named(type):
        """Makes a class with named fields out of annotations."""

        def __new__(mcs, name, bases, names):
            fields = tuple(names.get("__annotations__", ()))
            defaults = {field: names.pop(field) for field in fields if field in names}
            if fields[len(fields) - len(defaults) :] != tuple(defaults):
                raise TypeError(f"{name}: a field without a default after one with it")
            count, new = len(fields), tuple.__new__

            def made(cls, /, *values, **named):
                if named or len(values) != count:
                    return new(cls, _completed(cls, values, named))
                return new(cls, values)

            own = {
                "__slots__": (),
                "__new__": made,
                "__repr__": __repr__,
                "__getnewargs__": __getnewargs__,
                "__match_args__": fields,
                "_fields": fields,
                "_field_defaults": defaults,
                "_make": classmethod(_make),
                "_replace": _replace,
                "_asdict": _asdict,
            }
            getters = {field: _tuplegetter(index, "") for index, field in enumerate(fields)}
            return type(name, (tuple,), {**own, **getters, **names})

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})

__all__ = [
    "Any",
    "Mapping",
    "NamedTuple",
    "NoReturn",
    "Protocol",
    "TypeVar",
    "blake2b",
    "deque",
    "signal",
    "socket",
]

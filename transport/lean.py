"""Substitutes for standard modules that a client or an agent loads at its start: signal, socket, contextlib, typing …

Laws
1. `signal` loads enum, and `socket` loads selectors, collections and functools: 8 ms, a third of a client's start time,
   for names of constants and for methods that no client calls. `hashlib` loads OpenSSL: 3 ms. So the C modules below
   them are imported directly. Their names differ from one Python to the next.
2. A signal is a plain number here, and a socket has neither `with` nor `accept`. A module that needs more imports the
   standard module; both work on the same kernel objects.
3. `typing` loads re, and its NamedTuple compiles each annotation: 10 ms of the start of an agent, for what a checker
   of types reads. The one here makes the same classes of named fields; the other names stand for nothing at run time.
4. `contextlib` loads collections, functools and operator: 3 ms. The one here has `suppress` and `contextmanager`, which
   do what the real ones do, but that a context manager is no decorator. A test runs both.
5. `ctypes` takes ten times as long to load as the module below it. Agents need it for one system call: `prctl`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class suppress:
    """Suppress errors of these kinds."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


class Managed:
    """A context manager that is a generator with one `yield`."""

    def __init__(self, generator: Iterator[object]) -> None:
        self._generator = generator

    def __enter__(self) -> object:
        try:
            return next(self._generator)
        except StopIteration:
            raise RuntimeError("generator didn't yield") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        generator = self._generator
        if kind is None:
            try:
                next(generator)
            except StopIteration:
                return False
            raise RuntimeError("generator didn't stop")
        error = kind() if error is None else error
        try:
            generator.throw(error)  # type: ignore[attr-defined]
        except StopIteration as ended:
            return ended is not error  # the generator has handled it
        except BaseException as raised:
            # Inside a generator a StopIteration that it lets through becomes a RuntimeError.
            through = isinstance(error, StopIteration) and raised.__cause__ is error
            if raised is not error and not (isinstance(raised, RuntimeError) and through):
                raise
            error.__traceback__ = trace
            return False
        raise RuntimeError("generator didn't stop after throw()")


def contextmanager(function: Callable[..., Iterator[object]]) -> Callable[..., Managed]:
    """Make a function that returns context managers out of a generator function."""

    def made(*values: object, **named: object) -> Managed:
        return Managed(function(*values, **named))

    made.__name__, made.__qualname__, made.__doc__ = (
        function.__name__,
        function.__qualname__,
        function.__doc__,
    )
    made.__module__, made.__wrapped__ = function.__module__, function  # type: ignore[attr-defined]
    return made


if TYPE_CHECKING:
    import contextlib
    import signal
    import socket
    from collections import deque
    from collections.abc import Callable, Mapping, Sequence
    from hashlib import blake2b
    from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar
else:
    try:
        import _signal as signal
        import _socket as socket
        from _blake2 import blake2b
        from _collections import deque
        from _collections_abc import Callable, Mapping, Sequence
    except ImportError:  # an interpreter that has them elsewhere
        import signal
        import socket
        from collections import deque
        from collections.abc import Callable, Mapping, Sequence
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

    class contextlib:
        suppress = suppress
        contextmanager = staticmethod(contextmanager)


_sha256: list[Callable[[bytes], Any]] = []
_prctl: list[Callable[[int, int], int]] = []


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest of `data`."""
    if not _sha256:
        _sha256.append(_digest())
    return str(_sha256[0](data).hexdigest())


def _digest() -> Callable[[bytes], Any]:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]  # before Python 3.12
        except ImportError:
            from hashlib import sha256
    return sha256  # type: ignore[no-any-return, unused-ignore]


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); return whether the kernel did it. False where the interpreter has no way to call it."""
    try:
        if not _prctl:
            _prctl.append(_found())
        return _prctl[0](option, value) == 0
    except Exception:
        return False


def _found() -> Callable[[int, int], int]:
    try:
        import _ctypes

        class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "i"

        class Call(_ctypes.CFuncPtr):
            _flags_ = 1  # FUNCFLAG_CDECL
            _restype_ = Int

        found = Call(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]
    except (ImportError, AttributeError, OSError, TypeError):
        from transport.backports.libc import INT, LONG, function, in_libc

        if not in_libc("prctl"):
            return lambda option, value: -1
        call = function("prctl", INT, INT, LONG, LONG, LONG, LONG)
        return lambda option, value: call(option, value, 0, 0, 0)
    return lambda option, value: int(found(option, value, 0, 0, 0))


__all__ = [
    "Any",
    "Callable",
    "Mapping",
    "NamedTuple",
    "NoReturn",
    "Protocol",
    "Sequence",
    "TypeVar",
    "blake2b",
    "contextlib",
    "deque",
    "prctl",
    "sha256",
    "signal",
    "socket",
]

"""Resource limits of a job: their names, the syntax of an amount, and the values for the kernel.

Laws
1. This is the only table of names and the only parser of sizes: the inventory, --limit and the wire agree.
2. A limit that cannot be enforced is an error; it is never dropped.
"""

from __future__ import annotations

from transport.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

RLIMITS = ("as", "core", "cpu", "data", "fsize", "nofile", "nproc", "stack")
OWN = ("as", "cpu", "data", "fsize")  # a node raises these for itself as far as it may
CGROUP = ("mem", "pids")
NAMES = (*RLIMITS, *CGROUP)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(?:([kmgt])(?:i?b)?)?"
MOST = 1 << 62  # a number that every limit of the kernel and every counter of ours can hold


def number(name: str) -> int:
    """Return the RLIMIT_* of a name of RLIMITS."""
    import resource  # here: a library to be opened, and most agents have no limit

    return int(getattr(resource, f"RLIMIT_{name.upper()}"))


def size(text: str) -> int:
    """Return the number that `text` stands for: `500`, `500M`, `1.5G`, `8GiB`, in powers of 1024. Raises ValueError.

    A fraction needs a unit; the result is rounded down to whole bytes.
    """
    import re  # here: each agent loads this module

    parts = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if parts is None or (parts[2] is not None and parts[3] is None):
        raise ValueError(f"{text[:40]!r} is neither a number nor a size such as 8G")
    unit = _UNITS[(parts[3] or "").lower()]
    fraction = parts[2] or ""
    number = int(parts[1]) * unit + int(fraction or "0") * unit // int("1" + "0" * len(fraction))
    if number >= MOST:
        raise ValueError(f"{text[:40]!r} is too much")
    return number


def check(limits: Mapping[str, int | str], known: Collection[str] = NAMES) -> None:
    """Raise ValueError where a name is not one of `known` or an amount cannot be read."""
    for name, amount in limits.items():
        if name not in known:
            raise ValueError(f"unknown limit {name[:40]!r}; known are {', '.join(known)}")
        try:
            size(str(amount))
        except ValueError as error:
            raise ValueError(f"limit {name}: {error}") from None


def unenforced(limits: Mapping[str, int | str]) -> str:
    """Return the reason why one of these limits cannot be set on any host; "" if all can be."""
    for name in limits:
        if name in CGROUP:
            return f"limit {name} needs a cgroup: not built yet"
    return ""


def parse(limits: Mapping[str, str]) -> list[tuple[int, int]]:
    """Turn {"nofile": "4096", "as": "8G"} into (RLIMIT_*, value) pairs. Raises ProtocolError that names a bad limit."""
    if reason := unenforced(limits):
        raise ProtocolError(reason)
    try:
        check(limits, RLIMITS)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    return [(number(name), size(text)) for name, text in limits.items()]

"""Jobs of other machines as those list them: `quine ps --json` there, and what their nodes keep for a batch.

Law: an answer is foreign. Only known fields of known types are taken, and a text is cut to a size for a table. A line
of more than LONGEST bytes is not read at all: in memory JSON is twenty times as large.
"""

from __future__ import annotations

from quine.base import strict
from quine.base.sessions import SHOWN, is_session
from quine.tape.reader import HUGE
from transport import quickjson
from transport.address import boot_clock
from transport.wire.numbers import SECONDS, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LONGEST = 1 << 20  # bytes of a line, with a long mission in it
MARGIN = 0.25  # seconds by which two clocks may differ in the course of a batch

_FIELDS: dict[str, tuple[tuple[type, ...], object]] = {
    "id": ((str,), ""),
    "session": ((str,), ""),
    "kind": ((str,), "agent"),
    "pid": ((int,), 0),
    "state": ((str,), "unknown"),
    "code": ((int,), None),
    "signal": ((str,), None),
    "detail": ((str,), ""),
    "started": ((int, float), 0.0),
    "seconds": ((int, float), 0.0),
    "turns": ((int,), None),
    "cost": ((int, float), None),
    "doing": ((str,), ""),
    "down": ((int, float), 0),
    "mission": ((str,), ""),
    "parent": ((str,), ""),
    "root": ((str,), ""),
    "stdout": ((str,), None),
    "stderr": ((str,), None),
}


def parsed(out: bytes, host: str) -> list[dict[str, Any]]:
    """Return the valid facts in the list of a host."""
    return [fact for line in out.split(b"\n") if (fact := fact_of(line, host))]


def fact_of(line: bytes, host: str) -> dict[str, Any]:
    """Parse one line of a list; {} if it is invalid."""
    if len(line) > LONGEST:
        return {}
    try:
        report = quickjson.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(report, dict) or not is_job(report.get("id")):
        return {}
    fact = {name: _taken(report.get(name), types, default) for name, (types, default) in _FIELDS.items()}
    return {**fact, "host": host}


def is_job(text: object) -> bool:
    """Return whether this is the id of a session, or of a command: 32 hexadecimal digits."""
    hexadecimal = isinstance(text, str) and len(text) == 32 and not text.strip("0123456789abcdef")
    return hexadecimal or is_session(text)


def _taken(value: object, types: tuple[type, ...], default: object) -> object:
    """Return a value of the right type, cut to a size that a table can show; else `default`."""
    if not isinstance(value, types) or isinstance(value, bool):
        return default
    if isinstance(value, str):
        return value[:SHOWN]
    return value if isinstance(value, (int, float)) and abs(value) <= HUGE else default


class Kept:
    """The jobs that a node keeps, as it has told.

    ids        of them
    remembers  seconds for which it knows of all: since its start, or since it forgot one
    forgot     whether it has forgotten one since its start
    settling   whether more may come
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError, KeyError."""
        self.ids = [id for id in list(told["ids"]) if isinstance(id, str)]
        self.remembers = number(told["remembers"], SECONDS)
        self.forgot, self.settling = told["forgot"] is not False, told["settling"] is not False

    @classmethod
    def parsed(cls, answer: bytes) -> Kept | None:
        """Return what is told by the status of a node; None if it is no such status."""
        try:
            return cls(strict.loads(answer)["kept"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def since(self, sole: float) -> float:
        """Return the time (`boot_clock`) since which it knows of all jobs; `sole`: see `Search`."""
        since = boot_clock() - self.remembers + MARGIN
        return since if self.forgot else min(since, sole)


def once(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep each id once: machines that share a home all list a job, and one of them knows it."""
    best: dict[str, dict[str, Any]] = {}
    for fact in facts:
        known = best.setdefault(fact["id"], fact)
        if not knows(known):
            best[fact["id"]] = fact
    return list(best.values())


def knows(fact: dict[str, Any]) -> bool:
    """Return whether this host runs or ran the job, and does not merely share its home or pass it on."""
    return fact["state"] not in ("unknown", "lost") and fact["kind"] != "proxy"


def rivals(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two hosts both know a job of one id, and not from one record in a shared home."""
    if (one["kind"] == "proxy") != (other["kind"] == "proxy"):
        return False  # one is a proxy of the job on another host: `once` takes that host
    known = "unknown" not in (one["state"], other["state"])
    return known and any(one[name] != other[name] for name in ("pid", "started", "mission", "root"))

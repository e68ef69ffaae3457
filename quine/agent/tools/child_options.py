"""Options of one child of `fork`: its model, a narrower budget, variables, its directory, limits of the kernel.

Laws
1. Nothing is raised. Turns, tokens, money and time are at most the parent's, and limits of the kernel are only lowered.
2. `env` sets no secret and no variable of quine: limits and lineage are not for sale there.
3. A variable that names this machine goes to another one only if the call itself gives it.
"""

from __future__ import annotations

from quine.agent.tools import validate
from quine.agent.tools.exec import LONGEST, WHOLE
from quine.agent.tools.exported import Exported, is_plain
from quine.base import sizes
from quine.base.text import unfit
from quine.budget.ledger import LEAST_REPLY
from quine.budget.limits import Limits
from quine.providers import metering
from transport import inherit, quickjson, rlimits
from transport.errors import ProtocolError
from transport.lean import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.agent.running import Running
    from quine.agent.session import SessionSpec
    from quine.budget.ledger import Ledger

_COUNT = {"type": "integer", "minimum": 1, "maximum": sizes.MOST}
SCHEMA: dict[str, Any] = {
    "model": {"type": "string", "minLength": 1, "maxLength": 200},
    "turns": _COUNT,
    "tokens": _COUNT,
    "cost": {"type": "number", "minimum": 1e-6, "maximum": sizes.MOST, "description": "US dollars"},
    "deadline": {"type": "number", "minimum": 0.001, "maximum": sizes.MOST, "description": "seconds"},
    "env": {"type": "object", "additionalProperties": {"type": "string"}},
    "cwd": {"type": "string", "minLength": 1},
    "limits": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": 'ulimits: {"nofile": "256", "as": "2G"}',
    },
}
_OF_THIS_MACHINE = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "MAIL", "TMPDIR", "TMP", "TEMP"),
    *("DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME"),
}
_FAMILIES = ("SSH_", "XDG_", "DBUS_", "LD_")


class Options(NamedTuple):
    """The options of one child; 0, "" and {} for one that was not given."""

    model: str = ""
    turns: int = 0
    tokens: int = 0
    cost: float = 0.0
    deadline: float = 0.0
    env: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    cwd: str = ""
    limits: dict[str, str] = {}  # noqa: RUF012 - never changed in place

    @classmethod
    def of(cls, child: Mapping[str, Any]) -> Options:
        return cls(**{name: child[name] for name in cls._fields if name in child})


def fault(child: Mapping[str, Any]) -> str:
    """Return the error in the options of one child that the schema cannot express; "" if there is none."""
    given = Options.of(child)
    for name in ("model", "cwd"):
        if wrong := unfit(getattr(given, name)):
            return f"{name} holds {wrong}"
    for name, value in given.env.items():
        shown = validate.short(name)
        if not is_plain(name):
            return f"env: {shown!r} is no name of a variable"
        if inherit.withholds(name, value):
            return f"env: {shown} looks like a secret, and a child is given none"
        if name.startswith("QUINE_"):
            return f"env: {shown} is quine's; the other arguments set what a child may have"
        if wrong := unfit(value):
            return f"env: {shown} holds {wrong}"
        if (size := len(f"{name}={value}\0".encode())) > LONGEST:
            return f"env: {shown} is too long: {size} bytes, and {LONGEST} are possible; put it into a file"
    try:
        rlimits.parse(given.limits)
    except ProtocolError as error:
        return f"limits: {error}"
    return ""


def unpayable(loop: Running, options: Options, known: int) -> str:
    """Return why a child with these options could not make its first inference; "" if it could.

    `known` are the tokens of the conversation that it begins with.
    """
    prompt = max(known, metering.TOOLS)
    if 0 < options.tokens < prompt + LEAST_REPLY:
        return f"{options.tokens} tokens are too few: its first reply needs about {prompt + LEAST_REPLY}"
    model = options.model or loop.spec.model
    if (options.cost or (options.model and loop.ledger.mark.cost)) and not loop.relayed:
        from quine.budget import prices

        if not prices.known(model):
            return f"the price of {validate.short(model)} is not known, and its cost is limited; limit tokens"
    return ""


def applied(spec: SessionSpec, options: Options, exported: Exported, host: str) -> SessionSpec | str:
    """Return `spec`, of the child of this parent, with these options; or why it cannot have them on `host`."""
    limits = spec.limits._replace(
        turns=int(_least(spec.limits.turns, options.turns)),
        tokens=int(_least(spec.limits.tokens, options.tokens)),
        cost=_least(spec.limits.cost, options.cost),
        deadline=_least(spec.limits.deadline, options.deadline),
    )
    known = {name: value for name, value in spec.env.items() if name not in exported.removed}
    known |= exported.changed
    if host != "local":
        known = {name: value for name, value in known.items() if _travels(name, value)}
    variables = known | options.env
    if host != "local" and (size := len(quickjson.dumps(variables))) > WHOLE:
        return f"the exported variables are too long in all for another machine: {size} bytes, and {WHOLE} are possible"
    return spec._replace(
        model=options.model or spec.model,
        limits=limits,
        env=variables,
        rlimits=_lowest(spec.rlimits, options.limits),
    )


def ledger_of(ledger: Ledger, options: Options) -> Ledger:
    """Return the ledger that pays for the child: that of its parent, or one with a narrower budget."""
    if not (options.tokens or options.cost or options.deadline):
        return ledger
    given = Limits(tokens=options.tokens, cost=options.cost, deadline=options.deadline)
    return ledger.narrower(given)


def _travels(name: str, value: str) -> bool:
    fits = len(name) + len(value.encode("utf-8", "surrogateescape")) + 2 <= LONGEST
    ours = name in _OF_THIS_MACHINE or name.startswith(_FAMILIES)
    return fits and not ours and not inherit.withholds(name, value)


def _least(one: float, other: float) -> float:
    """The smaller limit, where 0 is none."""
    return min(one, other) if one and other else one or other


def _lowest(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of both, and the smaller one of a name that both have."""
    both = {name: min((one[name], other[name]), key=rlimits.size) for name in one.keys() & other.keys()}
    return {**one, **other, **both}

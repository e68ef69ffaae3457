"""Inheritance: reads each environment variable once, with its default, and prepares what descendants inherit.

Laws
1. `adopt` is called once, at the start. After it `os.environ` is exactly what a command in `sh` may see: it holds no
   key, token or password. Neither does the environment that /proc shows of this process, even if `adopt` reads a
   copy. Keys of guests stay in this process, and in a sealed memo (transport/inherit.py) for its descendants.
2. An option sets its variable before the environment is read, so that children inherit it. An error about a bad value
   names the option or the variable that gave it.
3. Lineage and limits of the tree come from the memo if there is one: changing a variable in `sh` buys neither depth
   nor agents.
"""

from __future__ import annotations

import os
import sys
import time

from quine.agent import personas
from quine.agent.session import SessionSpec
from quine.base import data_directory, dirs, exposure, sizes
from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.base.messages import Usage
from quine.base.sessions import is_session
from quine.base.text import quote
from quine.broker import finding
from quine.budget import caller, shared_counters
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits, stored, unset
from quine.files import credentials, urls
from quine.providers import withholding
from quine.providers.choice import KEYS, choose
from quine.providers.vendors import FILES, Config
from quine.tape import redact
from transport import address, atomic, inherit, quickjson
from transport.lean import Any, NamedTuple
from transport.this_build import build_hash, own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableMapping


# command-line option -> its variable
OPTIONS = {
    "model": "QUINE_MODEL_ID",
    "max_turns": "QUINE_MAX_TURNS",
    "max_depth": "QUINE_MAX_DEPTH",
    "max_agents": "QUINE_MAX_AGENTS",
    "max_tokens": "QUINE_MAX_TOKENS",
    "max_cost": "QUINE_MAX_COST",
    "deadline": "QUINE_DEADLINE",
    "interrupt": "QUINE_INTERRUPT",
    "inventory": "QUINE_INVENTORY",
    "fs": "QUINE_FS",
}
INTERRUPTS = ("agent", "command")
WISDOM = "QUINE_WISDOM_"


class Settings(NamedTuple):
    """The values that `adopt` read from options, environment and memo."""

    limits: Limits
    model: str
    shell: str
    interrupt: str  # one of INTERRUPTS
    data_dir: str
    node: str
    wisdom: dict[str, str]
    secrets: dict[str, str]
    withheld: tuple[str, ...]  # names of the variables that commands do not get
    memo: dict[str, Any]
    report: str  # --report, prepared by quine/base/run_report.py
    verbose: bool  # -v
    spent: Usage  # in previous sessions of this process
    began: float  # seconds since the epoch; start of the first session of this process
    masked: tuple[redact.Secret, ...]  # values masked on every tape
    top: bool  # this process is the topmost of its tree on this machine
    unset: dict[str, int]  # of `limits.unset`, at the root of a tree


class Tree(NamedTuple):
    """The tree of this process, once it has joined it. No session begins without one."""

    ledger: Ledger  # its budget
    limits: Limits  # those of the settings, as far as the root allows them
    start: str  # directory in which the tree was started, on this machine
    above: int  # agents found above this process: a lower bound of its depth, whatever the memo says


def adopt(options: RunOptions, environ: MutableMapping[str, str] = os.environ) -> Settings:
    """Read the environment, remove the secrets from it and fill in defaults. Raises Misconfigured."""
    memo = _memo(environ)
    former = inherit.renewed(memo)
    secrets = {**_texts(memo.get("environ")), **_texts(former.get("environ"))}
    for option, variable in OPTIONS.items():
        if given := getattr(options, option):
            environ[variable] = given
            if option in NUMBERS:
                name = f"--{option.replace('_', '-')}"
                NUMBERS[option]({name: given}, name, 0)
    passed = withholding.passed(options.env, environ)
    removed = withholding.taken_out(environ, passed)
    withheld = withholding.told(removed, passed, *(one.get(withholding.WITHHELD) for one in (memo, former)))
    # A key read from a file ends with a newline.
    secrets.update({name: value.strip() for name, value in removed.items() if name in KEYS and value.strip()})
    masked = _store(environ, removed, secrets)
    for name in [n for n, v in environ.items() if any(len(s) >= 8 and s in v for s in secrets.values())]:
        removed[name] = environ.pop(name)
    exposure.forget(removed.keys())
    _make_absolute(environ)
    wisdom = {
        name.removeprefix(WISDOM): value
        for name, value in environ.items()
        if name.startswith(WISDOM) and value and name != WISDOM
    }
    masked_before = former.get("masked")
    return Settings(
        limits=_limits(environ, memo),
        model=environ.get("QUINE_MODEL_ID", ""),
        shell=environ.get("QUINE_SHELL") or "/bin/sh",
        interrupt=_interrupt(environ),
        data_dir=environ["QUINE_DATA_DIR"],
        node=environ.get("QUINE_NODE_NAME") or "local",
        wisdom=wisdom,
        secrets=secrets,
        withheld=withheld,
        memo=memo,
        report=options.report or str(former.get("report", "")),
        verbose=options.verbose or bool(former.get("verbose")),
        spent=Usage(*former["usage"]) if isinstance(former.get("usage"), list) else Usage(),
        began=float(former.get("began") or time.time()),
        top="lineage" not in memo or former.get("top") is True,
        unset={} if "lineage" in memo else unset(environ),
        masked=tuple(
            {
                *(value for name, value in secrets.items() if name != credentials.URL),
                *map(str.strip, removed.values()),
                *(text for name in passed if (text := environ.get(name)) and inherit.withholds(name, text)),
                *masked,
                *finding.masks(),
                *map(redact.from_json, masked_before if isinstance(masked_before, list) else ()),
            }
        ),
    )


def _store(environ: MutableMapping[str, str], removed: dict[str, str], secrets: dict[str, str]) -> list[str]:
    """Keep only the credentials of the store that QUINE_FS names, and show its URL without a password.

    Return the values that no tape may hold.
    """
    url, options = environ.get(credentials.URL, ""), removed.get(credentials.OPTIONS, "")
    secrets.update(credentials.kept(url, removed))
    if credentials.shown(url) != url:
        environ[credentials.URL] = credentials.shown(url)
        exposure.forget([credentials.URL])
    return credentials.secrets_of(
        secrets.get(credentials.URL, url), options or secrets.get(credentials.OPTIONS, "")
    )


def _make_absolute(environ: MutableMapping[str, str]) -> None:
    """Make the paths in variables absolute: descendants may start in other directories."""
    if environ.get("QUINE_FS") == urls.GONE:
        del environ["QUINE_FS"]  # an agent without an origin elsewhere is its own origin
    if environ.get("QUINE_FS"):
        environ["QUINE_FS"] = urls.absolute(environ["QUINE_FS"])
    environ["QUINE_DATA_DIR"] = data_directory.path(environ)
    for name in ("QUINE_INVENTORY", "QUINE_PRICES"):
        if environ.get(name):
            environ[name] = dirs.absolute(environ[name])
    base, kind = environ.get("QUINE_API_BASE", ""), environ.get("QUINE_API_TYPE")
    if base and kind in FILES and (kind != "program" or "/" in base):  # a bare name is searched on PATH
        environ["QUINE_API_BASE"] = dirs.absolute(base)


_ABOVE = (inherit.NAME, *caller.FILES)
_walks: list[dict[str, list[inherit.MemoryFile]]] = []  # that of `adopt`, for `join_tree` a few ms later


def _memo(environ: MutableMapping[str, str]) -> dict[str, Any]:
    """Return the memo, with the one above that this process may have lost by `env -i` or by closing descriptors."""
    memo = inherit.read(environ)
    if memo.keys() - {"exec"} or environ is not os.environ:
        return memo
    _walks[:] = [inherit.held_above(*_ABOVE)]
    own = os.fstat(int(environ[inherit.VARIABLE])).st_ino if memo else 0
    for held in _walks[0][inherit.NAME]:
        if held.inode == own:
            continue  # the state that this process has left to itself
        try:
            fd = held.opened(os.O_RDONLY)
        except OSError as error:
            if address.closed_since(error):
                continue  # that process has ended since; those above it hold the same memo
            raise
        os.set_inheritable(fd, True)
        if memo:
            os.close(int(environ[inherit.VARIABLE]))
        environ[inherit.VARIABLE] = str(fd)
        return {**inherit.read(environ), **memo}
    return memo


def _start(memo: Mapping[str, Any]) -> str:
    record = memo.get("lineage")
    start = record.get("start") if isinstance(record, dict) else None
    return start if isinstance(start, str) else ""


def guest(settings: Settings, environ: Mapping[str, str] = os.environ) -> Config:
    """Return how to reach the guest. Raises Misconfigured, with a hint, if none is configured."""
    return choose({**environ, **settings.secrets})


def bequeath(
    settings: Settings, tree: Tree, spec: SessionSpec, exec_state: dict[str, Any] | None = None
) -> int:
    """Write the memo for descendants and return its descriptor, which the environment names from now on.

    `exec_state` is only for this process itself, after execve(). ValueError if the memo is too large.
    """
    memo = {key: value for key, value in settings.memo.items() if key != "exec"}
    # The key of a program is for each agent that calls it. All others are with the broker.
    keeps = os.environ.get("QUINE_API_TYPE") == "program"
    memo[withholding.WITHHELD] = list(settings.withheld)
    memo["environ"] = {name: value for name, value in settings.secrets.items() if keeps or name not in KEYS}
    if broker := finding.told():
        memo[finding.VARIABLE] = broker
    memo["lineage"] = {
        "session": spec.session,
        "root": spec.root,
        "depth": spec.depth,
        "limits": spec.limits._asdict(),
        "start": tree.start,
        "ledger": tree.ledger.to_json(tree.limits),
    }
    if exec_state is not None:
        memo["exec"] = exec_state
    if len(quickjson.dumps(memo)) > inherit.LIMIT:
        raise ValueError("mission and wisdom together are too long")
    fd = inherit.write(memo)
    os.set_inheritable(fd, True)
    if inherit.read():  # the previous memo, which nothing reads any more
        os.close(int(os.environ[inherit.VARIABLE]))
    os.environ[inherit.VARIABLE] = str(fd)
    os.environ["QUINE_SESSION_ID"] = spec.session
    os.environ["QUINE_PARENT_SESSION"] = spec.parent
    os.environ["QUINE_ROOT_SESSION"] = spec.root
    os.environ["QUINE_DEPTH"] = str(spec.depth)
    for name in [name for name in os.environ if name.startswith(WISDOM)]:
        del os.environ[name]
    os.environ.update({f"{WISDOM}{key}": value for key, value in spec.wisdom.items()})
    return fd


def lineage(settings: Settings, tree: Tree) -> tuple[str, str, int]:
    """Return (parent's session, root's session, own depth); without a lineage ("", "", agents found above)."""
    record = settings.memo.get("lineage")
    if not isinstance(record, dict):
        record = {
            "session": os.environ.get("QUINE_SESSION_ID"),
            "root": os.environ.get("QUINE_ROOT_SESSION"),
            "depth": sizes.integer(os.environ, "QUINE_DEPTH", 0),
        }
    parent, root = record.get("session"), record.get("root")
    if not is_session(parent) or not is_session(root):
        return "", "", tree.above
    return str(parent), str(root), max(int(record["depth"]) + 1, tree.above)


def join_tree(
    settings: Settings,
    limits: Limits,
    share: bool = False,
    age: float = 0.0,
    apart: Collection[int] = (),
) -> Tree:
    """Join the tree of this process, by its ledger; create one at the root, or if none can be found.

    `share`: the origin of the tree is elsewhere and this is its first agent here. `age`: of the tree, in seconds.
    `apart` are the inodes of ledgers of other trees, which are not to be joined.
    """
    record = settings.memo.get("lineage")
    held: dict[str, list[inherit.MemoryFile]] = {}

    def walk() -> dict[str, list[inherit.MemoryFile]]:
        walked = _walks.pop() if _walks else inherit.held_above(*_ABOVE)
        held.update(walked if share else caller.with_those_of_caller(walked))
        held[shared_counters.NAME] = [each for each in held[shared_counters.NAME] if each.inode not in apart]
        return held

    told = record.get("ledger") if isinstance(record, dict) else None
    ledger = Ledger.join(told, limits, walk)
    start = _start(settings.memo) or dirs.here()
    if ledger is None:
        start = dirs.here()
        begun = personas.now() - int(age * 1e9)
        found = personas.identities(start, begun if share else 0)
        ledger = Ledger.create(limits, share, max(0, begun), found)
    own = settings.limits._replace(**settings.unset if ledger.purses else {})
    agents = sum("lineage" in memo for memo in _memos(held[inherit.NAME]))
    return Tree(ledger, ledger.bound(own), start, agents)


def _memos(held: list[inherit.MemoryFile]) -> list[dict[str, object]]:
    """Read each memo once: every agent holds a memo of its own, and its commands hold the same one."""
    return [each.memo() for each in {each.inode: each for each in held}.values()]


def ensure_quine(data_dir: str) -> None:
    """Make `quine` available on PATH, also if it was started by a path or as a module. OSError if it cannot."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if any(os.access(os.path.join(place, "quine"), os.X_OK) for place in places if place):
        return
    beside = os.path.dirname(sys.executable)
    if not os.access(os.path.join(beside, "quine"), os.X_OK):
        try:
            beside = _with_quine(address.state_directory(), build_hash()[:16])
        except OSError:  # a home that cannot be written
            beside = _with_quine(data_dir)
    # Last, not first: the user's python and tools take precedence over those beside this interpreter.
    os.environ["PATH"] = os.pathsep.join([*places, beside])


def _with_quine(folder: str, *build: str) -> str:
    """Return a directory of the folder with a script `quine` alone: a pull into a data directory brought others."""
    place = os.path.join(folder, "bin", *build)
    dirs.make_inside(place, 1 + len(build))
    for name in os.listdir(place):
        if "quine" not in name:  # nor one of ours that is being written
            raise Misconfigured(f"{place} holds {name}, which agents would run by name", f"rm -r {place}")
    text = f'#!/bin/sh\nexec {" ".join(map(quote, own_command()))} "$@"\n'
    atomic.write(os.path.join(place, "quine"), text.encode(), 0o700, own=True)
    return place


def _limits(environ: Mapping[str, str], memo: Mapping[str, Any]) -> Limits:
    default = Limits()
    limits = Limits(
        turns=sizes.integer(environ, "QUINE_MAX_TURNS", default.turns),
        depth=sizes.integer(environ, "QUINE_MAX_DEPTH", default.depth),
        agents=sizes.integer(environ, "QUINE_MAX_AGENTS", default.agents),
        concurrent=sizes.integer(environ, "QUINE_MAX_CONCURRENT", default.concurrent),
        sh_timeout=sizes.integer(environ, "QUINE_SH_TIMEOUT", int(default.sh_timeout), sizes.TIMES),
        truncate=sizes.integer(environ, "QUINE_OUTPUT_TRUNCATE", default.truncate, sizes.BYTES),
        window=sizes.integer(environ, "QUINE_CONTEXT_WINDOW", default.window),
        tokens=int(NUMBERS["max_tokens"](environ, "QUINE_MAX_TOKENS", default.tokens)),
        cost=NUMBERS["max_cost"](environ, "QUINE_MAX_COST", default.cost),
        deadline=NUMBERS["deadline"](environ, "QUINE_DEADLINE", default.deadline),
        stored=stored(environ),
    )
    record = memo.get("lineage")
    if isinstance(record, dict) and isinstance(record.get("limits"), dict):
        above = Limits(**record["limits"])
        limits = limits._replace(**unset(environ))._replace(
            depth=min(limits.depth, above.depth),
            agents=min(filter(None, (limits.agents, above.agents)), default=0),
            concurrent=min(filter(None, (limits.concurrent, above.concurrent)), default=0),
        )
    return limits


def _interrupt(environ: Mapping[str, str]) -> str:
    """Return whom the first SIGINT is for."""
    found = environ.get("QUINE_INTERRUPT") or INTERRUPTS[0]
    if found not in INTERRUPTS:
        raise Misconfigured(f"QUINE_INTERRUPT must be one of {', '.join(INTERRUPTS)}, not {found[:80]!r}")
    return found


def _more_than_none(read: Callable[..., float], *units: Mapping[str, int]) -> Callable[..., float]:
    """Return a reader that refuses 0."""

    def limit(environ: Mapping[str, str], name: str, default: float) -> float:
        value = read(environ, name, default, *units)
        if environ.get(name) and not value:
            raise sizes.spent(name)
        return value

    return limit


NUMBERS: Mapping[str, Callable[..., float]] = {
    "max_turns": sizes.integer,
    "max_depth": sizes.integer,
    "max_agents": sizes.integer,
    "max_tokens": _more_than_none(sizes.integer),
    "max_cost": _more_than_none(sizes.number),
    "deadline": _more_than_none(sizes.number, sizes.TIMES),
}


def _texts(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}

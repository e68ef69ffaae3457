"""Everything that a process inherits: each variable read once, here, with its default; and what it passes on.

Laws
1. `adopt` is called once, at the start. After it `os.environ` is exactly what a command in `sh` may
   see: no key, token or password is left in it, nor in what /proc shows of this process, also where a copy of the
   environment is read. The keys of guests live in this process and in a sealed memo (transport/job/inherit.py) for the
   quines among our descendants.
2. An option is its variable: it is put over the environment before that is read, so that children inherit it. A bad
   value is named by what gave it, the option or the variable.
3. Lineage and limits of the tree come from the memo where there is one: changing a variable in `sh` buys
   neither depth nor agents.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from quine.agent import exposure, personas
from quine.agent.session import Life
from quine.base import atomic, dirs, sizes
from quine.base.errors import Misconfigured
from quine.base.messages import Usage
from quine.base.sessions import is_session
from quine.budget import shared_counters
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.files import credentials
from quine.files import urls as place
from quine.providers import FILES, Config
from quine.providers.vendors import KEYS, choose
from transport.job import inherit
from transport.wire import quickjson

# option of the command line -> its variable
OPTIONS = {
    "model": "QUINE_MODEL_ID",
    "max_turns": "QUINE_MAX_TURNS",
    "max_depth": "QUINE_MAX_DEPTH",
    "max_agents": "QUINE_MAX_AGENTS",
    "max_tokens": "QUINE_MAX_TOKENS",
    "max_cost": "QUINE_MAX_COST",
    "deadline": "QUINE_DEADLINE",
    "inventory": "QUINE_INVENTORY",
    "fs": "QUINE_FS",
}
WISDOM = "QUINE_WISDOM_"
# of anything that is limited: what is more is a slip of the hand, and no clock or counter takes it
MOST = 10**9


class Settings(NamedTuple):
    """What was read, once."""

    limits: Limits
    model: str
    shell: str
    data_dir: str
    node: str
    wisdom: dict[str, str]
    secrets: dict[str, str]
    memo: dict[str, Any]
    report: str = ""  # --report, as quine/base/report.py made it ready
    verbose: bool = False  # -v
    spent: Usage = Usage()  # in the former lives of this process
    began: float = 0.0  # seconds since the epoch; over all lives of this process
    masked: tuple[str, ...] = ()  # values that no tape may hold
    top: bool = False  # of its tree, on this machine
    ledger: Ledger | None = None  # what the tree may spend; there from the moment that a life is begun
    start: str = ""  # the directory that the tree was started in, on this machine
    above: int = 0  # agents above us: there are at least as many levels, whatever we were told


def adopt(options: Mapping[str, Any], environ: MutableMapping[str, str] = os.environ) -> Settings:
    """Read the environment, take the secrets out of it, complete it; Misconfigured names what is wrong."""
    memo = inherit.read(environ) or _recovered(environ)
    if environ is os.environ and environ.get("LC_CTYPE") == "C.UTF-8" and not exposure.given("LC_CTYPE"):
        del environ["LC_CTYPE"]  # Python has put it there for itself (PEP 538); no command asked for it
    secrets = _texts(memo.get("environ"))
    for option, variable in OPTIONS.items():
        if (given := options.get(option)) is not None:
            environ[variable] = str(given)
            if option in NUMBERS:
                name = f"--{option.replace('_', '-')}"
                NUMBERS[option]({name: str(given)}, name, 0)
    removed = {name: environ.pop(name) for name in [name for name in environ if inherit.is_secret(name)]}
    # A key out of a file has a newline at its end.
    secrets.update({name: value.strip() for name, value in removed.items() if name in KEYS and value.strip()})
    masked = _store(environ, removed, secrets)
    for name in [n for n, v in environ.items() if any(len(s) >= 8 and s in v for s in secrets.values())]:
        removed[name] = environ.pop(name)
    exposure.forget(removed.keys())
    if environ.get("QUINE_FS") == place.GONE:
        del environ["QUINE_FS"]  # an agent that has no origin elsewhere is its own
    if environ.get("QUINE_FS"):
        environ["QUINE_FS"] = place.absolute(environ["QUINE_FS"])
    data_dir = _absolute(environ.get("QUINE_DATA_DIR") or ".quine")
    environ["QUINE_DATA_DIR"] = data_dir
    for name in ("QUINE_INVENTORY", "QUINE_PRICES"):
        if environ.get(name):
            environ[name] = _absolute(environ[name])
    base, kind = environ.get("QUINE_API_BASE", ""), environ.get("QUINE_API_TYPE")
    if base and kind in FILES and (kind != "program" or "/" in base):  # a bare name is looked up on PATH
        environ["QUINE_API_BASE"] = _absolute(base)
    wisdom = {
        name.removeprefix(WISDOM): value
        for name, value in environ.items()
        if name.startswith(WISDOM) and value and name != WISDOM
    }
    former = _former(memo)
    told = former.get("masked")
    return Settings(
        limits=_limits(environ, memo),
        model=environ.get("QUINE_MODEL_ID", ""),
        shell=environ.get("QUINE_SHELL") or "/bin/sh",
        data_dir=data_dir,
        node=environ.get("QUINE_NODE_NAME") or "local",
        wisdom=wisdom,
        secrets=secrets,
        memo=memo,
        report=str(options.get("report") or former.get("report", "")),
        verbose=bool(options.get("verbose") or former.get("verbose")),
        spent=Usage(*former["usage"]) if isinstance(former.get("usage"), list) else Usage(),
        began=float(former.get("began") or time.time()),
        top="lineage" not in memo or former.get("top") is True,
        start=_start(memo),
        masked=tuple(
            {
                *(value for name, value in secrets.items() if name != credentials.URL),
                *map(str.strip, removed.values()),
                *masked,
                *(told if isinstance(told, list) else ()),
            }
        ),
    )


def _store(environ: MutableMapping[str, str], removed: dict[str, str], secrets: dict[str, str]) -> list[str]:
    """Keep what opens the store of the files tier, and only that; show its URL without a password.

    What of it no tape may hold.
    """
    url, options = environ.get(credentials.URL, ""), removed.get(credentials.OPTIONS, "")
    secrets.update(credentials.kept(url, removed))
    if credentials.shown(url) != url:
        environ[credentials.URL] = credentials.shown(url)
        exposure.forget([credentials.URL])
    return credentials.secrets_of(
        secrets.get(credentials.URL, url), options or secrets.get(credentials.OPTIONS, "")
    )


def _recovered(environ: MutableMapping[str, str]) -> dict[str, Any]:
    """The memo that somebody between us and the agent above has lost: `env -i`, or closed descriptors."""
    if environ is not os.environ:
        return {}
    for _, _, path in inherit.held_above(inherit.NAME)[inherit.NAME]:
        fd = inherit.reopened(path, os.O_RDONLY)
        os.set_inheritable(fd, True)
        environ[inherit.VARIABLE] = str(fd)
        return inherit.read(environ)
    return {}


def _start(memo: Mapping[str, Any]) -> str:
    told = memo.get("lineage")
    start = told.get("start") if isinstance(told, dict) else None
    return start if isinstance(start, str) else ""


def _former(memo: Mapping[str, Any]) -> dict[str, Any]:
    """What the former life of this very process left for this one."""
    former = memo.get("exec")
    return former if isinstance(former, dict) and former.get("pid") == os.getpid() else {}


def here() -> str:
    """The working directory, or / where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _absolute(path: str) -> str:
    """As os.path.abspath, which fails where the working directory has been removed."""
    return os.path.normpath(os.path.join(here(), os.path.expanduser(path)))


def guest(settings: Settings, environ: Mapping[str, str] = os.environ) -> Config:
    """How to reach the guest; Misconfigured says how to get one."""
    return choose({**environ, **settings.secrets})


def bequeath(settings: Settings, life: Life, exec_state: dict[str, Any] | None = None) -> int:
    """Write the memo for our descendants and return its descriptor; the environment names it from now on.

    `exec_state` is for this very process after execve(), and for nobody else.
    """
    memo = {key: value for key, value in settings.memo.items() if key != "exec"}
    memo["environ"] = settings.secrets
    memo["lineage"] = {
        "session": life.session,
        "root": life.root,
        "depth": life.depth,
        "limits": life.limits._asdict(),
        "start": settings.start,
        "ledger": settings.ledger.to_json(settings.limits) if settings.ledger else None,
    }
    if exec_state is not None:
        memo["exec"] = exec_state
    if len(quickjson.dumps(memo)) > inherit.LIMIT:
        raise ValueError("mission and wisdom together are too long")
    fd = inherit.write(memo)
    os.set_inheritable(fd, True)
    if inherit.read():  # the memo before, which nobody would ever read again
        os.close(int(os.environ[inherit.VARIABLE]))
    os.environ[inherit.VARIABLE] = str(fd)
    os.environ["QUINE_SESSION_ID"] = life.session
    os.environ["QUINE_PARENT_SESSION"] = life.parent
    os.environ["QUINE_ROOT_SESSION"] = life.root
    os.environ["QUINE_DEPTH"] = str(life.depth)
    for name in [name for name in os.environ if name.startswith(WISDOM)]:
        del os.environ[name]
    os.environ.update({f"{WISDOM}{key}": value for key, value in life.wisdom.items()})
    return fd


def lineage(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, str, int]:
    """(parent's session, root's session, own depth); ("", "", 0) for the root of a tree."""
    told = settings.memo.get("lineage")
    if not isinstance(told, dict):
        told = {
            "session": environ.get("QUINE_SESSION_ID"),
            "root": environ.get("QUINE_ROOT_SESSION"),
            "depth": _integer(environ, "QUINE_DEPTH", 0),
        }
    parent, root = told.get("session"), told.get("root")
    if not is_session(parent) or not is_session(root):
        return "", "", settings.above
    return str(parent), str(root), max(int(told["depth"]) + 1, settings.above)


def join_ledger(settings: Settings, limits: Limits, share: bool = False, age: float = 0.0) -> Settings:
    """With the ledger of the tree that we belong to; with a new one at its root, or where none can be found.

    `share`: the origin of the tree is elsewhere, and we are its first agent here; the tree is `age` seconds old.
    """
    told = settings.memo.get("lineage")
    held = inherit.held_above(shared_counters.NAME, inherit.NAME)
    joined = Ledger.join(
        told.get("ledger") if isinstance(told, dict) else None, limits, held[shared_counters.NAME]
    )
    if joined is None:
        settings = settings._replace(start=here())
        begun = personas.now() - int(age * 1e9)
        found = personas.identities(settings.start, begun if share else 0)
        joined = Ledger.create(limits, share, max(0, begun), found)
    above = sum("lineage" in memo for memo in _memos(held[inherit.NAME]))
    return settings._replace(ledger=joined, limits=joined.bound(settings.limits), above=above)


def _memos(held: list[tuple[int, int, str]]) -> list[dict[str, object]]:
    """Each once: every agent holds one of its own, and its commands hold that too."""
    memos = []
    for path in {inode: path for _, inode, path in held}.values():
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                memos.append(inherit.read({inherit.VARIABLE: str(fd)}))
            finally:
                os.close(fd)
    return memos


def ensure_quine(data_dir: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """A `quine` on PATH, also where we were started by a path or as a module. OSError where there can be none."""
    places = environ.get("PATH", os.defpath).split(os.pathsep)
    if any(os.access(os.path.join(place, "quine"), os.X_OK) for place in places if place):
        return
    beside = os.path.dirname(sys.executable)
    if not os.access(os.path.join(beside, "quine"), os.X_OK):
        beside = os.path.join(data_dir, "bin")
        dirs.make(beside)
        text = f'#!/bin/sh\nexec {quote(sys.executable)} -P -m quine "$@"\n'
        atomic.write(os.path.join(beside, "quine"), text.encode(), 0o700, own=True)
    # Last, not first: the user's own python and tools come before those that lie beside ours.
    environ["PATH"] = os.pathsep.join([*places, beside])


def unfit(text: str) -> str:
    """What keeps a text that a guest sent out of an argv, an environment or a file name; "" where nothing does."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is no character"
    return ""


def quote(text: str) -> str:
    """One word for a POSIX shell, whatever is in it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _limits(environ: Mapping[str, str], memo: Mapping[str, Any]) -> Limits:
    default = Limits()
    limits = Limits(
        turns=_integer(environ, "QUINE_MAX_TURNS", default.turns),
        depth=_integer(environ, "QUINE_MAX_DEPTH", default.depth),
        agents=_integer(environ, "QUINE_MAX_AGENTS", default.agents),
        concurrent=_integer(environ, "QUINE_MAX_CONCURRENT", default.concurrent),
        sh_timeout=_integer(environ, "QUINE_SH_TIMEOUT", int(default.sh_timeout)),
        truncate=_integer(environ, "QUINE_OUTPUT_TRUNCATE", default.truncate),
        window=_integer(environ, "QUINE_CONTEXT_WINDOW", default.window),
        tokens=_integer(environ, "QUINE_MAX_TOKENS", default.tokens),
        cost=_number(environ, "QUINE_MAX_COST", default.cost),
        deadline=_number(environ, "QUINE_DEADLINE", default.deadline),
        stored=sizes.of(environ, "QUINE_FS_QUOTA"),
    )
    told = memo.get("lineage")
    if isinstance(told, dict) and isinstance(told.get("limits"), dict):
        above = Limits(**told["limits"])
        limits = limits._replace(
            depth=min(limits.depth, above.depth),
            agents=min(filter(None, (limits.agents, above.agents)), default=0),
            concurrent=min(filter(None, (limits.concurrent, above.concurrent)), default=0),
        )
    return limits


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise Misconfigured(f"{name} must be an integer, not {text[:80]!r}")
    if digits != text:
        raise Misconfigured(f"{name} must not be negative, and is {text[:80]}")
    if len(text) > 20 or int(text) > MOST:
        raise Misconfigured(f"{name} must not be more than {MOST}")
    return int(text)


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise Misconfigured(f"{name} must be a number, not {text[:80]!r}") from None
    if not 0 <= value <= MOST:
        raise Misconfigured(f"{name} must be 0 or more, and not more than {MOST}, and is {text[:80]}")
    return value


NUMBERS: Mapping[str, Callable[[Mapping[str, str], str, int], float]] = {
    "max_turns": _integer,
    "max_depth": _integer,
    "max_agents": _integer,
    "max_tokens": _integer,
    "max_cost": _number,
    "deadline": _number,
}


def _texts(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}

"""The description of a job to start: the body of a spawn frame.

Laws
1. An argv travels as a list and is never joined: no shell stands between the origin and a command.
2. A peer's spawn is read strictly; one unknown field, or one of the wrong type, makes the whole spawn invalid.
3. Fields that many jobs of a link share are sent and checked once, as a `Template`. A spawn by it has the others.
4. `id` is made by the caller, a fresh one for each try. A node refuses the id of a job that runs there now.
"""

from __future__ import annotations

import os

from transport import quickjson
from transport.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SHOWN = 200  # arguments and characters of a command that people see
LEASE = 600.0  # seconds a job outlives a broken link
LONGEST_DEADLINE = 1e9  # seconds
LONGEST_CAPABILITY = 64  # characters

_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "argv": (list,),
    "own": (bool,),
    "where": (str,),
    "env": (dict,),
    "cwd": (str, type(None)),
    "workdir": (str, type(None)),
    "tree": (str,),
    "folder": (str,),
    "limits": (dict,),
    "lease": (int, float),
    "deadline": (int, float),
    "slots": (int,),
    "keep": (bool,),
    "adopt": (bool,),
    "merged": (bool,),
    "context": (dict,),
    "terminal": (dict, type(None)),
    "capability": (str,),
}
OWN = ("id", "argv", "capability")  # the fields that each job has for itself
_SHARED = tuple(name for name in _TYPES if name not in OWN)
_RARE: dict[str, object] = {"merged": False, "folder": ""}  # fields that are absent with this value
_SETTLED = tuple(
    name for name in _SHARED if name not in ("where", "context")
)  # as the host of a job gets them
MOST_DERIVED = 1024
LARGEST_TEMPLATE = 60 * 1024  # bytes: one frame


class Spawn:
    """One job to start.

    argv     command and arguments; with `own`, arguments of quine itself, whose executable the node knows
    where    WHERE expression, "" or "local" for this node
    env      added to the environment of the node's login; on the caller's own machine the whole environment
    cwd      directory to start in; an error if it is missing. None: workdir/tree, made if missing
    folder   in place of the tree in that: for a job that shares its directory with no other of its tree
    limits   name -> value: as cpu fsize nofile nproc (bytes, seconds, counts)
    lease    seconds the job outlives a broken link
    deadline seconds that it may run: TERM then, KILL later, and its status is 124. 0: no limit
    slots    jobs of this node that run at one time over there, set by the node; the others wait there. 0: no limit
    keep     the job outlives its client, too, for the lease; its record stays until the client has said that it has it
    adopt    start nothing: attach to the kept job with this id
    merged   one pipe is both its stdout and its stderr, and comes as stdout. A terminal is that anyway
    context  facts about the caller that placement needs: inventory file, ssh agent, caller's directory; its `timeout`
    terminal {"rows", "columns", "term"} of the terminal that the job gets in place of three pipes; None: the pipes
    capability  secret that the job shows with each request to its opener; kept in the job's memo
    """

    __slots__ = (*_TYPES, "template")

    def __init__(
        self,
        argv: list[str],
        *,
        id: str = "",
        own: bool = False,
        where: str = "",
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        workdir: str | None = None,
        tree: str = "",
        folder: str = "",
        limits: dict[str, str] | None = None,
        lease: float = LEASE,
        deadline: float = 0.0,
        slots: int = 0,
        keep: bool = False,
        adopt: bool = False,
        merged: bool = False,
        context: dict[str, Any] | None = None,
        terminal: dict[str, Any] | None = None,
        capability: str = "",
    ) -> None:
        self.id = id or os.urandom(16).hex()
        self.argv = argv
        self.own = own
        self.where = where
        self.env = env or {}
        self.cwd = cwd
        self.workdir = workdir
        self.tree = tree or self.id
        self.folder = folder
        self.limits = limits or {}
        self.lease = lease
        self.deadline = deadline
        self.slots = slots
        self.keep = keep
        self.adopt = adopt
        self.merged = merged
        self.context = context or {}
        self.terminal = terminal
        self.capability = capability
        self.template: Template | None = None  # that it came by, or is sent by

    @property
    def directory(self) -> str:
        """The name of its directory in workdir, if it has no cwd."""
        return self.folder or self.tree

    def apart(self, files: bool) -> None:
        """With files it has a directory of its own: others of its tree may have other files under the same names."""
        self.folder = self.id if files and self.cwd is None else ""

    def facts(self) -> dict[str, object]:
        """Return facts that tell people which job it is, cut short. `own` says that the command is quine itself."""
        from transport.status import clip  # here: a client that has no job yet needs none of it

        command = clip(" ".join(self.argv[:SHOWN])[:SHOWN])
        return {"id": self.id, "tree": self.tree, "own": self.own, "command": command}

    def to_json(self) -> dict[str, Any]:
        return self._fields(_TYPES)

    def own_fields(self) -> dict[str, Any]:
        """Return the fields that a spawn by a template has."""
        return {name: getattr(self, name) for name in OWN}

    def shared_fields(self) -> dict[str, Any]:
        """Return the fields that a template has."""
        return self._fields(_SHARED)

    def _fields(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if name not in _RARE or getattr(self, name)}

    @classmethod
    def from_json(cls, body: dict[str, Any], template: Template | None = None) -> Spawn:
        """Read a spawn of a peer, by a template of that peer if it names one. Raises ProtocolError with the fault."""
        if template:
            check_own(body)
            spawn = cls(**template.fields, **body)
            spawn.template = template
            return spawn
        for name, value in body.items():
            if name not in _TYPES or not isinstance(value, _TYPES[name]):
                raise ProtocolError(f"spawn with a bad field {name[:40]!r}")
        for name in ("id", "argv", "tree"):
            if not body.get(name):
                raise ProtocolError(f"spawn without {name}")
        env, limits = body.get("env", {}), body.get("limits", {})
        texts = [*body["argv"], *env, *env.values(), *limits.values(), body["id"], body["tree"]]
        if any(not name or "=" in name for name in env):
            raise ProtocolError("spawn with a bad name in env")
        if not all(isinstance(text, str) and encodable(text) for text in texts):
            raise ProtocolError("an argument, a variable or a limit that no command can be given")
        if not all(encodable(body.get(name) or "") for name in ("cwd", "workdir", "where")):
            raise ProtocolError("a directory or a host that cannot be named")
        if not all(map(is_id, (body["id"], body["tree"], body.get("folder") or body["id"]))):
            raise ProtocolError("spawn with a bad id")
        if len(body.get("capability", "")) > LONGEST_CAPABILITY:
            raise ProtocolError("spawn with a bad capability")
        if not 0 <= body.get("lease", 0) <= 31_536_000:
            raise ProtocolError("spawn with a bad lease")
        if not 0 <= body.get("deadline", 0) <= LONGEST_DEADLINE:
            raise ProtocolError("spawn with a bad deadline")
        if not 0 <= body.get("slots", 0) <= 1_000_000:
            raise ProtocolError("spawn with bad slots")
        if not is_terminal(body.get("terminal")):
            raise ProtocolError("spawn with a bad terminal")
        return cls(**body)


def check_own(body: dict[str, Any]) -> None:
    """Check the fields of a spawn by a template. Raises ProtocolError."""
    if set(body) != set(OWN):
        raise ProtocolError("spawn by a template with other fields than its own")
    id, argv, capability = (body[name] for name in OWN)
    if not (isinstance(argv, list) and argv and isinstance(id, str) and isinstance(capability, str)):
        raise ProtocolError("spawn by a template with a bad field")
    if not all(isinstance(text, str) and encodable(text) for text in argv):
        raise ProtocolError("an argument, a variable or a limit that no command can be given")
    if not (id and is_id(id)):
        raise ProtocolError("spawn with a bad id")
    if len(capability) > LONGEST_CAPABILITY:
        raise ProtocolError("spawn with a bad capability")


class Template:
    """The fields that spawns of one link share. `derived` holds the results that an end works out from them."""

    __slots__ = ("derived", "fields")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.derived: dict[str, Any] = {}

    @classmethod
    def of(cls, spawn: Spawn, **changed: Any) -> Template:
        """Return the template by which `spawn` could be sent, unchecked; with `changed` fields."""
        return cls({**spawn.shared_fields(), **changed})

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Template:
        """Read a template of a peer. Raises ProtocolError."""
        if set(body) | set(_RARE) != set(_SHARED):
            raise ProtocolError("template with other fields than those that jobs share")
        Spawn.from_json({"id": "x", "argv": ["x"], **body})
        return cls(body)

    @property
    def is_small(self) -> bool:
        """Whether it goes into a frame."""
        small = self.derived.get("small")
        if small is None:
            small = self.derive("small", len(quickjson.dumps(self.fields)) <= LARGEST_TEMPLATE)
        return bool(small)

    def fits(self, spawn: Spawn, settled: bool = False) -> bool:
        """Return whether `spawn` could be sent by this; `settled`: to its host, without its WHERE and its context."""
        names, fields = _SETTLED if settled else _SHARED, self.fields
        return all(getattr(spawn, name) == fields.get(name, _RARE.get(name)) for name in names)

    def derive(self, name: str, made: Any) -> Any:
        """Keep what was made of this for `name`, and return it."""
        if len(self.derived) >= MOST_DERIVED:
            self.derived.clear()
        self.derived[name] = made
        return made


def is_terminal(body: dict[str, Any] | None) -> bool:
    """Return whether `body` is None, or a size and a terminal type and nothing else."""
    if body is None:
        return True
    term = body.get("term")
    named = isinstance(term, str) and len(term) <= 128 and encodable(term)
    return named and set(body) == {"rows", "columns", "term"} and is_size(body["rows"], body["columns"])


def is_size(rows: object, columns: object) -> bool:
    return all(type(value) is int and 0 <= value <= 0xFFFF for value in (rows, columns))


def is_id(text: str) -> bool:
    """Return whether `text` is at most 64 letters, digits and dashes: an id names a directory on the job's host."""
    return text.isascii() and text.replace("-", "").isalnum() and len(text) <= 64


def encodable(text: str) -> bool:
    """Return whether `text` can be an argument: no NUL, and no lone surrogate but those of os.fsdecode."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False

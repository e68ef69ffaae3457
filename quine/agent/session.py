"""One life of one agent as a value: what it must do, where it comes from, what it already knows.

Laws
1. A life is made before anything is started and never changes; the loop owns what changes.
2. It is JSON both ways, so that a life can be lived on another machine.
3. `context` was lived by the parent and stands on the parent's tape (`cloned` says where); `opening` is
   this life's own beginning. Together they are what the guest sees first. Both empty: a fresh life,
   whose beginning is written where it is lived.
4. It holds no secret.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from quine.providers.base import Message

MATERIALS = ("", "none", "terminal", "pipe", "file", "socket")  # "" = look at descriptor 0 where it is lived


SHOWN = 4096  # characters of a mission in an argv


class Limits(NamedTuple):
    """What bounds a life; 0 = no limit, except for depth."""

    turns: int = 20
    depth: int = 5
    agents: int = 10
    concurrent: int = 20
    sh_timeout: float = 600.0
    truncate: int = 20480
    window: int = 128000
    tokens: int = 0
    cost: float = 0.0  # US dollars
    deadline: float = 0.0  # seconds
    stored: int = 0  # bytes of the tree in the files tier; the root's holds


class Life(NamedTuple):
    session: str
    root: str
    mission: str
    parent: str = ""
    depth: int = 0
    model: str = ""
    shell: str = "/bin/sh"
    limits: Limits = Limits()
    material: str = ""
    material_file: str = ""  # where -b put it
    hidden: bool = False  # the mission came from a file, so that it need not show in ps
    wisdom: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    hosts: str = ""  # those that it may use, a JSON text; "" for none
    persona: str = ""  # a text of the user's, which the guest chose
    context: tuple[Message, ...] = ()
    opening: tuple[Message, ...] = ()
    cloned: tuple[str, int] = ("", 0)  # the parent's session, and how many lines of its tape
    born: str = "start"  # start, fork, exec
    age: float = 0.0  # seconds since the tree began, where a life is told to another machine

    @property
    def shown(self) -> str:
        """The mission for an argv, where it is for people: cut, without what no argv holds, and not out of a file."""
        if self.hidden:
            return "(a mission from a file)"
        # What a model wrote may hold half of a surrogate pair.
        return self.mission[:SHOWN].replace("\0", " ").encode("utf-8", "replace").decode()

    def to_json(self) -> dict[str, Any]:
        data = self._asdict()
        data["limits"] = self.limits._asdict()
        data["context"] = [message.to_json() for message in self.context]
        data["opening"] = [message.to_json() for message in self.opening]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Life:
        """Strict about names and types; ValueError says what is wrong."""
        try:
            fields = dict(data)
            fields["limits"] = _typed(Limits, dict(fields.get("limits", {})))
            fields["context"] = tuple(map(Message.from_json, fields.get("context", ())))
            fields["opening"] = tuple(map(Message.from_json, fields.get("opening", ())))
            session, lines = fields.get("cloned", ("", 0))
            fields["cloned"] = (str(session), int(lines))
            life: Life = _typed(cls, fields)
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a life: {error}") from None
        if life.material not in MATERIALS or not is_session(life.session) or not is_session(life.root):
            raise ValueError("not a life: material or session")
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in life.wisdom.items()):
            raise ValueError("not a life: wisdom")
        return life


def _typed(kind: Any, fields: dict[str, Any]) -> Any:
    """Make `kind` of fields that must have the types of its defaults (or be text where it has none)."""
    value = kind(**fields)
    for name in kind._fields:
        wanted = type(kind._field_defaults.get(name, ""))
        given = getattr(value, name)
        if isinstance(given, bool) != (wanted is bool) or not isinstance(
            given, (int, float) if wanted is float else wanted
        ):
            raise TypeError(f"{name} is {type(given).__name__}")
    return value


def new_session() -> str:
    """A UUID of version 7: random, and sorted by the millisecond of its making."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    number = number & ~(0xF << 76) | 7 << 76
    number = number & ~(0x3 << 62) | 2 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def another(life: Life) -> Life:
    """The same once more, as a session of its own; the root of a tree is the root of another tree."""
    session = new_session()
    return life._replace(session=session, root=session if life.root == life.session else life.root)


def is_session(text: object) -> bool:
    """A UUID in its one spelling; a session is also a file name, so nothing else may pass."""
    if not isinstance(text, str) or len(text) != 36:
        return False
    dashes = text[8] == text[13] == text[18] == text[23] == "-" and text.count("-") == 4
    return dashes and not text.replace("-", "").strip("0123456789abcdef")

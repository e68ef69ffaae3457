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

from typing import Any, NamedTuple

from quine.base.messages import Message
from quine.base.sessions import SHOWN, is_session, new_session
from quine.budget.limits import Limits

MATERIALS = ("", "none", "terminal", "pipe", "file", "socket")  # "" = look at descriptor 0 where it is lived


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


def another(life: Life) -> Life:
    """The same once more, as a session of its own; the root of a tree is the root of another tree."""
    session = new_session()
    return life._replace(session=session, root=session if life.root == life.session else life.root)

"""Description of one session as a value: mission, lineage, limits, and the conversation it begins with.

Laws
1. A `SessionSpec` is made before anything is started and never changes; changing state belongs to the loop.
2. It converts to JSON and back, so that a session can run on another machine.
3. `context` is the conversation of the parent, on the parent's tape (`cloned` says where). `opening` holds the first
   messages of this session. The guest sees both first. If both are empty, the session writes its first messages on
   the machine where it runs.
4. It holds no secret.
"""

from __future__ import annotations

from quine.base.messages import Message
from quine.base.sessions import SHOWN, is_session, new_session
from quine.budget.limits import Limits
from transport.lean import Any, NamedTuple

MATERIALS = ("", "none", "terminal", "pipe", "file", "socket")  # "": unknown until it runs


class SessionSpec(NamedTuple):
    session: str
    root: str
    mission: str
    parent: str = ""
    depth: int = 0
    model: str = ""
    shell: str = "/bin/sh"
    interrupt: str = "agent"  # whom the first SIGINT is for; or "command"
    limits: Limits = Limits()
    material: str = ""
    material_file: str = ""  # path of the file written by -b
    binary: bool = (
        False  # -b: stdin is still to be written to a file, on the machine where the session begins
    )
    hidden: bool = False  # the mission came from a file, and ps does not show it
    wisdom: dict[str, str] = {}  # noqa: RUF012 - never changed in place
    hosts: str = ""  # hosts that it may use, as JSON; "" for none
    persona: str = ""  # text written by the user, chosen by the guest
    context: tuple[Message, ...] = ()
    opening: tuple[Message, ...] = ()
    cloned: tuple[str, int] = ("", 0)  # session of the parent, and length of its tape in lines
    born: str = "start"  # start, fork, exec
    age: float = 0.0  # seconds since the tree began, set when sent to another machine
    env: dict[str, str] = {}  # noqa: RUF012 - variables of its commands, besides those of its machine
    rlimits: dict[str, str] = {}  # noqa: RUF012 - limits by `fork`, for children on other machines, too

    @property
    def shown(self) -> str:
        """The mission to show in argv: truncated, without NUL characters, and a placeholder if it came from a file."""
        if self.hidden:
            return "(a mission from a file)"
        # Text from a model may hold half of a surrogate pair.
        return self.mission[:SHOWN].replace("\0", " ").encode("utf-8", "replace").decode()

    def to_json(self) -> dict[str, Any]:
        data = self._asdict()
        data["limits"] = self.limits._asdict()
        data["context"] = [message.to_json() for message in self.context]
        data["opening"] = [message.to_json() for message in self.opening]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SessionSpec:
        """Parse, strict about names and types. Raises ValueError with the reason."""
        try:
            fields = dict(data)
            fields["limits"] = _typed(Limits, dict(fields.get("limits", {})))
            fields["context"] = tuple(map(Message.from_json, fields.get("context", ())))
            fields["opening"] = tuple(map(Message.from_json, fields.get("opening", ())))
            session, lines = fields.get("cloned", ("", 0))
            fields["cloned"] = (str(session), int(lines))
            spec: SessionSpec = _typed(cls, fields)
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a life: {error}") from None
        if spec.material not in MATERIALS or not is_session(spec.session) or not is_session(spec.root):
            raise ValueError("not a life: material or session")
        for name in ("wisdom", "env", "rlimits"):
            if not all(isinstance(k, str) and isinstance(v, str) for k, v in getattr(spec, name).items()):
                raise ValueError(f"not a life: {name}")
        if any(not name or "=" in name or "\0" in name + value for name, value in spec.env.items()):
            raise ValueError("not a life: env")
        return spec


def _typed(kind: Any, fields: dict[str, Any]) -> Any:
    """Return `kind(**fields)`; TypeError if a field does not have the type of its default (text if it has none)."""
    value = kind(**fields)
    for name in kind._fields:
        wanted = type(kind._field_defaults.get(name, ""))
        given = getattr(value, name)
        if isinstance(given, bool) != (wanted is bool) or not isinstance(
            given, (int, float) if wanted is float else wanted
        ):
            raise TypeError(f"{name} is {type(given).__name__}")
    return value


def another(spec: SessionSpec) -> SessionSpec:
    """Return a copy of `spec` as a new session; a root becomes the root of a new tree."""
    session = new_session()
    return spec._replace(session=session, root=session if spec.root == spec.session else spec.root)

"""The templates of a link: the fields that spawns of it share, sent once and named by a number.

Laws
1. Each end keeps MAX_TEMPLATES at most, of one frame each. The sender defines a number again for another template, and
   begins with the oldest.
2. They are counted frames, in one order with the spawns that name them. So a break of a line changes nothing, and a
   new link begins without any.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.spawn import Template
from transport.wire.frames import NAMES, Frame, Kind, pack

MAX_TEMPLATES = 64


class Templates:
    def __init__(self) -> None:
        self._theirs: dict[int, Template] = {}
        self._ours: dict[Template, int] = {}  # in the order in which they were defined

    def __len__(self) -> int:
        """How many the other end has defined."""
        return len(self._theirs)

    def take(self, frame: Frame) -> None:
        """Take a template of the other end. Raises ProtocolError."""
        if frame.channel or not 0 < frame.offset <= MAX_TEMPLATES:
            raise ProtocolError(f"template with the number {frame.offset}")
        self._theirs[frame.offset] = Template.from_json(frame.body())

    def named(self, frame: Frame) -> Template | None:
        """Return the template that a spawn names, if it names one. Raises ProtocolError."""
        if not frame.offset:
            return None
        template = self._theirs.get(frame.offset)
        if template is None or frame.kind != Kind.SPAWN:
            raise ProtocolError(f"{NAMES[frame.kind].lower()} by template {frame.offset}, which was not sent")
        return template

    def name(self, template: Template) -> tuple[int, bytes]:
        """Return the number of a template, and the payload that defines it, b"" if that was sent.

        ValueError: it is too large for a frame.
        """
        if number := self._ours.get(template, 0):
            return number, b""
        payload = pack(template.fields)
        number = len(self._ours) + 1
        if number > MAX_TEMPLATES:
            number = self._ours.pop(next(iter(self._ours)))
        self._ours[template] = number
        return number, payload

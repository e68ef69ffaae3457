"""The messages of a batch on stderr, above its view: each reason once, however many items have it."""

from __future__ import annotations

from quine.base.errors import error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.output.sinks import Sink
    from transport.status import Status

SHOWN = 10  # faults of starts and losses that are printed


class Messages:
    def __init__(self, sink: Sink, quiet: bool) -> None:
        self._sink = sink
        self._quiet = quiet
        self._faults: set[str] = set()
        self._left: set[str] = set()
        self._lost = 0

    def say(self, text: str) -> None:
        """Print a line, also with -q."""
        self._sink.say(f"quine: {text}\n")

    def note(self, text: str) -> None:
        """Print a line that is no error."""
        if not self._quiet:
            self.say(text)

    def fault(self, item: int, host: str, detail: str, hint: str = "") -> None:
        """Print why an item was not started, or is lost; the same reason once."""
        if detail not in self._faults and len(self._faults) < SHOWN:
            self._faults.add(detail)
            self._sink.say(error_text(f"item {item}: {detail}", hint, host))

    def lost(self, item: int) -> None:
        """Name an item whose job was sent by a run before, and that no host has."""
        self._lost += 1
        if self._lost <= SHOWN:
            detail = "it was sent before the batch ended, and no host has it or its end any more"
            self._sink.say(error_text(f"item {item}: {detail}"))

    def more_lost(self) -> None:
        """Say how many of them were not named."""
        if self._lost > SHOWN:
            self._sink.say(error_text(f"and {self._lost - SHOWN} more items that no host has any more"))

    def left(self, status: Status) -> None:
        """Name a directory in which files are left; many jobs may name the same."""
        text = f"{status.host or 'local'}: files are left in {status.left}"
        if text not in self._left:
            self._left.add(text)
            self.note(text)

"""The messages of a batch on stderr, above its view: each reason once, however many items have it."""

from __future__ import annotations

from quine.base.errors import error_text
from quine.base.text import plain, shown_path
from quine.fanout.outcome import FAILED, KILLED, LOST, STRIKES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from quine.fanout.output.sinks import Sink
    from quine.fanout.tasks import Task
    from transport.status import Status

SHOWN = 10  # faults of starts and losses that are printed
NAMED = 3  # items that are not done, at the end
LONGEST = 40  # characters of an item in a message


class Messages:
    def __init__(self, sink: Sink, quiet: bool) -> None:
        self._sink = sink
        self._quiet = quiet
        self._faults: set[str] = set()
        self._left: set[str] = set()
        self._lost = 0
        self._unheard: dict[str, None] = {}  # hosts that did not answer, and may have jobs of the run before
        self._said_unread = False
        self._left_behind = self._unlogged = 0
        self._not_done: list[tuple[int, str]] = []
        self._more = 0  # that are not named

    def say(self, text: str) -> None:
        """Print a line, also with -q. It may repeat words of a host or a guest."""
        self._sink.say(f"quine: {plain(text)}\n")

    def note(self, text: str) -> None:
        """Print a line that is no error."""
        if not self._quiet:
            self.say(text)

    def fault(self, item: int, host: str, detail: str, hint: str = "") -> None:
        """Print why an item was not started, or is lost: the same reason once, and that there are others, once."""
        if detail in self._faults or len(self._faults) > SHOWN:
            return
        self._faults.add(detail)
        if len(self._faults) <= SHOWN:
            self._sink.say(error_text(f"item {item}: {detail}", hint, host))
        else:
            self.say(
                "and more items, for other reasons, which are not shown; their number is in the last line"
            )

    def lost(self, item: int, host: str) -> None:
        """Name an item whose job was sent by a run before, and that no host has; `host`: on which it has started."""
        self._lost += 1
        if self._lost <= SHOWN:
            detail = "it was sent before the batch ended, and no host has it or its end any more"
            hint = "--resume --idempotent runs it again" if self._lost == 1 else ""
            self._sink.say(error_text(f"item {item}: {detail}", hint, host))

    def unheard(self, hosts: Iterable[str]) -> None:
        """Note hosts that did not answer, and may have the job of an item."""
        self._unheard.update(dict.fromkeys(hosts))

    def sum_up(self, left_open: int) -> None:
        """Say how many items that no host has were not named, and how many are left open as hosts did not answer."""
        if self._lost > SHOWN:
            self._sink.say(error_text(f"and {self._lost - SHOWN} more items that no host has any more"))
        if left_open:
            hosts, them = ", ".join(self._unheard), "it" if len(self._unheard) == 1 else "them"
            detail = f"{hosts} did not answer; {left_open} items were sent before, and may have run there"
            hint = f"start {them}, then --resume; --resume --idempotent runs the items again without {them}"
            self._sink.say(error_text(detail, hint))

    def set_aside(self, status: Status) -> None:
        """Tell of a host on which jobs cannot be started."""
        why = f": {status.detail}" if status.detail else ""
        self.note(f"{status.host}: {STRIKES} starts in a row have failed; set aside for a while{why}")

    def not_done(self, task: Task) -> None:
        """Note how an item ended, for the end of the batch."""
        if len(self._not_done) == NAMED:
            self._more += 1
            return
        from transport.status import signal_name

        entry, how = task.entry, task.entry.kind
        if how in (FAILED, KILLED):
            how = signal_name(entry.signal) if entry.signal else f"status {entry.code}" if entry.code else how
        if entry.unreturned and entry.kind != LOST:
            how += f", its results are on {entry.host or 'local'}"
        text = plain(" ".join(task.item.args), newlines=False)
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        name = f"item {task.item.number}" + (f" ({text})" if text else "")
        self._not_done.append((task.item.number, f"{name}: {how}"))

    def unfinished(self, log: str) -> str:
        """Return the first items that are not done, and where the others are: in `log`, if there is one."""
        where = f"in {log}" if log else "--joblog FILE records them"
        named = [text for _, text in sorted(self._not_done)]
        return "; ".join([*named, *([f"{self._more} more: {where}"] if self._more else [])])

    def unlogged(self, task: Task) -> None:
        """Name an item whose output was passed on, and whose end cannot be recorded; no further output is passed on."""
        self._sink.stop()
        self._unlogged += 1
        if self._unlogged <= SHOWN:
            text = "its output was passed on and its end is not in the log; --resume passes it on again"
            self.say(f"item {task.item.number}: {text}")
        elif self._unlogged == SHOWN + 1:
            self.say("and more items of which that is true")

    def not_passed_on(self, outputs: int) -> None:
        """Say how many outputs wait for the next run, since their ends cannot be recorded."""
        if outputs:
            self.say(f"{outputs} finished outputs were not passed on; --resume does it")

    def left_behind(self, task: Task) -> None:
        """Tell of an item whose end was not heard of in time."""
        self._left_behind += 1
        if self._left_behind <= SHOWN:
            self.say(f"item {task.item.number}: its end was not heard of; --resume asks its host for it")
        elif self._left_behind == SHOWN + 1:
            self.say("and more items, of which --resume asks their hosts")

    def left_unread(self) -> None:
        """Tell once of jobs of the run before whose items are not among those that were read."""
        if not self._said_unread:
            self._said_unread = True
            text = "their hosts end them after their lease, unless --resume with those items is earlier"
            self.note(f"jobs of the run before go on, whose items are not among these: {text}")

    def left(self, status: Status) -> None:
        """Name a directory in which files are left; many jobs may name the same."""
        text = f"{status.host or 'local'}: files are left in {shown_path(status.left)}"
        if text not in self._left:
            self._left.add(text)
            self.note(text)

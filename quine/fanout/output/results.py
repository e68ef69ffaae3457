"""Outputs opened and passed on as the options say: tags, copies below --results, JSON instead."""

from __future__ import annotations

import os

from quine.base.errors import LOST, Failure, Misconfigured, complain, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.options import Options
    from quine.fanout.output.sinks import Output, Sink
    from quine.fanout.output.spool import Spool
    from quine.fanout.tasks import Task, Work
    from transport.status import Status

LONGEST = 250  # bytes of a name
SHOWN = 10  # faults of starts and losses that are printed


class Report:
    """The ways in which an item's output and end are shown."""

    def __init__(self, options: Options, work: Work) -> None:
        """Raises Misconfigured."""
        if options.keep_order and options.line_buffer:
            raise Misconfigured(
                "-k passes outputs on as a whole, --line-buffer line by line", "leave one out"
            )
        if options.json and (options.line_buffer or options.tag):
            raise Misconfigured(
                "--json has an output as a whole, and the item with it: no --line-buffer, no --tag"
            )
        self._json = options.json
        self._directory = options.results
        self._work = work

    def open(self, task: Task, sink: Sink) -> Output:
        """Return the output of a try."""
        output = sink.open(task.item.number, self._work.tag(task.item))
        if self._directory:
            try:
                output.copies = self._copies(task)
            except OSError as error:
                raise Failure(LOST, f"--results {error.filename}: {(error.strerror or '').lower()}") from None
        return output

    def _copies(self, task: Task) -> dict[int, int]:
        place = os.path.join(self._directory, *names(task))
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, "seq"), "w") as file:
            file.write(str(task.item.number))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return {
            stream: os.open(os.path.join(place, name), flags, 0o666)
            for stream, name in ((1, "stdout"), (2, "stderr"))
        }

    def pass_on(self, task: Task, sink: Sink, done: Callable[[], None]) -> None:
        """The task has its end."""
        if task.output is None:  # of a run before
            task.output = sink.open(task.item.number, None)
        task.output.close(done, (lambda spool: as_json(task, spool)) if self._json else None)


class Told:
    """Faults that were printed: each reason once, and not too many."""

    def __init__(self) -> None:
        self._faults: set[str] = set()
        self._left: set[str] = set()

    def fault(self, host: str, detail: str, task: Task, hint: str = "") -> None:
        """Print why an item was not started, or is lost."""
        if detail not in self._faults and len(self._faults) < SHOWN:
            self._faults.add(detail)
            complain(f"item {task.item.number}: {detail}", hint, host)

    def left(self, status: Status) -> None:
        """Name a directory in which files are left; many jobs may name the same."""
        text = f"quine: {status.host or 'local'}: files are left in {status.left}\n"
        if text not in self._left:
            self._left.add(text)
            say(text)


def names(task: Task) -> list[str]:
    """Return the directories of an item below --results: 1/ITEM, for several arguments 1/ITEM/2/ITEM, as GNU parallel.

    A name that no file can have is written differently; one that is too long is the number of the item.
    """
    found = []
    for at, arg in enumerate(task.item.args, 1):
        name = arg.replace("\\", "\\\\").replace("/", "\\_")
        name = "\\" + name if name in ("", ".", "..") else name
        found += [str(at), name]
    if not found or any(len(os.fsencode(name)) > LONGEST for name in found):
        return ["seq", str(task.item.number)]
    return found


def as_json(task: Task, spool: Spool) -> bytes:
    """One line for an item; outputs that are not UTF-8 are in base64."""
    import json

    streams: dict[int, list[bytes]] = {1: [], 2: []}
    for stream, data in spool.chunks():
        streams[stream].append(data)
    entry = task.entry
    found: dict[str, object] = {
        **{
            "seq": entry.seq,
            "args": [_text(arg) for arg in task.item.args],
            "command": list(map(_text, task.argv)),
        },
        **{"state": entry.kind, "code": entry.code, "signal": entry.signal, "host": entry.host or "local"},
        **{"id": entry.id, "attempt": entry.attempt, "start": round(entry.started, 3)},
        "seconds": round(entry.seconds, 3),
        **task.facts,
    }
    for stream, name in ((1, "stdout"), (2, "stderr")):
        data = b"".join(streams[stream])
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            import base64

            found[f"{name}_base64"] = base64.b64encode(data).decode()
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def _text(word: str) -> str:
    return os.fsencode(word).decode(errors="replace")

"""Outputs opened and passed on as the options say: tags, copies below --results, a table, identical ones once, JSON."""

from __future__ import annotations

import os
from itertools import count

from quine.base.errors import LOST, Failure, Misconfigured
from quine.base.procs import opened_at_once
from quine.fanout.input.seen import Seen
from quine.fanout.outcome import DENIED, UNAVAILABLE
from quine.fanout.output import tables, values
from quine.fanout.output.lines import Lines
from quine.fanout.output.sinks import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quine.fanout.joblog import Joblog
    from quine.fanout.options import Options
    from quine.fanout.output.sinks import Output, Sink
    from quine.fanout.output.spool import Spool
    from quine.fanout.tasks import Task, Work

# ends of items that --resume runs again without being asked: the stdout of an agent so far is not theirs
UNFINISHED = (DENIED, UNAVAILABLE)
LONGEST = 250  # bytes of a name,
LONGEST_PATH = 4095  # and of a path


class Report:
    """The ways in which an item's output and end are shown."""

    def __init__(self, options: Options, work: Work) -> None:
        """Raises Misconfigured."""
        kind = tables.kind_of(options.results)
        check(options, kind)
        self._work = work
        self._json = options.json
        self._most = values.limit(options.json_limit)
        self.fault: Failure | None = None  # of an output that is shown, and not whole
        self._named = options.header != ""
        self._directory = "" if kind else options.results
        self._by_lines = options.line_buffer
        self._seen = Seen()  # places below --results
        self.log: Joblog | None = None  # of the runs before, too
        self._table = self._fold = None
        if kind:
            resumed = options.resume or options.resume_failed
            self._table = tables.Table(options.results, kind, resumed, self._most)
        elif self._directory:
            try:
                os.makedirs(self._directory, exist_ok=True)
            except OSError as error:
                raise Misconfigured(f"--results {self._directory}: {_why(error)}") from None
        if options.fold:
            from quine.fanout.output.fold import Fold

            self._fold = Fold()

    @property
    def shows_whole(self) -> bool:
        """Whether the output of an item is shown as a whole, as a value of something."""
        return bool(self._json or self._table or self._fold)

    def open(self, task: Task, sink: Sink, by_lines: bool = False) -> Output:
        """Return the output of a try; `by_lines`: the process before has passed on a part of it.

        Raises Failure if it cannot be kept below --results.
        """
        output = (Lines if self._by_lines else Output)(sink, task.item.number, self._work.tag(task.item))
        if self._json or self._table:
            output.shorten(self._most)
        if self._directory:
            place = self._place(task)
            output.place = f"--results {place}"
            try:
                # By lines they have what does not come again; else all is copied again from where it is kept.
                cut = not by_lines and not task.former
                self._copy_into(output.copies, place, task.item.number, cut)
            except OSError as error:
                output.drop()
                raise Failure(LOST, f"{output.place}: {_why(error)}") from None
        return output

    def name(self, task: Task) -> None:
        """Settle where the outputs of the next item of the list are: no two items ever have one place."""
        if not self._directory or (self.log and self.log.is_over(task.entry.hash)):
            return  # it is left out, and its outputs stay where they are
        task.place = next(place for place in self._places(task) if self._is_free(place, task))
        self._seen.add(tuple(task.place))

    def _places(self, task: Task) -> Iterator[list[str]]:
        """Yield the places that an item may have, without end."""
        yield names(task, self._named, LONGEST_PATH - len(os.fsencode(self._directory)) - len("//stdout"))
        root, number = _by_number(task, self._named)
        yield [root, number]
        for at in count(2):
            yield [root, f"{number}-{at}"]

    def _is_free(self, place: list[str], task: Task) -> bool:
        """Whether a place has the outputs of no equal item: of this run, or with its end in a run before."""
        if tuple(place) in self._seen:
            return False
        if not self.log:
            return True
        try:
            with open(os.path.join(self._directory, *place, "seq"), opener=opened_at_once) as file:
                number = int(file.read(20))
        except (OSError, ValueError):
            return True
        return not self.log.has(task.entry.hash, number)

    def _place(self, task: Task) -> str:
        if not task.place:
            self.name(task)
        return os.path.join(self._directory, *task.place)

    def _copy_into(self, copies: dict[int, int], place: str, number: int, cut: bool) -> None:
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, "seq"), "w", opener=opened_at_once) as file:
            file.write(str(number))
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if cut else 0)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            copies[stream] = opened_at_once(os.path.join(place, name), flags)

    def pass_on(self, task: Task, sink: Sink, done: Callable[[], None]) -> None:
        """The task has its end."""
        if task.output is None:  # of a run before, or without a start
            task.output = Output(sink, task.item.number, None)
        cut = values.cut(task.output.got, self._most) if self._json or self._table else None
        if cut and not self.fault:
            self.fault = values.fault_of(cut, self._most, f"item {task.item.number}")
        task.output.close(sink.counted(done), self._instead(task), whole=task.entry.kind not in UNFINISHED)

    def _instead(self, task: Task) -> Callable[[Spool], Iterable[bytes]] | None:
        """Return the function that makes the text for stdout instead of the output."""
        keep = self._table or self._fold
        if keep is None:
            return (lambda spool: tables.as_json(task, spool, self._most)) if self._json else None

        def kept(spool: Spool) -> Iterable[bytes]:
            keep.add(task, spool)
            return ()

        return kept

    def finish(self, sink: Sink) -> None:
        """All items have their ends, and were passed on."""
        if self._fold:
            sink.put_last(self._fold.text(), self._fold.outputs)

    def begin(self) -> None:
        """The batch begins: a table loses what is none of it. Raises Misconfigured."""
        if self._table:
            self._table.begin()

    def close(self) -> None:
        if self._table:
            self._table.close()


def check(options: Options, kind: str) -> None:
    """Raises Misconfigured for options that exclude each other."""
    if options.keep_order and options.line_buffer:
        raise Misconfigured("-k passes outputs on as a whole, --line-buffer line by line", "leave one out")
    if options.json and (options.line_buffer or options.tag):
        raise Misconfigured(
            "--json has an output as a whole, and the item with it: no --line-buffer, no --tag"
        )
    others = [name for name in ("json", "tag", "line_buffer", "fold") if getattr(options, name)]
    if kind and others:
        name = others[0].replace("_", "-")
        raise Misconfigured(f"--results FILE{kind} is instead of the output, and --{name} is about that")
    if options.fold and (others := [name for name in others if name != "fold"]):
        raise Misconfigured(f"--fold and --{others[0].replace('_', '-')} exclude each other")
    if options.fold and options.joblog:
        raise Misconfigured(
            "--fold prints at the end, and --joblog says what was printed", "--results FILE.jsonl has both"
        )


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def names(task: Task, named: bool = False, room: int = LONGEST_PATH) -> list[str]:
    """Return the directories of an item below --results: 1/ITEM, for several arguments 1/ITEM/2/ITEM, as GNU parallel.

    With `named` columns it is NAME/ITEM. A name that no file can have is written differently; one that is too long, or
    a path of more than `room` bytes, is the number of the item. With a log, which may be resumed with another list, it
    is the item's hash there; to blocks of --pipe, of which many may be equal, it is added.
    """
    args, fields = task.item.args, task.item.fields or {}
    heads = (
        list(fields) if named and len(fields) == len(args) else [str(at) for at in range(1, len(args) + 1)]
    )
    found = []
    for head, arg in zip(heads, args):
        found += [_name(head), _name(arg)]
    hash = task.entry.hash
    sizes = [len(os.fsencode(name)) for name in found]
    if max(sizes, default=0) > LONGEST or sum(sizes) + len(sizes) > room:
        return [_root("hash", task, named), hash] if hash else _by_number(task, named)
    return found or _by_number(task, named)


def _by_number(task: Task, named: bool) -> list[str]:
    number, hash = task.item.number, task.entry.hash
    return [_root("seq", task, named), f"{number}-{hash}" if hash else f"{number}"]


def _root(name: str, task: Task, named: bool) -> str:
    """Return the directory of places that are no names of items; written differently if the first column has it."""
    return "\\" + name if named and next(iter(task.item.fields or ()), "") == name else name


def _name(text: str) -> str:
    name = text.replace("\\", "\\\\").replace("/", "\\_")
    return "\\" + name if name in ("", ".", "..") else name

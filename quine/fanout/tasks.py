"""One item under way: its command, its tries, its stdin, and the entry of the log that it will have."""

from __future__ import annotations

import os
import time
from functools import partial

from quine.base import data_directory, dirs
from quine.base.errors import Misconfigured
from quine.base.procs import opened_file
from quine.fanout.files.contents import Contents, meant, unnumbered
from quine.fanout.input.template import Values, Word
from quine.fanout.joblog import Entry, files_of
from quine.fanout.journal import hash_of
from quine.fanout.outcome import NEVER, STOPPABLE, Numbers
from quine.staging.spec import written
from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Protocol

    from quine.fanout.input.items import Item
    from quine.fanout.input.template import Template
    from quine.fanout.options import Options
    from quine.fanout.outcome import Unreturned
    from quine.fanout.output.sinks import Output
    from quine.jobs.adoption import Adopted
    from quine.staging.caller_side import Staging
    from transport.client.batch import BatchJob
    from transport.status import Status

    class After(Protocol):
        """The job, or jobs, that bring the returns of a try or remove its files."""

        @property
        def over(self) -> bool: ...

        def abandon(self) -> None:
            """Wait for it no longer."""

        def go_on(self) -> None:
            """Leave it as it is: nothing is called any more."""


LONGEST = (128 << 10) - 1  # bytes of an argument, which Linux sets (MAX_ARG_STRLEN)
GRACE = 5.0  # seconds between TERM and KILL, and between KILL and the end of our patience


class Task:
    """An item, from its start to its end."""

    __slots__ = (
        *(
            "argv",
            "began",
            "before",
            "entry",
            "facts",
            "failed_on",
            "former",
            "item",
            "output",
            "place",
            "stdin",
        ),
        *("adopted", "after", "job", "kept", "numbers", "sent", "tries"),
        *("unbegun", "unreturned", "unsent", "unstarted"),
        *("abandoned", "cut_short", "ending", "halted", "left", "over", "running", "timed_out", "withdrawn"),
    )

    def __init__(self, item: Item, entry: Entry) -> None:
        self.item = item
        self.argv: list[str] = []
        self.entry = entry
        self.tries = self.unstarted = 0  # the second of them never ran
        self.failed_on: list[str] = []  # hosts
        self.job: BatchJob | None = None
        self.unsent: Callable[[], None] | None = None  # gives the try its end, while it waits to be sent
        self.after: After | None = None  # that brings its returns, or removes its files
        self.unreturned: str | None = None  # the directory there of returns that did not come
        self.unbegun = False  # its host says that the command of this try did not begin
        self.sent = ""  # the id of the latest try in the journal of the batch,
        self.numbers = Numbers()  # those of that,
        self.kept: BatchJob | None = None  # and its job, whose record its host keeps
        self.adopted: Adopted | None = None
        self.output: Output | None = None
        self.former: Output | None = None  # of the try before, until this one begins
        self.place: list[str] = []  # its directories below --results
        self.stdin: int | bytes | None = None
        self.facts: dict[str, object] = {}  # of an agent: its session and tokens
        # attempt, start, id and left returns that the entry had before this try
        self.before: tuple[int, float, str, Unreturned | None] = (0, 0.0, "", None)
        self.began = 0.0  # monotonic, of this try's start over there
        self.running = False  # over there
        # In this try. It was told to end: because of its time, or as the batch ends.
        self.ending = self.timed_out = self.halted = False
        self.withdrawn = False  # before it was sent, as the batch starts no more
        self.over = False  # its job has ended: no timeout and no signal is for it
        self.left = False  # and its returns were left on its host
        self.abandoned = False  # it is not waited for any longer
        self.cut_short = False  # and that by the run before

    def begin(self) -> None:
        """Another try. The output of the one before is the item's, should this one not begin."""
        if self.output and self.former:
            self.output.drop()  # of a try that did not begin either
        elif self.output:
            self.former = self.output
            self.former.end_copies()
        self.output = None
        self.tries += 1
        self.adopted = self.job = self.after = self.unreturned = None
        self.ending = self.timed_out = self.halted = self.withdrawn = self.over = self.left = False
        self.cut_short = self.running = self.unbegun = False
        self.began = time.monotonic()
        entry = self.entry
        self.before = entry.attempt, entry.started, entry.id, entry.unreturned
        entry.attempt, entry.started, entry.unreturned = self.tries, time.time(), None

    def recall(self, numbers: Numbers) -> None:
        """Its job is of a run before, in which the item had these numbers: its words and names there have them."""
        self.numbers = numbers
        self.item.job, self.item.slot = numbers
        self.entry.number = numbers.job

    def started(self) -> None:
        self._drop_former()
        self.running = True
        self.began = now = time.monotonic()
        if self.adopted and self.job:
            self.began = self.adopted.began
            if self.output and not self.output.go_on_at(self.job.base):
                self.adopted.torn = True
        self.entry.started = time.time() - (now - self.began)

    def ended(self, status: Status, kind: str) -> bool:
        """Note the end of a try. False: it certainly never began, and the item has the end that it had before."""
        from transport.status import signal_number

        entry = self.entry
        taken_back = self.tries > 1 and (self.halted or self._is_withdrawn)
        if kind == NEVER and (taken_back or entry.kind != NEVER):
            # An item that has run has its end: as never started it would run again in the next run.
            entry.attempt, entry.started, entry.id, entry.unreturned = self.before
            if self.former and self.output:
                self.output.drop()
                self.output, self.former = self.former, None
            self.release()
            return False
        self._drop_former()
        entry.kind, entry.host = kind, status.host
        entry.stopped = (self.halted or self.cut_short) and kind in STOPPABLE
        entry.signal = signal_number(status.signal) if status.signal else 0
        entry.code = 0 if entry.signal else status.code
        at = (self.adopted.ended if self.adopted else 0.0) or time.monotonic()
        entry.seconds = at - self.began if self.running else 0.0
        if self.output:
            entry.received = self.output.size
        self.release()
        return True

    def _drop_former(self) -> None:
        """The item is not left with its try before: that output is not shown, and its copies are begun anew."""
        if self.former:
            self.former.drop()
            self.former = None
            if self.output:
                self.output.begin_copies()

    def end(
        self,
        at: Callable[[float, Callable[[], None]], None],
        running: Mapping[Task, None],
        leave: Callable[[Task], None] | None = None,
    ) -> None:
        """End its job: TERM, then KILL, then by `leave`, or without waiting.

        `at` calls at a time; `running` has it until its end.
        """
        job, number = self.job, self.tries
        if self.settled:
            return
        self.ending, self.halted = True, not self.timed_out
        if job is None:
            self._stay()
            return
        job.signal(signal.SIGTERM)

        def later(call: Callable[[], None]) -> Callable[[], None]:
            return lambda: call() if self in running and self.tries == number else None

        now = time.monotonic()
        at(now + GRACE, later(lambda: job.signal(signal.SIGKILL)))
        at(now + 2 * GRACE, later(partial(leave, self) if leave else job.abandon))

    @property
    def settled(self) -> bool:
        """Whether the try was told to end, or has ended: nothing more is to be done about it."""
        return self.ending or self.over

    def is_cut(self, status: Status) -> bool:
        """Whether its job may go on without this process, which looks for it, or --resume if the batch ends."""
        if not self.job or self.over or self.timed_out:
            return False
        cut = self.job.severed and status.state == "lost"
        return cut or (self.adopted is not None and status.state == "unreachable")

    def abandon(self) -> None:
        """Wait for it no longer."""
        self.abandoned = True
        for job in (self.job, self.after):
            if job:
                job.abandon()

    def withdraw(self) -> None:
        """Have its job not begin, if it has not, since the batch starts no more items."""
        if self.job is None:
            self.withdrawn = True
            self._stay()
        elif not self.adopted:
            self.job.withdraw()

    def _stay(self) -> None:
        """It waits to be sent, and is not."""
        if self.unsent:
            self.unsent()

    def never_began(self, status: Status) -> bool:
        """Whether the batch took it back, so that its item has no end."""
        return self.tries == 1 and status.state == "unreachable" and self._is_withdrawn

    @property
    def _is_withdrawn(self) -> bool:
        return self.job.withdrawn if self.job else self.withdrawn

    def leave(self) -> None:
        """Its end is for the next run of the batch."""
        if self.output:
            self.output.leave()
        self._drop_former()
        self.release()

    def forget(self) -> None:
        """Its end is on record here."""
        if self.kept:
            self.kept.forget()
        if self.output:
            self.output.forget()

    def release(self) -> None:
        """Stdin of this try is not read any more."""
        if isinstance(self.stdin, int):
            os.close(self.stdin)
        self.stdin = None


class Work:
    """The work of a command line: the tasks of its items. A template for argv, and one for stdin."""

    def __init__(
        self, options: Options, command: Template, words: list[str], item_on_stdin: bool = False
    ) -> None:
        self._options = options
        self._command = command
        self._words = [os.fsencode(word) for word in (*words, options.replace, options.stdin)]
        self._item_on_stdin = item_on_stdin or options.stdin == "item"
        spawn, replace = options.spawn, options.replace or "{}"
        self._files = [Word(word, replace, options.named) for word in spawn.files]
        self._returns = [Word(word, replace, options.named) for word in spawn.returns]
        if spawn.returns:
            from quine.staging.returns_limit import Bound

            Bound(spawn.returns_limit)  # refused here, and not at the end of each item
        if fixed := [word.text(Values(())) for word in self._returns if not word.varies]:
            from quine.staging import spec

            spec.returns(fixed)  # refused once, and not at each item
        self._words += map(os.fsencode, (*spawn.files, "", *spawn.returns))
        named = options.stdin not in ("", "none", "item")
        self._stdin = Word(options.stdin, replace, options.named) if named else None
        log = files_of(options.joblog) if options.joblog else []
        self.knows: Callable[[str], bool] = lambda hash: False  # whether the log has an item of this name
        self.taken: Callable[[str, int], bool] = lambda hash, number: False
        self._own = written([*log, options.results, spawn.report])
        self.contents = Contents([*map(os.fsdecode, self._own), data_directory.named()])
        self.contents.expect([*self._files, *([self._stdin] if self._stdin else [])])

    def task(self, item: Item) -> Task:
        task = Task(item, Entry(item.number, self.hash(item)))
        self.argv(task)  # a field that is missing is found here
        return task

    def argv(self, task: Task) -> list[str]:
        """Return the command of a try; its slot is known only then."""
        task.argv = self._command.argv(task.item)
        if self._options.joblog:
            from shlex import join

            task.entry.command = join(task.argv)
        return task.argv

    def check(self, task: Task) -> None:
        """Refuse a command that no host can start, and a result of another item. Raises Misconfigured."""
        numbered = next((word for word in self._returns if word.numbered), None)
        if numbered and self.taken(task.entry.hash, number := task.item.job or task.item.number):
            name = numbered.path(task.item)
            why = f"--returns {name}: another item of a run before has this result, as its number is {number}"
            raise Misconfigured(
                why, "{} in place of {#}, or the items of that run before others, in their order"
            )
        longest = max((len(os.fsencode(word)) for word in task.argv if 4 * len(word) > LONGEST), default=0)
        if longest > LONGEST:
            why = f"an argument has {longest} bytes, and no command takes more than {LONGEST}"
            raise Misconfigured(why, "--stdin item gives items to stdin")

    def hash(self, item: Item) -> str:
        """Return the name of an item by its content, as its files are now."""
        if not self._options.joblog:
            return ""
        hash = hash_of(self._parts(item))
        if any(word.numbered for word in self._files) and not self.knows(hash):
            former = hash_of(self._parts(item, numbers=True))
            return former if self.knows(former) else hash
        return hash

    def _parts(self, item: Item, numbers: bool = False) -> Iterator[bytes]:
        """The parts by which an item is the same one in the next run, whatever its number is there.

        With `numbers`: as earlier builds had them, with {#} as it is now in the names of files.
        """
        yield from self._words
        yield from map(os.fsencode, item.args)
        for name, value in (item.fields or {}).items():
            yield os.fsencode(f"{name}={value}")
        if item.block is not None:
            yield item.block
        if self._stdin:
            path = self._stdin.text(item)
            yield from self.contents.parts([(path, b"")], shared=not self._stdin.varies)
        for shared in (True, False) if self._files else ():
            words = [word for word in self._files if word.varies != shared and (numbers or not word.numbered)]
            yield from self.contents.parts(meant([word.path(item) for word in words]), shared)
        for word in self._files if not numbers else ():
            if word.numbered:
                yield from self.contents.parts(unnumbered(word, item))

    def stage(self, item: Item, begun: bool = False) -> Staging | None:
        """Return the staging of a try; None if it needs none. `begun` as in `staging`. Raises Misconfigured."""
        if not self._files and not self._returns:
            return None
        from quine.jobs.client import staging
        from quine.staging import spec

        spawn = self._options.spawn
        files = tuple(word.path(item) for word in self._files)
        returns = tuple(word.path(item) for word in self._returns)
        wanted = spawn.replace(files=files, returns=returns)
        found = staging(wanted, looks=True, begun=begun, own=self._own)
        if found and found.sources:
            found.alone = spec.sources(_texts(self._files, item, False), dirs.current())
        if found and found.patterns:
            found.varying = spec.returns(_texts(self._returns, item, False))
        if found and self._stdin:
            found.inputs.append(os.fsencode(self._stdin.text(item)))
        return found

    def placed(self, item: Item | None, shared: bool) -> list[str]:
        """Return the names over there of the files of an item, its own or those that are `shared` by all.

        Raises Misconfigured.
        """
        from quine.fanout.files.uses import placed

        files, returns = (_texts(words, item, shared) for words in (self._files, self._returns))
        return placed(files, returns, dirs.current())

    def open_stdin(self, item: Item) -> int | bytes | None:
        """Return stdin of a try. Raises OSError."""
        if item.block is not None:
            return item.block
        if self._item_on_stdin:
            return os.fsencode(" ".join(item.args)) + b"\n"
        if self._stdin:
            # A named pipe that nobody writes to yet does not hold up the other items: its job waits for the writer.
            fd = opened_file(self._stdin.text(item), os.O_NONBLOCK)
            os.set_blocking(fd, True)
            return fd
        return None

    def tag(self, item: Item) -> bytes | None:
        return os.fsencode(" ".join(item.args)) if self._options.tag else None


def _texts(words: list[Word], item: Item | None, shared: bool) -> list[str]:
    """Return those words that have a replacement string, or those that are `shared` by all items."""
    return [word.path(item or Values(())) for word in words if word.varies != shared]

"""The journal of a batch, FILE.started beside its log: the jobs that were sent, and the hosts that may have them.

Laws
1. The id of a job is added as it is sent, and not before: a job that waits in this process ends with it. The id goes if
   the job is given back, or could not be started. A job without a line in the log is looked for on the hosts.
2. An addition is one write and no fsync: after a loss of power the jobs of the last seconds may run twice. A note of
   returns is synced before they are removed on their host.
3. The ids of jobs are made with the secret of the batch. A host knows those of the jobs that it was sent, and cannot
   compute those of others. The host on which a job has started is noted: no other host is believed to have that job.
4. A job that outlives this process, and is ended because the batch is, has a note of that before it gets TERM: its
   end is not its own. One that was taken back before it began is in there no more.
5. An agent has a note before the first answer that it gets. One without did nothing, and may be run.
6. A job whose returns did not come has a note of its end and its place, as long as its line in the log says so. One
   whose returns are here has a note of that before they are removed on its host, and at once where they replaced the
   files of its item: they are not asked for again. That note stays until a line in the log says the same,
   and has the exit status that the item gets: the job's own may hide that some were not there. As long as a job has a
   note, so have the names over there of its own files and of its results: no other item gets them. Its numbers {#}
   and {%} are noted with it: they are in its words and in these names, and the next run may have its item elsewhere.
   Where another job may have written over results that did not come, they are not asked for: that is noted as well.
7. Its first line names the process that writes it. A copy of it is no second batch: as long as that process may run,
   no other one does. It also names the tree of the first run, whose directories hold the files of all jobs, and
   the directory in place of that which is of this batch alone.
8. The identity of the directory of a host (`Results`) is noted before a job there begins. Earlier builds did not.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from math import inf
from typing import NamedTuple

from quine.base.errors import Failure, Misconfigured
from quine.fanout.files.names import Noted
from quine.fanout.outcome import Numbers, Unreturned
from quine.fanout.output.record_file import replaced, unrecorded, whole_lines, written
from quine.jobs import owner
from quine.staging.scan import is_identity
from transport.address import boot_clock, boot_id
from transport.errors import Refused
from transport.spawn import is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

JOURNAL = "quine batch"  # first words of the file
EXIT_STATUS = re.compile("[0-9]{1,3}").fullmatch
COMPACT = 20_000  # lines of it after which it is written anew, if most of them are of jobs that have ended


def hash_of(parts: Iterable[bytes]) -> str:
    """Return the name of an item by its content; where one part ends and the next begins counts."""
    from transport.lean import blake2b

    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


class Sent(NamedTuple):
    """A job that was sent: the item, its try, the time (`boot_clock`) before which it was not sent, and its host."""

    hash: str
    attempt: int
    when: float
    host: str = ""  # on which it has started, if that was heard of
    renews: str = ""  # the State of the line, of a run before, that its own will be in place of
    numbers: Numbers = Numbers()
    before: str = ""  # the id of the try before, if that was in this run


class Journal:
    """The journal of this run, and of those before if it was read."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._path = log + ".started"
        self._fd = -1
        self.batch, self._secret = os.urandom(16).hex(), os.urandom(16).hex()
        self.tree = ""  # whose directories its jobs are in
        self.folder = self.batch  # or, where they have files, this one
        self.hosts: dict[str, None] = {}  # on which jobs have started,
        self.wheres: dict[str, None] = {}  # and WHEREs that jobs were sent to
        self.sent: dict[str, Sent] = {}  # by their ids, the jobs that have no line in the log
        self.unreturned: dict[str, Unreturned] = {}  # by their ids, jobs that have a line
        self.names: dict[str, Noted] = {}  # by the ids of both
        self.overwritten: dict[str, None] = {}  # ids of jobs whose results are not asked for
        self.places: dict[str, str] = {}  # by host, the identity of the directory there, "" if it told none
        self.halted: dict[str, None] = {}  # ids of jobs that were ended because the batch was
        # ids of jobs whose returns are here, and may be gone from their hosts, and the exit status with them
        self.brought: dict[str, int] = {}
        self.begun: dict[str, None] = {}  # ids of agents that may have done something
        self.by_lines = False  # the runs before have passed on outputs of jobs that had not ended
        self._passes_lines = False  # so does this one, or one before
        self._run = 1  # of this batch
        self._owner: owner.Owner | None = None  # of the run before
        self._lines = 0
        self._second = -inf  # the latest one noted there
        self._lock = threading.RLock()  # threads that answer jobs add notes

    def read(self) -> None:
        """Go on with the batch of the file. Raises OSError, and Misconfigured if it is none."""
        lines = list(whole_lines(self._path))
        head = lines[0].split() if lines else []
        if lines and (head[:2] != JOURNAL.split() or len(head) not in (6, 7, 8, 9)):
            raise Misconfigured(f"{self._path} is none of this version")
        try:
            if head:
                self.batch, self._run, self._secret = head[2], int(head[3]) + 1, head[4]
            if head and not self.batch.isalnum():
                raise ValueError("no batch is called so")
            self._owner = owner.parsed(head[6]) if len(head) > 6 else None
            self.tree, self.folder = [*head[7:], "", ""][:2] if head else ("", self.batch)
            if not all(map(is_id, filter(None, (self.tree, self.folder)))):
                raise ValueError("no tree or directory is called so")
        except ValueError:
            raise Misconfigured(f"line 1 of {self._path} is damaged") from None
        second = -inf
        same = bool(head) and head[5] == boot_id() and not self.is_elsewhere  # else another clock
        for number, line in enumerate(lines[1:], 2):
            try:
                word, *rest = line.split()
                if word == "where":
                    self.wheres[line[len(word) + 1 : -1]] = None
                elif word == "host":
                    host, id = rest if len(rest) > 1 else (*rest, "")
                    self._starts(host, id)
                elif word in ("halted", "begun", "overwritten"):
                    (id,) = rest
                    getattr(self, word)[id] = None
                    if word == "overwritten":
                        self.unreturned.pop(id, None)
                elif word == "place":
                    self._read_place(rest)
                elif word == "lines":
                    () = rest
                    self.by_lines = self._passes_lines = True
                elif word == "withdrawn":
                    (id,) = rest
                    self._forget(id)
                elif word == "unreturned":
                    self.unreturned[rest[0]] = Unreturned.parsed(line[:-1].split(" ")[2:])
                elif word == "names":
                    self.names[rest[0]] = Noted.parsed(line.split(" ", 2)[2])
                elif word == "brought":
                    id, code, *_ = [*rest, ""]  # by earlier builds without it, or with a hash in its place
                    self.brought[id] = int(code) if EXIT_STATUS(code) else 0
                elif word == "time":
                    (when,) = map(float, rest)
                    second = when if same else -inf
                else:
                    hash, tried, before, renews = [*rest, ""] if len(rest) == 3 else rest
                    attempt, numbers = Numbers.parsed(tried)
                    self.sent[word] = Sent(hash, attempt, second, "", renews, numbers)
                    self._forget(before)
            except (ValueError, IndexError):
                raise Misconfigured(f"line {number} of {self._path} is damaged") from None
        if not self._owner:  # of a build that made no such notes
            self.begun.update(dict.fromkeys(self.sent))

    def _read_place(self, words: list[str]) -> None:
        host, place = words
        if place != "-" and not is_identity(place):
            raise ValueError("not an identity")
        self.places["" if host == "local" else host] = place.strip("-")

    @property
    def is_elsewhere(self) -> bool:
        """Whether the run before was where its end cannot be seen from here."""
        return self._owner is not None and self._owner.is_elsewhere(owner.this_process())

    def check_owner(self, elsewhere: bool) -> None:
        """Raise Misconfigured if the run before may go on. `elsewhere`: not if it was on another machine."""
        before = self._owner
        if before and before.runs(owner.this_process()):
            raise Misconfigured(f"{self._log} is in use by another batch, or is a copy of its log")
        if before and self.is_elsewhere and not elsewhere:
            raise Misconfigured(
                f"{self._log} is the log of a batch on {before.node}, which may still run there",
                "resume it there; or, if it has ended for certain, here with --resume-elsewhere",
            )

    def begin(self) -> None:
        """Write it anew, with what has no line in the log. Raises OSError."""
        root = os.environ.get("QUINE_ROOT_SESSION", "")
        self.tree = self.tree or (root if is_id(root) else self.batch)
        with self._lock:
            before, self._fd = self._fd, replaced(self._path, [self._text()], 0o600)
            if before >= 0:
                os.close(before)

    def _text(self) -> str:
        text = [
            f"{JOURNAL} {self.batch} {self._run} {self._secret} {boot_id()} {owner.this_process().word}"
            f" {self.tree} {self.folder}".rstrip()
            + "\n",
            *(f"host {host}\n" for host in self.hosts),
        ]
        text += (f"where {where}\n" for where in self.wheres)
        text += (f"place {host or 'local'} {place or '-'}\n" for host, place in self.places.items())
        text += ["lines\n"] if self._passes_lines else []
        for id, sent in self.sent.items():
            tried = sent.numbers.word(sent.attempt)
            text.append(f"time {sent.when:.3f}\n{id} {sent.hash} {tried} - {sent.renews}".rstrip() + "\n")
            text += [f"host {sent.host} {id}\n"] if sent.host else []
        text += (note.line(id) for id, note in self.unreturned.items())
        noted = {*self.sent, *self.unreturned, *(sent.before for sent in self.sent.values())}
        self.names = {id: note for id, note in self.names.items() if id in noted}
        text += (note.line(id) for id, note in self.names.items())
        for word in ("halted", "begun", "overwritten"):
            text += (f"{word} {id}\n" for id in getattr(self, word) if id in self.sent)
        text += (f"brought {id} {code}\n" for id, code in self.brought.items())
        self._lines, self._second = len(text), -inf
        return "".join(text)

    def id_of(self, hash: str, number: int, attempt: int) -> str:
        """Return the id of a try of an item, which has this number in this run."""
        return hash_of(os.fsencode(f"{part}") for part in (self._secret, self._run, hash, number, attempt))

    def capability(self, id: str) -> str:
        """Return the secret that a job shows with its requests, also after it was adopted."""
        return hash_of(map(os.fsencode, (self._secret, id)))

    def output(self, id: str) -> str:
        """Return the path of the file for an output that does not fit into memory."""
        return os.path.join(f"{self._log}.outputs", id)

    def start(
        self,
        id: str,
        hash: str,
        attempt: int,
        before: str = "",
        renews: str = "",
        names: Noted | None = None,
        numbers: Numbers = Numbers(),  # noqa: B008
    ) -> None:
        """A job is about to be sent; `before` is the id of the try before, whose end is known. `renews`: see `Sent`.

        The names of the try before are kept: it stays the end of its item if this one never begins.
        """
        now = boot_clock()
        noted = "" if now - self._second < 1 else f"time {now:.3f}\n"
        if noted:
            self._second = now
        line = f"{noted}{id} {hash} {numbers.word(attempt)} {before or '-'} {renews}".rstrip() + "\n"
        if names and any(names):
            self.names[id] = names
            line += names.line(id)
        self._write(line)
        self.sent.pop(before, None)
        self.brought.pop(before, None)
        self.sent[id] = Sent(hash, attempt, self._second, "", renews, numbers, before)
        self._lines += 1
        if self._lines > COMPACT + 4 * len(self.sent):
            self._compact()

    def _compact(self) -> None:
        """Raises Failure."""
        try:
            self.begin()
        except OSError as error:
            raise unrecorded(self._path, error) from None

    def numbers(self, id: str) -> Numbers:
        """Return the numbers of a job; zeros without a note of them."""
        note = self.sent.get(id) or self.unreturned.get(id)
        return note.numbers if note else Numbers()

    def slots(self, ids: Iterable[str]) -> set[int]:
        """Return the slots of jobs, 0 for those without a note of it."""
        return {self.numbers(id).slot for id in ids}

    def sends_to(self, where: str) -> None:
        """Jobs are about to be sent to hosts of this WHERE."""
        where = " ".join(where.split())  # a line here; no name has a blank
        if where not in self.wheres:
            self.wheres[where] = None
            self._write(f"where {where}\n")

    def pass_lines(self) -> None:
        """Outputs are about to be passed on while their jobs run."""
        if not self._passes_lines:
            self._passes_lines = True
            self._write("lines\n")

    def on_host(self, host: str, id: str = "") -> None:
        """A job may be sent to a host; `id`: this one has started there."""
        if host not in self.hosts or (id in self.sent and self.sent[id].host != host):
            self._starts(host, id)
            self._write(f"host {host} {id}".rstrip() + "\n")
            self._lines += 1

    def _starts(self, host: str, id: str) -> None:
        self.hosts[host] = None
        if id in self.sent:
            self.sent[id] = self.sent[id]._replace(host=host)

    def all_hosts(self, hosts: Callable[[str], Iterable[str]]) -> list[str]:
        """Return the hosts that may have jobs; `hosts` returns those of a WHERE."""
        found = dict.fromkeys(self.hosts)
        for where in self.wheres:
            try:
                found.update(dict.fromkeys([where] if where == "local" else hosts(where)))
            except (Misconfigured, Refused):
                found[where] = None  # it means none now; one that it meant may have jobs, and cannot be asked
        return list(found)

    def begin_agent(self, id: str) -> None:
        """An agent is about to be answered. Raises Failure; then it is not."""
        with self._lock:
            if id not in self.begun:
                self._write(f"begun {id}\n")
                self.begun[id] = None

    def locate(self, host: str, place: str) -> None:
        """A job on a host has told the identity of its directory, "" for none. Raises Failure."""
        with self._lock:
            if self.places.get(host) != place:
                self._write(f"place {host or 'local'} {place or '-'}\n")
                self.places[host] = place

    def halt(self, id: str) -> None:
        """A job is about to be ended because the batch is. A note that cannot be written is left out."""
        self.halted[id] = None
        with contextlib.suppress(Failure):
            self._write(f"halted {id}\n")

    def no_returns(self, id: str, note: Unreturned) -> None:
        """The returns of a job did not come. Raises Failure."""
        if id in self.overwritten:
            return
        self.unreturned[id] = note
        names = self.names.get(id)  # once more: the line of a try behind this one may have dropped them
        self._write(note.line(id) + (names.line(id) if names else ""))

    def overwrite(self, id: str) -> None:
        """The results of a job that did not come may be those of another one by now. Raises Failure."""
        with self._lock:
            if id not in self.overwritten:
                self._write(f"overwritten {id}\n")
                self.overwritten[id] = None
                self.unreturned.pop(id, None)

    def bring(self, id: str, code: int, lasting: bool = False) -> None:
        """The returns of a job are here; `code`: its exit status, 1 in place of 0 if some were not there.

        Raises Failure; then they stay on its host, too. `lasting`: they are about to be removed there.
        """
        self._write(f"brought {id} {code}\n", lasting)
        self.brought[id] = code

    def keep_unreturned(self, ids: Collection[str]) -> None:
        """Forget the others: their lines in the log have their ends, or another try was sent."""
        self.unreturned = {id: note for id, note in self.unreturned.items() if id in ids}
        self.brought = {id: code for id, code in self.brought.items() if id in ids or id in self.sent}

    def withdrawn(self, id: str) -> None:
        """A job was taken back, and has certainly never begun. A note that cannot be written is left out."""
        if self._forget(id):
            with contextlib.suppress(Failure):
                self._write(f"withdrawn {id}\n")

    def ended(self, id: str, returned: bool = True) -> None:
        """A job has its line in the log; `returned`: that does not say that its returns did not come."""
        if sent := self.sent.pop(id, None):
            self.names.pop(sent.before, None)
        self.begun.pop(id, None)
        self.halted.pop(id, None)
        self.overwritten.pop(id, None)
        if returned:
            self.brought.pop(id, None)
            self.names.pop(id, None)

    def _forget(self, id: str) -> Sent | None:
        self.names.pop(id, None)
        return self.sent.pop(id, None)

    def _write(self, text: str, lasting: bool = False) -> None:
        with self._lock:
            written(self._fd, text, self._path, lasting)

    def close(self) -> None:
        """Remove it, if each job that was sent has its line, and its returns."""
        if not (self.sent or self.unreturned) and self._fd >= 0:
            os.unlink(self._path)
            with contextlib.suppress(OSError):  # it does not exist, or is not empty
                os.rmdir(f"{self._log}.outputs")
        self.leave()

    def leave(self) -> None:
        """Close it as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

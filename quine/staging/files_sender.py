"""The sender of --files, which serves a remote job while it is being started.

Laws
1. Until it has started, a job can have the named files and nothing else. Afterwards it is the command and gets none.
2. Conversations take turns: the next one begins when the outcome of the last is known. Otherwise a job that asks again
   quickly would be given files that are no longer its own.
3. The scan runs while the job is in transit, not before: two Python threads would slow each other down.
4. Results that other jobs in the same directory may be writing are left as they are, but for the files that the item of
   this job alone has. The job asks for them last, and is answered by the state of that time. Its command begins once it
   is known here to have begun: else another job could be told otherwise, and put a file in the place of its result.
5. A match of a pattern leads nowhere outside the directory in which the pattern begins, also if its name is exchanged
   for a link after `spec` has judged the names. Here a descriptor is judged, by the path that the kernel tells of it.
"""

from __future__ import annotations

import os
import threading

from quine.staging import spec
from quine.staging.content import AGAIN, KNOWN, ROUNDS, Broken, Changed, Feed, error_text, tell, text_field
from quine.staging.manifest import IMPLIED, shown
from quine.staging.scan import Sources, is_identity
from quine.staging.source import LeadsOut, Tree, bits
from transport.errors import Abandoned, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Protocol

    from quine.staging.manifest import Manifest
    from transport.rpc.incoming import Incoming

    class Others(Protocol):
        """The results of other jobs in the directory of a job. Called by threads."""

        where: Callable[[], str | None]  # returns the host of the job, before its first request

        @property
        def own(self) -> Collection[bytes]:
            """Names of files that are laid out whatever others do with them."""

        def locate(self, place: str) -> None:
            """The job has told the identity of its directory, "" for none."""

        def begin(self, begun: bool) -> None:
            """The job is told of its files, or has `begun` with them: it may write its results."""

        def of_others(self) -> tuple[list[str], list[str]]:
            """Patterns that are neither replaced nor made, and those that are made if they are not there."""


LONGEST_OWN = 1 << 16  # bytes of names in a message; without them the job asks always


class MatchLeadsOut(LeadsOut):
    """A match of a pattern that is, by a symlink, out of the directory in which the pattern begins."""

    cure = "a link that is named is followed: name it in --files, if it is meant"


class Matched(Sources):
    """Sources of which some only match a pattern.

    `bounds`: by the names of these, the directories of which each is in one.
    """

    __slots__ = ("_bounds",)

    def __init__(
        self,
        named: Iterable[tuple[bytes, bytes]],
        leave_out: tuple[int, int] | None,
        places: Iterable[str],
        bounds: Mapping[bytes, tuple[bytes, ...]],
    ) -> None:
        super().__init__(named, leave_out, places)
        self._bounds = bounds

    def look(self, path: bytes, name: bytes) -> os.stat_result:
        if name not in self._bounds:
            return super().look(path, name)
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            self.judge(name, fd)
            return os.fstat(fd)
        finally:
            os.close(fd)

    def judge(self, name: bytes, fd: int) -> None:
        if name not in self._bounds:
            return
        there = os.readlink(b"/proc/self/fd/%d" % fd)
        if all(spec.name_below(there, root) is None for root in self._bounds[name]):
            text = f"it leads out of the directory of the pattern, to {shown(there)}"
            raise MatchLeadsOut(0, text, self.path(name))


class Giving:
    """The files for one job. `failure` is the reason why it could not have them, `cure` the hint for that."""

    def __init__(self, sources: Sources, key: str, others: Others | None = None) -> None:
        self._sources, self._key, self._others = sources, key, others
        self._looking = threading.Lock()
        self._tree: Tree | None = None
        self._turn = threading.Lock()
        self._rounds = 0
        self._started = False  # the job has its files
        self.failure = self.cure = ""
        self.is_ours = False  # the failure is one of this machine

    def look_ahead(self) -> None:
        """Start the scan in a thread."""

        def work() -> None:
            try:
                self._have()
            except OSError:
                pass  # reported when the job asks

        threading.Thread(target=work, name="staging", daemon=True).start()

    def _have(self) -> Tree:
        with self._looking:
            if self._tree is None:
                self._tree = Tree(self._sources, self._key)
            return self._tree

    def given(self, incoming: Incoming) -> None:
        """Answer one request `stage` of a job that is being started."""
        with self._turn:
            self._give(incoming)

    def _give(self, incoming: Incoming) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if self._started:
                raise Broken("this job has its files")
            if asked.get("say") == "failed":
                self.failure = f"the files cannot be laid out there: {text_field(asked, 'why')}"
                self.cure = text_field(asked, "cure")
                return
            if asked.get("say") != "in":
                raise Broken("this job has nothing to give yet")
            tree = self._have()
            reply: dict[str, object] = {"tree": tree.digest}
            if self._others:
                self._others.begin(False)
                own = self._others.own
                reply["own"] = [*map(os.fsdecode, own)] if sum(map(len, own)) <= LONGEST_OWN else []
            tell(incoming, reply, b"" if asked.get("has") == tree.digest else tree.packed)
            said = tree.serve(incoming, feed)
            if self._others and said.get("say") == "others":
                self._locate(said)
                tell(incoming, {}, self._left(tree.manifest))
                said = tree.serve(incoming, feed)
            self._started = said.get("say") == "done"
            self._tree = None  # it holds contents, for which others may have no room
            if self._others and self._started:
                self._locate(said)
                self._others.begin(True)
                tell(incoming, {})  # its command waits for that
        except (Abandoned, Broken):
            raise
        except OSError as error:
            self._rounds += 1
            self._tree = None
            if isinstance(error, (Changed, FileNotFoundError)) and self._rounds < ROUNDS:
                raise RequestError(AGAIN + error_text(error)) from None
            self.failure, self.is_ours = f"the files cannot be staged: {error_text(error)}", True
            if isinstance(error, LeadsOut):
                self.cure = error.cure
            raise RequestError(KNOWN + error_text(error)) from None

    def _locate(self, said: dict[str, object]) -> None:
        assert self._others
        place = said.get("place")
        self._others.locate(str(place) if is_identity(place) else "")

    def _left(self, manifest: Manifest) -> bytes:
        """Return the bits of the entries that are left as they are, and those of the ones that are left if there."""
        assert self._others
        own, count = self._others.own, len(manifest)
        return b"".join(
            bits(covered(manifest, patterns, own), count) for patterns in self._others.of_others()
        )


def covered(manifest: Manifest, patterns: Iterable[str], own: Collection[bytes]) -> list[int]:
    """Return the entries that patterns mean, but for those of `own` and all that a pattern means together with one.

    There may be as many patterns as jobs run at one time, and it is asked as others wait for their turn.
    """
    names, wild = set[bytes](), list[str]()
    for pattern in patterns:
        plain = spec.name_of(pattern)
        if plain is None or plain == ".":
            wild.append(pattern)
        else:
            names.add(os.fsencode(plain))
    names.intersection_update(manifest.names)
    meant = Meant(wild)
    apart: dict[bytes, Meant] = {}  # by one of `own`: the patterns that do not mean that
    found = []
    for index, name in enumerate(manifest.names) if names or wild else ():
        at = name
        while at and at not in own and at not in names:
            at = at.rpartition(b"/")[0]
        if at not in own:
            is_meant = bool(at) or meant.has(name)
        elif name == at or not meant.has(name):
            is_meant = False
        else:
            if at not in apart:
                others = [pattern for pattern in wild if not spec.allowed(at, [pattern])]
                apart[at] = Meant(others) if meant.has(at) else meant
            is_meant = apart[at].has(name)
        if is_meant and not manifest.modes[index] & IMPLIED:
            found.append(index)
    return found


class Meant:
    """The names that one of some patterns means, as `spec.allowed` has it.

    A directory is compared once, and a part of a name only with those parts of patterns whose matches begin, or end,
    as it does: with `data/*.{}.csv` all patterns have one beginning.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        start = _Next((tuple(pattern.split("/")), 0) for pattern in patterns)
        # By directory what comes next in patterns; None where they mean all of it.
        self._in: dict[bytes, _Next | None] = {b"": None if "." in patterns else start}

    def has(self, name: bytes) -> bool:
        above, _, last = name.rpartition(b"/")
        way = []
        while above not in self._in:
            way.append(above)
            above = above.rpartition(b"/")[0]
        there = self._in[above]
        for each in reversed(way):
            behind = None if there is None else there.behind(os.fsdecode(each.rpartition(b"/")[2]))
            there = self._in[each] = None if behind is None else _Next(behind)
        return there is None or there.behind(os.fsdecode(last)) is None


class _Next:
    """Places in patterns, `at` a part of one, by what matches of that part begin or end with."""

    def __init__(self, places: Iterable[tuple[tuple[str, ...], int]]) -> None:
        self._places: dict[str, dict[tuple[tuple[str, ...], int], None]] = {}
        for words, at in places:
            self._places.setdefault(words[at], {})[words, at] = None
            while words[at] == "**" and at + 1 < len(words):  # which may match nothing
                at += 1
                self._places.setdefault(words[at], {})[words, at] = None
        self._parts: dict[
            tuple[bool, str], list[str]
        ] = {}  # by whether it is the beginning, and what that is
        for part in self._places:
            begin = min((part.partition(char)[0] for char in spec.MAGIC), key=len)
            end = part[max(map(part.rfind, "*?]")) + 1 :]
            key = (True, begin) if len(begin) >= len(end) else (False, end)
            self._parts.setdefault(key, []).append(part)
        self._sizes = {(begins, len(text)) for begins, text in self._parts}

    def behind(self, name: str) -> list[tuple[tuple[str, ...], int]] | None:
        """Return the places behind a part of a name; None if that is the last one of a match."""
        found = []
        for begins, size in self._sizes:
            text = name[:size] if begins else name[max(0, len(name) - size) :]
            for part in self._parts.get((begins, text), ()):
                if spec.is_like(name, part):
                    found += [(words, at + (part != "**")) for words, at in self._places[part]]
        if any(set(words[at:]) <= {"**"} for words, at in found):
            return None
        return found

"""Destinations of paths, as with cp and mv: a name, or an existing directory to go into.

Laws
1. With one file and one target there is no request beforehand. If the store reports that the target is a directory, the
   file goes into it. So a put of a small file is one round trip.
2. A path from a listing is accepted only if it lies below the listed directory.
3. No source of a command replaces another one's copy: that would lose a file, and in `mv` its only copy. As with cp and
   mv, the first of several sources with one target gets it, and the others are refused.
"""

from __future__ import annotations

import errno

from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.cli.options import PREFIX, number
from quine.files.cli.output import escaped
from quine.files.cli.pool import JOBS, MOST, Crew
from quine.files.cli.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol, TypeVar

    from quine.files.api import Entry, Tier
    from quine.files.cli.context import Call
    from quine.files.cli.options import Values
    from quine.files.cli.pool import Task, Work

    class Named(Protocol):
        @property
        def path(self) -> str: ...

        @property
        def kind(self) -> str: ...

    One = TypeVar("One", bound=Named)


def crew_of(values: Values, tier: Tier | None = None) -> Crew:
    jobs = number(values, "jobs", 1, JOBS) or JOBS
    far = not values.get("dry_run")  # the answers would be out of the order in which a dry run prints
    return Crew(min(jobs, MOST), Progress(quiet=bool(values.get("quiet"))), tier, far)


def operands(call: Call) -> tuple[list[str], str]:
    if len(call.paths) < 2:
        what = "no path" if not call.paths else "where to? one path more is needed"
        raise Misconfigured(what, f"quine fs {call.command} --help")
    if call.values.get("no_target_directory") and len(call.paths) > 2:
        raise Misconfigured("-T takes one path and its target")
    return call.paths[:-1], call.paths[-1]


def keeps(call: Call) -> bool:
    """Return whether an existing target must stay."""
    return bool(call.values.get("if_absent") or call.values.get("no_clobber"))


class Target:
    """A target in the tier: a name, or a directory to go into. Which one may be unknown until the store is asked."""

    def __init__(self, call: Call, written: str, several: bool) -> None:
        self.tier = call.tier
        written = written.removeprefix(PREFIX)
        self.path = paths.clean(written)
        self.plain = bool(call.values.get("no_target_directory"))
        self._into: bool | None = None
        if self.plain:
            self._into = False
        elif several or written.endswith("/") or not self.path:
            self._into = True

    @property
    def known(self) -> bool:
        return self._into is not None

    def into(self) -> bool:
        """Return whether the target is a directory to go into; ask the store at most once."""
        if self._into is None:
            try:
                self._into = not self.tier.stat(self.path).is_file
            except FileNotFoundError:
                self._into = False
        return self._into

    def under(self, name: str) -> str:
        """The path that a source called `name` gets; the name "" stands for the contents of a directory."""
        return paths.join(self.path, name) if self.into() else self.path

    def try_each(self, name: str, attempt: Work) -> Task:
        """The task of `attempt` with the target's own path; if that is a directory, with `name` in it."""
        if self.known:
            yield from attempt(self.under(name)) or ()
            return
        try:
            yield from attempt(self.path) or ()
        except (IsADirectoryError, FileExistsError) as problem:
            if not self.into() or not name:
                raise problem from None
            yield from attempt(self.under(name)) or ()


class Made:
    """The targets that sources of one command have got. Only one thread may call `take`."""

    def __init__(self, call: Call, names: list[str]) -> None:
        """`names` are those that the sources get in a directory; "" is the contents of one.

        A name that occurs once needs no list of its targets.
        """
        once, several = set[str](), set[str]()
        for name in [] if keeps(call) else names:  # the store itself refuses a second one
            (several if name in once else once).add(name)
        self._several = several | once if "" in once and len(names) > 1 else several
        self._sources: dict[str, str] = {}  # by target

    def take(self, name: str, source: str, path: str) -> None:
        """Give a source, which is or is below the one called `name`, its target.

        Raises FileExistsError if another source has it.
        """
        if name in self._several and self._sources.setdefault(path, source) != source:
            raise OSError(errno.EEXIST, f"will not overwrite just-created {escaped(path)} with it", source)

    def drop(self, path: str) -> None:
        """Forget a target whose source did not get there."""
        self._sources.pop(path, None)


def below(entry: Entry, top: str) -> str:
    """The path of `entry` relative to `top`. Raises PermissionError if it is not a clean path below `top`."""
    return relative(entry.path, top)


def relative(path: str, top: str) -> str:
    """As `below`, for a path without an entry."""
    prefix = f"{top}/" if top else ""
    rest = path[len(prefix) :]
    if not path.startswith(prefix) or not rest or paths.clean(rest) != rest:
        raise PermissionError(errno.EPERM, "the store gave a name that leads elsewhere", path)
    return rest


def needed(found: Iterator[One]) -> Iterator[One]:
    """Drop from a walk the directories that come into being with their contents: that saves a round trip for each."""
    held: One | None = None
    for one in found:
        if held and not (one.kind in ("file", "directory") and one.path.startswith(f"{held.path}/")):
            yield held
        held = one if one.kind == "directory" else None
        if not held:
            yield one
    if held:
        yield held

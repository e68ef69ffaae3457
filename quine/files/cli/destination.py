"""Where a path goes, as with cp and mv: to a name, or into a directory that stands there.

Laws
1. Of one path and one target no question is asked first: the store says whether the target is a directory, and then it
   goes into that. So putting a small file is one round trip.
2. What a store says is below a directory is taken for a name only if it is below that directory.
"""

from __future__ import annotations

import errno

from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.cli.options import PREFIX, number
from quine.files.cli.pool import JOBS, MOST, Crew
from quine.files.cli.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol, TypeVar

    from quine.files.api import Entry
    from quine.files.cli.main import Call
    from quine.files.cli.options import Values

    class Named(Protocol):
        @property
        def path(self) -> str: ...

        @property
        def kind(self) -> str: ...

    One = TypeVar("One", bound=Named)


def crew_of(values: Values) -> Crew:
    jobs = number(values, "jobs", 1, JOBS) or JOBS
    return Crew(min(jobs, MOST), Progress(quiet=bool(values.get("quiet"))))


def operands(call: Call) -> tuple[list[str], str]:
    if len(call.paths) < 2:
        what = "no path" if not call.paths else "where to? one path more is needed"
        raise Misconfigured(what, f"quine fs {call.command} --help")
    if call.values.get("no_target_directory") and len(call.paths) > 2:
        raise Misconfigured("-T takes one path and its target")
    return call.paths[:-1], call.paths[-1]


def keeps(call: Call) -> bool:
    """Does what stands there stay?"""
    return bool(call.values.get("if_absent") or call.values.get("no_clobber"))


class Target:
    """A target in the tier: a name, or a directory to go into, as far as it is known."""

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
        """Does what is put go into it? Asked of the store once."""
        if self._into is None:
            try:
                self._into = not self.tier.stat(self.path).is_file
            except FileNotFoundError:
                self._into = False
        return self._into

    def under(self, name: str) -> str:
        """Where something of that name goes; name "" is the contents of a directory."""
        return paths.join(self.path, name) if self.into() else self.path

    def try_each(self, name: str, attempt: Callable[[str], None]) -> None:
        """Attempt it under the target's own name; where a directory stands there, in that."""
        if self.known:
            attempt(self.under(name))
            return
        try:
            attempt(self.path)
        except (IsADirectoryError, FileExistsError) as problem:
            if not self.into() or not name:
                raise problem from None
            attempt(self.under(name))


def below(entry: Entry, top: str) -> str:
    """The path from there on. Raises PermissionError for a name that a store must not have."""
    return relative(entry.path, top)


def relative(path: str, top: str) -> str:
    """The same of a path alone."""
    prefix = f"{top}/" if top else ""
    rest = path[len(prefix) :]
    if not path.startswith(prefix) or not rest or paths.clean(rest) != rest:
        raise PermissionError(errno.EPERM, "the store gave a name that leads elsewhere", path)
    return rest


def needed(found: Iterator[One]) -> Iterator[One]:
    """Of a walk, without the directories that come into being with what is put into them: that is a round trip less."""
    held: One | None = None
    for one in found:
        if held and not (one.kind in ("file", "directory") and one.path.startswith(f"{held.path}/")):
            yield held
        held = one if one.kind == "directory" else None
        if not held:
            yield one
    if held:
        yield held

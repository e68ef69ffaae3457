"""cp and mv: copies and renames within the tier; a store that can copy transfers no content to this machine.

Laws
1. Of several processes that move the same file, or move files to one name with --if-absent, one wins. The others get
   an error.
2. One file and one target take one round trip. A copy takes more only if the target is a directory.
"""

from __future__ import annotations

import errno

from quine.base.errors import FAILED
from quine.files import paths
from quine.files.api import OutcomeUnknown
from quine.files.cli.destination import Made, Target, below, crew_of, keeps, needed, operands
from quine.files.cli.output import escaped
from quine.files.cli.pool import at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Tier
    from quine.files.cli.context import Call
    from quine.files.cli.pool import Crew


def cp(call: Call) -> int:
    sources, last = operands(call)
    absent = keeps(call)
    with crew_of(call.values) as crew:
        expanded = [path for path, _ in call.expand(sources)]
        target = Target(call, last, len(expanded) > 1)
        made = Made(call, list(map(paths.name, expanded)))

        def copy(source: str, path: str) -> None:
            differ(call.tier, source, path)
            call.tier.copy(source, path, absent)
            call.say(f"{escaped(source)} -> {escaped(path)}")

        for source in expanded:
            try:
                if call.values.get("recursive"):
                    _copy_tree(call, crew, source, target.under(paths.name(source)), copy, made)
                else:
                    made.take(paths.name(source), source, paths.join(target.path, paths.name(source)))
                    crew.do(_copy_file, call.tier, source, target, copy)
            except OSError as problem:
                crew.failed(problem)
        return crew.finish() or call.end()


def differ(tier: Tier, source: str, path: str) -> None:
    """Raise OSError if both paths are the same: EINVAL, or ENOENT if nothing is there."""
    if source == path:
        tier.stat(source)
        raise OSError(errno.EINVAL, "source and target are the same file", source)


def _copy_file(tier: Tier, source: str, target: Target, copy: Callable[[str, str], None]) -> None:
    try:
        at_once(target.try_each(paths.name(source), lambda path: copy(source, path)), tier)
    except (IsADirectoryError, NotADirectoryError):
        if tier.stat(source).is_file:
            raise
        raise OSError(errno.EISDIR, "is a directory; -r copies it with what is in it", source) from None


def _copy_tree(
    call: Call, crew: Crew, source: str, top: str, copy: Callable[[str, str], None], made: Made
) -> None:
    name = paths.name(source)
    if call.tier.stat(source).is_file:
        made.take(name, source, top)
        crew.do(copy, source, top)
        return
    if top == source or top.startswith(f"{source}/") or not source:
        raise OSError(errno.EINVAL, "cannot be copied into itself", source)
    call.tier.mkdir(top, exist_ok=True)
    for entry in needed(call.tier.walk(source)):
        path = paths.join(top, below(entry, source))
        if entry.is_file:
            try:
                made.take(name, entry.path, path)
            except FileExistsError as problem:
                crew.failed(problem)
                continue
            crew.do(copy, entry.path, path)
        else:
            crew.do(call.tier.mkdir, path, True)


def mv(call: Call) -> int:
    """Perform `mv`. The store decides whether the target is a directory to move into: that is one round trip."""
    sources, last = operands(call)
    expanded = [path for path, _ in call.expand(sources)]
    target = Target(call, last, len(expanded) > 1)
    absent = keeps(call)
    made = Made(call, list(map(paths.name, expanded)))

    def rename(source: str) -> str:
        if not target.known:
            expect_outside(call.tier, source, target.path)
            return call.tier.move(source, target.path, absent)
        path = target.under(paths.name(source))
        made.take(paths.name(source), source, path)
        try:
            expect_outside(call.tier, source, path)
            if not absent:
                differ(call.tier, source, path)
            call.tier.rename(source, path, absent)
        except OSError as problem:
            if not isinstance(problem, OutcomeUnknown):
                made.drop(path)
            raise
        return path

    for source in expanded:
        try:
            call.say(f"{escaped(source)} -> {escaped(rename(source))}")
        except OSError as problem:
            call.failed(problem)
    return call.end() if not call.failures else FAILED


def expect_outside(tier: Tier, source: str, path: str) -> None:
    """Raise OSError if a directory would be moved into itself: EINVAL."""
    if not source or (paths.within(path, source) and not tier.stat(source).is_file):
        raise OSError(errno.EINVAL, "cannot be moved into itself", source)

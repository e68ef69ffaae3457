"""The call of one command of `quine fs`: its options, paths, store and output, and the number of its failures."""

from __future__ import annotations

import errno

from quine.base.errors import FAILED, OK, Misconfigured, complain
from quine.files import paths as names
from quine.files.api import error
from quine.files.cli import glob
from quine.files.cli.options import PREFIX
from quine.files.cli.output import Output
from quine.files.cli.pool import FULL, UNREACHED, failure, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quine.files.api import Tier
    from quine.files.cli.options import Values


class Call:
    """One command: its options, paths, store and output, and the number of its failures."""

    def __init__(self, command: str, values: Values, paths: list[str], tier: Tier) -> None:
        self.command, self.values, self.paths, self.tier = command, values, paths, tier
        self.out = Output()
        self.failures = 0

    def expand(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Expand patterns; yield (clean path, path as written). A path that fails is reported and left out."""
        for path in paths:
            written = path.removeprefix(PREFIX)
            try:
                clean = names.clean(written)
                if not self.is_pattern(written):
                    self._heed_slash(clean, written)
                    yield clean, written
                else:
                    yield from ((one, one) for one in glob.expand(self.tier, written))
            except OSError as problem:
                self.failed(problem)

    def is_pattern(self, written: str) -> bool:
        return not self.values.get("literal") and glob.is_pattern(written)

    def _heed_slash(self, clean: str, written: str) -> None:
        """Raise ENOTDIR if a path written with a slash at its end is a file."""
        if clean and written.endswith(("/", "/.")):
            try:
                is_file = self.tier.stat(clean).is_file
            except FileNotFoundError:
                return
            if is_file:
                raise error(errno.ENOTDIR, written)

    def each(self, what: Callable[[str], None], paths: Iterable[str]) -> None:
        """Call `what` with each of these paths; after a failure go on with the next."""
        for clean, _ in self.expand(paths):
            try:
                what(clean)
            except OSError as problem:
                self.failed(problem)

    def failed(self, problem: OSError) -> None:
        """Report an error and count it. Raises Failure if it concerns all further paths, too."""
        self.out.flush()
        if problem.errno in FULL or problem.errno in UNREACHED:
            raise failure(problem)
        self.failures += 1
        text, hint = words(problem)
        if isinstance(problem, glob.NoMatch):
            hint = "-F takes * ? [ ] as they are"
        complain(text, hint)

    def some(self, default: str | None = None) -> list[str]:
        """The paths as they were written, or `default`. Raises Misconfigured if there is neither."""
        if self.paths or default is not None:
            return self.paths or [str(default)]
        raise Misconfigured("no path", f"quine fs {self.command} --help")

    def say(self, text: str) -> None:
        if self.values.get("verbose"):
            from quine.base.errors import say

            say(text + "\n")

    def end(self) -> int:
        self.out.flush()
        return FAILED if self.failures else OK

"""Conditions that a flat store may heed: of a put that nothing is there, of a removal that one version is.

Law: a condition is trusted after a test on an unused name, since some gateways and emulators ignore it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from types import ModuleType
from typing import Any

from quine.files.stores.fsspec_io import about

REFUSED = (errno.EEXIST, errno.EINVAL)  # errors of drivers if another client was first


class Conditions:
    """Each is tested once. `unused` returns the filesystem and a new name; `cloud` is the module of its driver."""

    def __init__(self, unused: Callable[[], tuple[Any, str]], cloud: ModuleType | None) -> None:
        self._unused, self._cloud = unused, cloud
        self._decides: bool | None = None
        self._drops: bool | None = None

    def decides(self, path: str) -> bool:
        """Return whether the store puts a file on condition that nothing is there."""
        if self._decides is None:
            with about(path):
                self._decides = _decides(*self._unused())
        return self._decides

    def expect_absent(self, path: str) -> None:
        """Raise ENOTSUP if the store ignores that nothing may be there."""
        if not self.decides(path):
            raise OSError(errno.ENOTSUP, "this store does not decide who is first", path)

    def drops(self, path: str) -> bool:
        """Return whether the store removes a version on condition that it is there."""
        if self._drops is None:
            with about(path):
                self._drops = self._cloud is not None and _drops(*self._unused(), self._cloud)
        return self._drops


def _decides(fs: Any, place: str) -> bool:
    fs.pipe_file(place, b"")
    try:
        fs.pipe_file(place, b"", mode="create")
        return False
    except OSError as fault:  # drivers differ in the error for it
        if fault.errno not in REFUSED and not isinstance(fault, FileExistsError):
            raise
        return True
    finally:
        fs.rm_file(place)


def _drops(fs: Any, place: str, cloud: ModuleType) -> bool:
    fs.pipe_file(place, b"")
    try:
        return not cloud.drop(fs, place, "1")
    finally:
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(place)

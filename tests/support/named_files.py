"""Files of a file system that have the name of a memory file: the kernel shows both by the same words."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from unittest import mock

import pytest


class NamedFile:
    """A file or a named pipe, of which this process holds a descriptor that reads nothing; its name is gone."""

    def __init__(self, name: str, kind: int = stat.S_IFREG) -> None:
        self._path = f"/memfd:{name}"
        self._kind = kind

    def __enter__(self) -> NamedFile:
        if not os.access("/", os.W_OK):
            pytest.skip("no files can be made in /")
        os.mknod(self._path, self._kind | 0o600)
        self.fd = os.open(self._path, os.O_PATH)
        os.unlink(self._path)
        self.link = f"/proc/self/fd/{self.fd}"
        facts = os.fstat(self.fd)
        self.inode, self._same = facts.st_ino, (facts.st_dev, facts.st_ino)
        assert os.readlink(self.link) == f"{self._path} (deleted)"
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @contextlib.contextmanager
    def unasked(self) -> Iterator[None]:
        """Fail if its file system is asked for facts, which may never answer."""
        asked: list[object] = []

        def noted(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
            def ask(what: object, *args: object, **named: object) -> os.stat_result:
                facts = real(what, *args, **named)
                if (facts.st_dev, facts.st_ino) == self._same:
                    asked.append(what)
                return facts

            return ask

        with mock.patch.object(os, "stat", noted(os.stat)), mock.patch.object(os, "fstat", noted(os.fstat)):
            yield
        assert not asked

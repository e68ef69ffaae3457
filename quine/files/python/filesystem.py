"""`quine://` for Python: the files tier of this tree as an fsspec filesystem, in a job elsewhere as at the origin.

Laws
1. Decisions are the store's, each in one step: mode "x" is `put --if-absent`, a move without a glob is a rename.
2. Files are neither appended to nor changed in place: such a mode raises EOPNOTSUPP.
3. A transaction commits its files at its end, each whole, one after the other.
4. An unknown answer is an error: `exists` does not return False because the link is down.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
from collections.abc import Iterator
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.callbacks import DEFAULT_CALLBACK  # type: ignore[import-untyped]
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]
from fsspec.utils import isfilelike, stringify_path  # type: ignore[import-untyped]

from quine.files import paths
from quine.files.api import BLOCK, Reader, Tier, Writer
from quine.files.cli.localfs import Folder
from quine.files.python.file import Reading, Text, Writing, facts


class QuineFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """fsspec filesystem over `tier`, by default the one that `quine fs` uses in this process."""

    protocol = "quine"
    root_marker = ""

    def __init__(self, tier: Tier | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._tier = tier

    @property
    def tier(self) -> Tier:
        """Open the tier on first use: an instance may be made where there is no tier, and be pickled elsewhere."""
        if self._tier is None:
            from quine.files.select import tier_here

            self._tier = tier_here(os.environ)
        return self._tier

    def __reduce__(self) -> Any:
        return QuineFileSystem, ()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return paths.clean(str(stringify_path(path)).removeprefix("quine://").removeprefix("quine::"))

    # -- looking -----------------------------------------------------------------------------------

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        return facts(self.tier.stat(self._strip_protocol(path)))

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            entries = list(self.tier.list(path))
        except NotADirectoryError:
            entries = [self.tier.stat(path)]
        return [facts(entry) if detail else entry.path for entry in entries]

    def exists(self, path: Any, **_: Any) -> bool:
        return self._kind(path) != ""

    def isfile(self, path: Any) -> bool:
        return self._kind(path) == "file"

    def isdir(self, path: Any) -> bool:
        return self._kind(path) == "directory"

    def _kind(self, path: Any) -> str:
        """The kind of the entry, "" if there is none. Raises OSError if the store cannot tell."""
        try:
            return self.tier.stat(self._strip_protocol(path)).kind
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def modified(self, path: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def checksum(self, path: Any) -> int:
        return hash(self.ukey(path))

    def ukey(self, path: Any) -> str:
        """The version: it differs when the content does."""
        return str(self.info(path)["version"])

    # -- opening -----------------------------------------------------------------------------------

    def open(self, path: Any, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if "b" in mode:
            return super().open(path, mode, *args, **options)
        text = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
        return Text(self.open(path, mode.replace("t", "") + "b", *args, **options), **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        if mode == "rb":
            return Reading(self.tier, path)
        if mode not in ("wb", "xb"):
            raise OSError(
                errno.EOPNOTSUPP, f"mode {mode}: a file of the tier is replaced whole, with w or x", path
            )
        return Writing(self.tier.create(path, if_absent=mode == "xb"), path, autocommit)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        """Make an empty file; without `truncate` only if nothing is there."""
        with contextlib.suppress(*(() if truncate else (FileExistsError,))):
            self.pipe_file(path, b"", mode="overwrite" if truncate else "create")

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path, start = self._strip_protocol(path), start or 0
        if start < 0 or (end is not None and end < 0):
            size = self.tier.stat(path).size
            start = max(0, size + start) if start < 0 else start
            end = size + end if end is not None and end < 0 else end
        with self.tier.open(path, start, None if end is None else max(0, end - start)) as reader:
            return b"".join(_blocks(reader))

    def pipe_file(
        self, path: Any, value: bytes | bytearray | memoryview, mode: str = "overwrite", **_: Any
    ) -> None:
        size = memoryview(value).nbytes
        with self._making(path, if_absent=mode == "create", size=size) as writer:
            if size:
                writer.write(memoryview(value).cast("B"))

    @contextlib.contextmanager
    def _making(self, path: Any, **facts: Any) -> Iterator[Writer]:
        """A writer whose file is committed whole: on leaving, or at the end of the transaction."""
        path = self._strip_protocol(path)
        file = Writing(self.tier.create(path, **facts), path, not self._intrans)
        with file:
            yield file.writer
        if self._intrans:
            self.transaction.files.append(file)

    # -- changing ----------------------------------------------------------------------------------

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if not create_parents:
            self.tier.stat(paths.parent(path))
        self.tier.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.tier.mkdir(self._strip_protocol(path), exist_ok)

    def rmdir(self, path: Any) -> None:
        path = self._strip_protocol(path)
        if self.tier.stat(path).is_file:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self.tier.remove(path)

    def rm_file(self, path: Any) -> None:
        self.tier.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if recursive and maxdepth is None:
            for one in self.expand_path(path):
                self.tier.remove(one, recursive=True)
        else:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Rename in one step of the store if there is no glob; an existing directory `path2` is moved into."""
        if not isinstance(path1, str) or not isinstance(path2, str) or fsspec.core.has_magic(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if path2.endswith("/") or self.isdir(target):
            target = paths.join(target, paths.name(source))
        if source != target:
            self.tier.rename(source, target)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        try:
            self.tier.copy(source, target)
        except IsADirectoryError:
            if not self.isdir(source):
                raise
            self.tier.mkdir(target, exist_ok=True)

    def put_file(
        self, lpath: Any, rpath: Any, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.tier.mkdir(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as file:
            found = os.fstat(file.fileno())
            callback.set_size(found.st_size)
            with self._making(
                rpath,
                if_absent=mode == "create",
                mode=found.st_mode & 0o777,
                mtime=found.st_mtime,
                size=found.st_size,
            ) as writer:
                while block := file.read(BLOCK):
                    writer.write(block)
                    callback.relative_update(len(block))

    def get_file(
        self, rpath: Any, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        """Write the local file aside and rename it, with the mode and time that the tier has."""
        outfile = lpath if outfile is None and isfilelike(lpath) else outfile
        try:
            reader = self.tier.open(self._strip_protocol(rpath))
        except IsADirectoryError:
            os.makedirs(lpath, exist_ok=True)
            return
        with reader:
            callback.set_size(reader.length)
            if outfile is not None:
                for block in _blocks(reader):
                    outfile.write(block)
                    callback.relative_update(len(block))
                return
            above, name = os.path.split(os.path.abspath(lpath))
            os.makedirs(above, exist_ok=True)
            with Folder(above) as folder:
                folder.fill(name, reader, callback.relative_update)


def _blocks(reader: Reader) -> Iterator[bytes]:
    while block := reader.read(BLOCK):
        yield block


fsspec.register_implementation("quine", QuineFileSystem, clobber=True)

"""A files tier in any store of fsspec: gs://, az://, ftp://, webdav://, archives, and chains of these.

Laws
1. Nothing is promised that the store does not keep. `if_absent` is refused if the store cannot decide it. Drivers that
   only read, and drivers with copies of their own (`simplecache::`), are read-only. So is a store that is not known to
   replace a file in one step, unless `unsafe` allows it.
2. A flat store (`flat`) receives a file whole, in one call, from a spool on this machine's disk. In any other store the
   file is written aside and moved. This is one step if the store's own move is one.
3. A file that was read to its end and has changed since it was opened raises ESTALE: a reader gets no mixture.
4. Names are escaped as in keys.py; listings are never taken from a cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from quine.files import paths
from quine.files.api import DIRECTORY_MODE, Entry, Reader, Tier, Writer, check_range, error
from quine.files.stores import azure, google
from quine.files.stores.flat_conditions import REFUSED, Conditions
from quine.files.stores.flat_moves import move
from quine.files.stores.flat_tree import tree
from quine.files.stores.fsspec_io import SpoolWriter, SteadyReader, about, known
from quine.files.stores.local.dirfd import TRIES
from quine.files.stores.local.temp import NAME as ASIDE
from quine.files.stores.object.keys import IN_URLS, UNFIT, key_of, path_of
from quine.files.stores.rename_rules import moves, replaces
from quine.files.stores.spool import spool

FLAT = ("gs", "gcs", "az", "abfs", "abfss", "s3", "s3a")  # these also decide `if_absent`
AZURE = ("az", "abfs", "abfss")
READ_ONLY = (
    *("zip", "tar", "libarchive", "http", "https", "git", "github", "reference", "data"),
    *("simplecache", "filecache", "blockcache", "cached"),
)
# The drivers whose own move replaces in one step. FTP leaves that to the server, WebDAV removes the target first (RFC
# 4918, 9.9.3), SMB and HDFS refuse an existing target. Of drivers that are not named here nothing is known.
ONE_STEP = (*FLAT, "local", "file", "memory")
MADE = "%51uine-directory"  # an object that keeps an empty directory of a flat store; no name encodes to it


class Generic(Tier):
    """`_driver` opens the filesystem once in each process, so a forked process opens its own."""

    def __init__(
        self, url: str, protocol: str, options: Mapping[str, Any], shown: str, unsafe: bool = False
    ) -> None:
        """`unsafe`: write even if the store does not replace a file in one step, or remove one version alone."""
        self.url = shown
        self._url, self._options = url, options
        self.flat, self.read_only = protocol in FLAT, protocol in READ_ONLY
        self._torn = not unsafe and protocol not in (*ONE_STEP, *READ_ONLY)
        self._unsafe = unsafe
        self._google, self._azure = protocol in ("gs", "gcs"), protocol in AZURE
        self._unfit = IN_URLS if self._azure else UNFIT
        self._cloud: Any = azure if self._azure else google if self._google else None
        self._conditions = Conditions(self._unused, self._cloud)
        self._opened: tuple[int, Any, str] | None = None
        self._former: Sequence[Any] = ()  # filesystems of the parent process
        self._driver()

    def _driver(self) -> tuple[Any, str]:
        """Return the filesystem and the root in it, without a final slash."""
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            self._former = (*self._former, self._opened)
            fs, root = url_to_fs(self._url, **self._options)
            if type(fs).__name__ == "DirFileSystem":  # its paths are relative to the returned root
                fs = fs.fs
            self._opened = (os.getpid(), fs, root.rstrip("/"))
        return self._opened[1], self._opened[2]

    def _at(self, path: str) -> tuple[Any, str]:
        fs, root = self._driver()
        with contextlib.suppress(NotImplementedError):
            fs.invalidate_cache()
        key = key_of(path, self._unfit)
        return fs, (f"{root}/{key}" if root else key) if path else root

    # ----------------------------------------------------------------- looks

    def _look(self, path: str) -> Entry | None:
        fs, place = self._at(path)
        with about(path):
            try:
                found = fs.info(place)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return known(path, found)

    def _missing(self, path: str) -> OSError:
        for above in paths.ancestors(path):
            found = self._look(above)
            if found is None:
                break
            if found.is_file:
                return error(errno.ENOTDIR, path)
        return error(errno.ENOENT, path)

    def _expect_way(self, path: str) -> None:
        """Raise ENOTDIR if a file stands above `path`."""
        if (missing := self._missing(path)).errno == errno.ENOTDIR:
            raise missing

    def stat(self, path: str) -> Entry:
        if not path:
            return Entry("", "directory", mode=DIRECTORY_MODE)
        found = self._look(path)
        if found is None:
            raise self._missing(path)
        return found

    def list(self, path: str) -> Iterator[Entry]:
        return iter(self._listed(path)[0])

    def hidden(self, path: str) -> Iterator[str]:
        """Yield the keys that encode no name, as another tool would show them."""
        if not path:
            yield ASIDE
        if self._cloud:
            yield from self._deep(path)[1]
            return
        for above in (path, *(entry.path for entry in self.walk(path) if not entry.is_file)):
            with contextlib.suppress(FileNotFoundError):
                for name in self._listed(above)[1]:
                    if twin := paths.nearest(name):
                        yield paths.join(above, twin)

    def walk(self, path: str) -> Iterator[Entry]:
        """Walk the tier; in Google and Azure with one call a page of keys."""
        if not self._cloud:
            yield from super().walk(path)
            return
        yield from self._deep(path)[0]

    def _deep(self, path: str) -> tuple[Sequence[Entry], Sequence[str]]:
        """Return the entries below a directory of a flat store, and the paths of keys without a name."""
        fs, place = self._at(path)
        with about(path):
            try:
                found = self._cloud.walked(fs, place)
            except FileNotFoundError:
                if self._azure:
                    raise
                found = []
        if not found:
            self._listed(path)  # raises ENOENT or ENOTDIR if there is no such directory
        return tree(path, found, lambda name: path_of(name, self._unfit), MADE, ASIDE)

    def _listed(self, path: str) -> tuple[Sequence[Entry], Sequence[str]]:
        """Return the entries of a directory, and the last parts of keys that encode no name."""
        fs, place = self._at(path)
        known_first = bool(path) and not self._cloud
        if known_first and self.stat(path).is_file:
            raise error(errno.ENOTDIR, path)
        with about(path):
            try:
                found = azure.listed(fs, place) if self._azure else fs.ls(place, detail=True)
            except FileNotFoundError:
                if known_first or self._azure:
                    raise
                if self._google and not path:
                    google.expect_bucket(fs, place)
                found = []
        below = any(each["name"].rstrip("/") != place.rstrip("/") for each in found)
        if path and not known_first and not below and self.stat(path).is_file:
            raise error(errno.ENOTDIR, path)
        entries, odd = {}, []
        for each in found:
            whole = each["name"].rstrip("/")
            last = whole.rpartition("/")[2]
            name = path_of(last, self._unfit)
            if whole == place.rstrip("/") or (not path and name == ASIDE):
                continue
            if name:
                entries[name] = known(paths.join(path, name), each)
            elif last != MADE:
                odd.append(last)
        return [entries[name] for name in sorted(entries, key=os.fsencode)], odd

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        found = self.stat(path)
        if not found.is_file:
            raise error(errno.EISDIR, path)
        fs, place = self._at(path)
        with about(path):
            file = fs.open(place, "rb", **(google.READING if self._google else {}))
        again = (lambda: found) if self.read_only else (lambda: self._look(path))
        return SteadyReader(file, found, offset, length, again)

    # --------------------------------------------------------------- changes

    def _writable(self, path: str) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, "this store is read-only", path)
        if self._torn:
            text = "this store does not replace a file in one step, so it is only read"
            raise OSError(errno.EROFS, f'{text}; "unsafe": true in QUINE_FS_OPTIONS allows it', path)

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        self._writable(path)
        if if_absent and not self.flat:
            raise OSError(errno.ENOTSUP, "this store cannot decide who is first", path)
        there = self.stat("") if not path else self._look(path)
        if there is not None and not there.is_file:
            raise error(errno.EISDIR, path)
        if there is not None and if_absent:
            raise error(errno.EEXIST, path)
        if there is None:
            self._expect_way(path)
        with about(path):
            if self.flat:
                if if_absent:
                    self._conditions.expect_absent(path)
                file = os.fdopen(spool(), "w+b")
                return SpoolWriter(path, file, lambda: self._put(file, path, if_absent), lambda: None, True)
            fs, place = self._unused()
            fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            file = fs.open(place, "wb")
        return SpoolWriter(path, file, lambda: self._arrive(place, path), lambda: self._drop(place), False)

    def _put(self, file: IO[bytes], path: str, if_absent: bool) -> Entry:
        fs, place = self._at(path)
        mode = "create" if if_absent else "overwrite"
        try:
            with about(path):
                if self._cloud:
                    made = self._cloud.put(fs, file, place, mode)
                else:
                    made = fs.put_file(f"/proc/self/fd/{file.fileno()}", place, mode=mode)
        except OSError as fault:
            if if_absent and fault.errno in REFUSED and self._look(path) is not None:
                raise error(errno.EEXIST, path) from None
            raise
        if self._cloud and made:
            return known(path, made)
        found = self.stat(path)  # perhaps another client's, so a cloud has no version to drop
        return found._replace(version="") if self._cloud else found

    def _unused(self) -> tuple[Any, str]:
        return self._at(paths.join(ASIDE, secrets.token_hex(8)))

    def _arrive(self, aside: str, path: str) -> Entry:
        for left in reversed(range(TRIES)):
            try:
                self._move(aside, path)
                return self.stat(path)
            except FileNotFoundError:  # a directory was removed before the file arrived in it
                if not left or self._look(path) is not None:
                    raise
        raise AssertionError("unreachable")

    def _move(self, aside: str, path: str) -> None:
        fs, place = self._at(path)
        with about(path):
            if paths.parent(path):
                self.mkdir(paths.parent(path), exist_ok=True)
            else:
                fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            there = self._look(path)
            if there is not None and not there.is_file:
                raise error(errno.EISDIR, path)
            fs.mv(aside, place)

    def _drop(self, place: str) -> None:
        fs, _ = self._at("")
        with contextlib.suppress(Exception):  # the file was never created, or the store is unreachable
            fs.rm_file(place)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        self._writable(path)
        there = self.stat("") if not path else self._look(path)
        if there is not None:
            if there.is_file or not exist_ok:
                raise error(errno.EEXIST, path)
            return
        self._expect_way(path)
        fs, place = self._at(path)
        with about(path):
            if self.flat:
                for each in (*paths.ancestors(path), path):
                    fs.pipe_file(f"{self._at(each)[1]}/{MADE}", b"")
            else:
                fs.makedirs(place, exist_ok=True)

    def remove(self, path: str, recursive: bool = False) -> None:
        self._writable(path)
        if not path:
            raise error(errno.EPERM, path)
        if self.stat(path).is_file:
            self._remove_file(path)
            return
        if not recursive:
            if next(self.list(path), None) is not None:
                raise error(errno.ENOTEMPTY, path)
            self._remove_folder(path)  # not the files that arrived in it meanwhile
            return
        todo, folders = [path], []
        while todo:  # no recursion: a path may have hundreds of names
            folders.append(todo.pop())
            for each in self.list(folders[-1]):
                if each.is_file:
                    self._remove_file(each.path)
                else:
                    todo.append(each.path)
        for folder in reversed(folders):
            self._remove_folder(folder)

    def _remove_file(self, path: str) -> None:
        fs, place = self._at(path)
        with about(path):
            fs.rm_file(place)

    def _remove_folder(self, path: str) -> None:
        fs, place = self._at(path)
        with about(path):
            if self.flat:
                for kept in (MADE, *([""] if self._google else [])):  # "" is the object of other tools
                    with contextlib.suppress(FileNotFoundError):
                        fs.rm_file(f"{place}/{kept}")
                if self._azure:
                    azure.forget(fs, place)
            else:
                fs.rmdir(place)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        self._writable(source)
        here = self.stat(source)
        if not moves(source, not here.is_file, target, if_absent):
            return
        if self.flat and not (self._unsafe or self._conditions.drops(source)):
            text = "this store does not remove one version alone: a move could remove what is put meanwhile"
            raise OSError(errno.ENOTSUP, f'{text}; cp and rm, or "unsafe": true in QUINE_FS_OPTIONS', source)
        there = self._look(target)
        if there is None and if_absent and self.flat:
            self._conditions.expect_absent(target)
        elif there is None and if_absent:
            raise OSError(errno.ENOTSUP, "this store cannot decide who is first", target)
        if there is not None:
            replaces(not here.is_file, not there.is_file, target, if_absent)
            if not here.is_file and next(self.list(target), None) is not None:
                raise error(errno.ENOTEMPTY, target)
        else:
            self._expect_way(target)
        if here.is_file and self.flat:
            self._carry(here, target, if_absent, there is None)
        elif here.is_file:
            self._arrive(self._at(source)[1], target)
        else:
            self.mkdir(target, exist_ok=True)
            for each in self.list(source):
                self.rename(each.path, paths.join(target, paths.name(each.path)))
            with contextlib.suppress(FileNotFoundError):  # it may be gone with its last file in a flat store
                self.remove(source)

    def _carry(self, here: Entry, target: str, if_absent: bool, free: bool) -> None:
        if self._conditions.drops(here.path):
            decides = free and self._conditions.decides(target)
            move(self, here, target, if_absent, decides, self._drop_version)
        else:
            self.copy(here.path, target, if_absent)
            self.remove(here.path)

    def _drop_version(self, entry: Entry) -> bool:
        fs, place = self._at(entry.path)
        with about(entry.path):
            return bool(self._cloud.drop(fs, place, entry.version))

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        self._writable(path)
        found = self.stat(path)
        if not found.is_file:
            raise error(errno.EISDIR, path)
        return found  # the store keeps neither

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        if source == target and not if_absent and self.stat(source).is_file:
            return self.stat(source)
        return super().copy(source, target, if_absent)

    def close(self) -> None:
        """Drop the filesystem: drivers close an instance that nothing refers to, but for Azure's."""
        opened, self._opened = self._opened, None
        if self._azure and opened and opened[0] == os.getpid():
            azure.close(opened[1])

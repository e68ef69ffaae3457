"""A files tier in a directory that an sshd serves: sftp://[USER@]HOST[:PORT]/DIR; `~/DIR` is below the remote home.

Laws
1. A file is written aside in the root's hidden directory, synced, and moved to its name by posix-rename, which
   replaces; with `if_absent` by a hard link, which does not. On a server without these the write fails with ENOTSUP.
2. No symlink is followed: each name of a path is checked before use. A user with an account on the server can put a
   link there after the check; the protocol cannot open without following.
3. A reader holds its file open, which is its version. After a broken connection it opens the file again, and raises
   ESTALE if size or time differ.
4. Version 3 of the protocol reports many errors as "failure". The cause is looked up then, and only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from quine.files import paths as names
from quine.files.api import DIRECTORY_MODE, Entry, Reader, Tier, Writer, check_range, error
from quine.files.room import Room
from quine.files.stores.local.dirfd import TRIES
from quine.files.stores.local.temp import NAME as ASIDE
from quine.files.stores.local.temp import OLD
from quine.files.stores.rename_rules import moves, replaces
from quine.files.stores.sftp.io import SftpReader, SftpWriter, known
from quine.files.stores.sftp.links import Taking
from quine.files.stores.sftp.places import Places
from quine.files.stores.sftp.room import FreeSpace
from quine.files.stores.sftp.session import FAILURE, NO_SUCH_FILE, UNSUPPORTED, Session, code_of
from transport.carrier.dialer import SshTarget

AT_ONCE = 32  # requests of one removal at a time
SWEEP = 600.0  # seconds between two sweeps of the parts of dead writers
WRITE, CREATE, EXCLUSIVE = 0x02, 0x08, 0x20  # flags of the protocol


def _used(found: Any, now: int) -> int:
    """Return when a part was last used. A part that is about to arrive has its final mtime, so atime counts too."""
    return max(found.atime or now, found.mtime or now)


class SftpTier(Tier):
    def __init__(self, url: str, target: SshTarget, root: str) -> None:
        self.url = url
        self.session = Session(target)
        self._places = Places(root)
        self._swept = -SWEEP

    # ----------------------------------------------------------------- looks

    def stat(self, path: str) -> Entry:
        async def act(client: Any) -> Entry:
            return known(path, await self._places.there(client, path))

        try:
            return self.session.run(act, path)
        except FileNotFoundError:
            if path:
                raise
            return Entry("", "directory", mode=DIRECTORY_MODE)  # a root that does not exist yet

    def list(self, path: str) -> Iterator[Entry]:
        async def act(client: Any) -> Sequence[Entry]:
            found = await self._places.there(client, path)
            if not stat.S_ISDIR(found.permissions or 0):
                raise error(errno.ENOTDIR, path)
            entries = []
            async for each in client.scandir(await self._places.at(client, path)):
                kind = stat.S_IFMT(each.attrs.permissions or 0)
                name = os.fsdecode(each.filename)
                if name not in (".", "..") and kind in (stat.S_IFREG, stat.S_IFDIR):
                    entries.append(known(names.join(path, name), each.attrs))
            return entries

        try:
            entries = self.session.run(act, path)
        except FileNotFoundError:
            if path:
                raise
            return iter(())
        entries = [entry for entry in entries if entry.path != ASIDE]
        return iter(sorted(entries, key=lambda entry: os.fsencode(entry.path)))

    def hidden(self, path: str) -> Iterator[str]:
        """Yield symlinks, devices, pipes and sockets; at the root also the directory of parts."""
        if not path:
            yield ASIDE

        for above in (path, *(entry.path for entry in self.walk(path) if not entry.is_file)):

            async def act(client: Any, above: str = above) -> Sequence[str]:
                found = []
                async for each in client.scandir(await self._places.at(client, above)):
                    kind = stat.S_IFMT(each.attrs.permissions or 0)
                    if kind not in (stat.S_IFREG, stat.S_IFDIR):
                        found.append(names.join(above, os.fsdecode(each.filename)))
                return found

            with contextlib.suppress(FileNotFoundError):
                yield from self.session.run(act, above)

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        if not path:
            raise error(errno.EISDIR, path)

        async def act(client: Any) -> tuple[Any, Entry]:
            found = await self._places.there(client, path)
            if stat.S_ISDIR(found.permissions or 0):
                raise error(errno.EISDIR, path)
            file = await client.open(await self._places.at(client, path), 1, encoding=None)
            attributes = await file.stat()
            return file, known(path, attributes)

        file, entry = self.session.run(act, path)
        return SftpReader(self.session, act, file, entry, offset, length)

    # --------------------------------------------------------------- changes

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        if not path:
            raise error(errno.EISDIR, path)

        async def act(client: Any) -> tuple[Any, bytes]:
            found = await self._places.maybe(client, path)
            if found is not None and stat.S_ISDIR(found.permissions or 0):
                raise error(errno.EISDIR, path)
            if found is not None and if_absent:
                raise error(errno.EEXIST, path)
            return await self._part(client)

        file, part = self.session.run(act, path)

        async def arrive(client: Any) -> None:
            await self._arrive(client, part, path, if_absent)
            if if_absent:
                with contextlib.suppress(Exception):  # the file has its name; a later sweep removes the part
                    await client.remove(part)

        return SftpWriter(self.session, path, file, part, mode, mtime, arrive)

    async def _part(self, client: Any) -> tuple[Any, bytes]:
        """Create a part in the hidden directory; return the open file and its path."""
        aside = await self._places.at(client, ASIDE)
        place = aside + f"/sftp-{secrets.token_hex(8)}".encode()
        for left in (True, False):
            try:
                file = await client.open(place, WRITE | CREATE | EXCLUSIVE, encoding=None)
                break
            except Exception as fault:
                if code_of(fault) != NO_SUCH_FILE or not left:
                    raise
            await self._aside(client)
        if time.monotonic() - self._swept >= SWEEP:
            self._swept = time.monotonic()
            await self._sweep(client, aside, await file.stat())
        return file, place

    async def _aside(self, client: Any) -> bytes:
        """Return the hidden directory; create it if needed."""
        aside = await self._places.at(client, ASIDE)
        await self._places.make(client, "")
        if await self._places.make(client, ASIDE):
            await client.chmod(aside, 0o700)
        return aside

    async def _sweep(self, client: Any, aside: bytes, now: Any) -> None:
        """Remove parts that dead writers left more than a day ago, by the server's own clock."""
        with contextlib.suppress(Exception):  # another client sweeps too, or this one lacks permission
            async for each in client.scandir(aside):
                if each.filename.startswith(b"sftp-") and now.mtime - _used(each.attrs, now.mtime) > OLD:
                    await client.remove(aside + b"/" + each.filename)

    async def _arrive(self, client: Any, part: bytes, path: str, if_absent: bool) -> None:
        """Move or link a file, written aside or a rename's source, to `path`."""
        target = await self._places.at(client, path)
        for left in reversed(range(TRIES)):
            try:
                if if_absent:
                    await client.link(part, target)
                else:
                    await client.posix_rename(part, target)
                break
            except Exception as fault:
                code = code_of(fault)
                if code == NO_SUCH_FILE and left:
                    await self._places.make(client, names.parent(path))
                elif code == UNSUPPORTED:
                    wanted = "hardlink" if if_absent else "posix-rename"
                    text = f"its server does not know {wanted}@openssh.com"
                    raise OSError(errno.ENOTSUP, text, path) from None
                else:
                    raise await self._why(client, fault, path, if_absent) from None

    async def _why(
        self, client: Any, fault: Exception, path: str, if_absent: bool, claim: bool = False
    ) -> Exception:
        """Return the error that kept a file from `path`, or with `claim` a directory."""
        if code_of(fault) not in (NO_SUCH_FILE, FAILURE):
            return fault
        try:
            found = await self._places.maybe(client, path)
        except OSError as other:
            return other
        if found is not None and stat.S_ISDIR(found.permissions or 0) and not claim:
            return error(errno.EISDIR, path)
        if found is not None and if_absent:
            return error(errno.EEXIST, path)
        return fault

    def reserve(self) -> Room:
        return FreeSpace(self.session, self._places)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        async def act(client: Any) -> None:
            try:
                made = await self._places.make(client, path)
            except NotADirectoryError:
                found = await self._places.maybe(client, path)
                raise error(errno.ENOTDIR if found is None else errno.EEXIST, path) from None
            if not made and not exist_ok:
                raise error(errno.EEXIST, path)

        self.session.run(act, path, again=exist_ok, changes=True)

    def remove(self, path: str, recursive: bool = False) -> None:
        if not path:
            raise error(errno.EPERM, path)

        async def act(client: Any) -> None:
            found = await self._places.there(client, path)
            place = await self._places.at(client, path)
            if not stat.S_ISDIR(found.permissions or 0):
                await client.remove(place)
                return
            self._places.forget()
            try:
                await client.rmdir(place)
            except Exception as fault:
                if code_of(fault) != FAILURE:
                    raise
                if not recursive:
                    raise error(errno.ENOTEMPTY, path) from None
                await self._clear(client, place, asyncio.Semaphore(AT_ONCE))

        self.session.run(act, path, again=False, changes=True)

    async def _clear(self, client: Any, place: bytes, turns: asyncio.Semaphore) -> None:
        """Remove a directory with its content; links are removed and not followed."""
        files, folders = deque[bytes](), deque[bytes]()
        async for each in client.scandir(place):
            if each.filename not in (b".", b".."):
                below = place + b"/" + each.filename
                if stat.S_ISDIR(each.attrs.permissions or 0):
                    folders.append(below)
                else:
                    files.append(below)

        async def gone(file: bytes) -> None:
            async with turns:
                await client.remove(file)

        while files:
            await asyncio.gather(*(gone(files.popleft()) for _ in range(min(len(files), 1000))))
        for folder in folders:
            await self._clear(client, folder, turns)
        await client.rmdir(place)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        if not source:
            raise error(errno.EINVAL, source)

        async def act(client: Any) -> None:
            found = await self._places.there(client, source)
            folder = stat.S_ISDIR(found.permissions or 0)
            if not moves(source, folder, target, if_absent):
                return
            there = await self._places.maybe(client, target)
            if there is not None:
                replaces(folder, stat.S_ISDIR(there.permissions or 0), target, if_absent)
                if folder:
                    await self._empty(client, target)
            self._places.forget()
            old = await self._places.at(client, source)
            if not folder:
                await self._arrive(client, old, target, if_absent)
                if if_absent:
                    taking = Taking(client, await self._aside(client), found)
                    await taking.settle(old, await self._places.at(client, target))
                return
            await self._places.make(client, names.parent(target))
            new = await self._places.at(client, target)
            if if_absent:  # mkdir decides; the rename replaces an empty one
                await self._claim(client, new, target)
            try:
                await client.posix_rename(old, new)
            except Exception as fault:
                raise await self._why(client, fault, target, False) from None

        self.session.run(act, source, again=False, changes=True)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        async def act(client: Any) -> Entry:
            found = await self._places.there(client, path)
            if stat.S_ISDIR(found.permissions or 0):
                raise error(errno.EISDIR, path)
            place = await self._places.at(client, path)
            if mode is not None:
                await client.chmod(place, mode & 0o777)
            if mtime is not None:
                await client.utime(place, (mtime, mtime))
            return known(path, await self._places.look(client, path))

        return self.session.run(act, path, changes=True)

    async def _claim(self, client: Any, place: bytes, path: str) -> None:
        try:
            await client.mkdir(place)
        except Exception as fault:
            raise await self._why(client, fault, path, True, claim=True) from None

    async def _empty(self, client: Any, target: str) -> None:
        async for each in client.scandir(await self._places.at(client, target)):
            if each.filename not in (b".", b".."):
                raise error(errno.ENOTEMPTY, target)

    def close(self) -> None:
        self.session.close()

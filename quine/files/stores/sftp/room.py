"""Room on an sshd's disk: the server tells what is free, and nothing is held. The laws are in store.py."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from quine.files.api import error
from quine.files.room import MUCH, Room
from quine.files.stores.sftp.places import Places
from quine.files.stores.sftp.session import NO_SUCH_FILE, UNSUPPORTED, Session, code_of

if TYPE_CHECKING:
    from quine.files.room import Held


class FreeSpace(Room):
    def __init__(self, session: Session, places: Places) -> None:
        self._session, self._places = session, places

    def need(self, space: int, growth: int, ahead: int, path: str) -> Held:
        async def act(client: Any) -> int:
            try:
                facts = await client.statvfs(await self._places.at(client))
            except Exception as fault:
                if code_of(fault) in (NO_SUCH_FILE, UNSUPPORTED):  # no root yet; not OpenSSH's server
                    return MUCH
                raise
            return int(facts.bavail * facts.frsize)

        free = self._session.run(act, path)
        if free < space:
            raise error(errno.ENOSPC, path)
        return space + min(ahead, (free - space) // 8), MUCH

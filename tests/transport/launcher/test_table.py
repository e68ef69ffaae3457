"""The processes that hold the memo of a job, looked for in /proc."""

from __future__ import annotations

import os

from tests.support.named_files import NamedFile
from transport import inherit
from transport.launcher import table


def test_the_server_of_a_file_is_not_asked_whether_it_is_the_memo_of_a_job() -> None:
    """One of FUSE whose name has the word in it held the launcher, and with it the node."""
    with NamedFile(inherit.NAME) as named:
        memo = inherit.write({})
        holder = os.posix_spawn(
            "/bin/sleep", ["sleep", "100"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, memo, 9)]
        )
        try:
            with named.unasked():
                assert table.holders(named.inode) == set()
                assert table.holders(os.fstat(memo).st_ino) == {holder}
        finally:
            os.kill(holder, 9)
            os.waitpid(holder, 0)
            os.close(memo)

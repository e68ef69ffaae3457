"""Jobs that have ended before their command began, as the staging on their host notes.

Laws
1. An exit status cannot say it: 69 may be the command's own, and the caller that would hear the reason may have died.
2. A note is known by the secret of its job. A command that makes one has itself run again.
"""

from __future__ import annotations

import os
import time

from quine.base import dirs
from quine.staging.scan import cache, key_of
from transport.lean import contextlib

MOST = 10_000  # notes of a user on a machine: a batch that is killed may leave as many as it has jobs at one time
LONGEST = 30 * 86400.0  # seconds for which a note stays where there are so many


def name_of(capability: str) -> str:
    """Return the name of the note of a job."""
    return key_of("unbegun", capability)


def note(capability: str) -> None:
    """This process is a job, and ends without its command. Without room for a note the job counts as lost."""
    with contextlib.suppress(OSError):
        folder = cache("unbegun")
        dirs.make(folder)
        if len(names := os.listdir(folder)) >= MOST:
            oldest = time.time() - LONGEST
            for name in names:
                if os.stat(os.path.join(folder, name)).st_mtime < oldest:
                    os.unlink(os.path.join(folder, name))
        os.close(
            os.open(
                os.path.join(folder, name_of(capability)), os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        )


def is_noted(name: str) -> bool:
    """Return whether there is a note of this name."""
    return os.path.lexists(os.path.join(cache("unbegun"), os.path.basename(name)))

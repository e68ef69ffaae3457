"""The log of the brokers of a user, beside their sockets: only what went wrong is in it.

Law: it is bounded. A client may cause the same line for ever, so a full log takes the place of the one before.
"""

from __future__ import annotations

import os
import time

LONGEST = 1 << 20  # bytes after which a log is begun anew
FORMER = ".1"  # behind the name of the one before


def log(path: str, what: str | BaseException) -> None:
    """Append a line, or the traceback of an error, to the log beside the socket at `path`."""
    import traceback

    text = (
        what
        if isinstance(what, str)
        else "".join(traceback.format_exception(type(what), what, what.__traceback__))
    )
    name = os.path.join(os.path.dirname(path), "broker.log")
    try:
        if os.path.exists(name) and os.path.getsize(name) >= LONGEST:
            os.replace(name, name + FORMER)
        with open(name, "a") as file:
            file.write(f"{time.strftime('%F %T')} broker[{os.getpid()}] {text.rstrip()}\n")
    except OSError:
        pass

"""The log of the brokers of a user, beside their sockets: only what went wrong is in it."""

from __future__ import annotations

import os
import time


def log(path: str, what: str | BaseException) -> None:
    """Append a line, or the traceback of an error, to the log beside the socket at `path`."""
    import traceback

    text = (
        what
        if isinstance(what, str)
        else "".join(traceback.format_exception(type(what), what, what.__traceback__))
    )
    try:
        with open(os.path.join(os.path.dirname(path), "broker.log"), "a") as file:
            file.write(f"{time.strftime('%F %T')} broker[{os.getpid()}] {text.rstrip()}\n")
    except OSError:
        pass

"""Where the files tier is, as text: what of `QUINE_FS` is passed on, and to whom.

Laws
1. A relative directory is one of the process that read it first, and is made absolute there.
2. Another machine is told a URL only where it opens the store itself, and never a password in it.
"""

from __future__ import annotations

import contextlib
import os

from quine.exits import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

VARIABLES = ("QUINE_FS", "QUINE_FS_QUOTA")
GONE = "gone:"  # in place of a URL: there was an origin to ask, and this job has outlived it
RESERVED = (
    ".quine"  # at the root of the tier: what is kept there is the record of trees, and no file of anybody's
)
OURS = ("origin", "memory", "gone")  # of this machine or this process alone


def absolute(url: str) -> str:
    """`origin:DIR` with the directory from the root on; any other URL as it is. Misconfigured where it is none."""
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme.replace("+", "").replace("-", "").replace(".", "").isalnum():
        shown = os.path.join("/", url) if "/" in url else "/DIR"
        hint = f"origin:{url[:80]}, file://{shown[:80]}, s3://BUCKET/PREFIX"
        raise Misconfigured(f"the files tier needs a URL, and {url[:80]!r} is none", hint)
    directory = url.removeprefix("origin:")
    if directory == url or not directory:
        return url
    return "origin:" + _from_here(directory)


def settle(environ: MutableMapping[str, str]) -> None:
    """For who is about to leave the directory that he was started in: the tier stays where it is.

    A URL that is none is left as it is: who opens it says so.
    """
    environ["QUINE_DATA_DIR"] = _from_here(environ.get("QUINE_DATA_DIR") or ".quine")
    if url := environ.get("QUINE_FS"):
        with contextlib.suppress(Misconfigured):
            environ["QUINE_FS"] = absolute(url)


def _from_here(directory: str) -> str:
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    return os.path.normpath(os.path.join(here, os.path.expanduser(directory)))


def shareable(url: str, environ: Mapping[str, str]) -> str | None:
    """What a host is told that has its own access to the store; None where it has to ask us all the same.

    With a quota it has: what it writes would be counted by nobody.
    """
    scheme = url.partition(":")[0]
    if not url or environ.get("QUINE_FS_QUOTA") or scheme in OURS:
        return None
    from quine.files import credentials

    return credentials.shown(url)

"""From a URL to a tier: who is at the origin, or has access of his own, opens the store itself.

Laws
1. A local tier needs no library: what speaks to other stores is imported when a URL asks for it.
2. What is wrong with a URL is said before anything is opened, and never with the secrets in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quine.exits import Misconfigured
from quine.files.tier import Tier

DEFAULT = "origin:"
DIRECTORY = "fs"  # in the data directory


def open_store(url: str, environ: Mapping[str, str], data_dir: str) -> Tier:
    """The tier of a URL; nothing is made yet, and a local one asks nobody. `environ` has the store's credentials.

    Raises Misconfigured: no URL, a scheme that nobody knows, a driver that is not installed.
    """
    url = url or DEFAULT
    scheme = _scheme(url)
    rest = url[len(scheme) + 1 :]
    if "\0" in url or "\n" in url:
        raise Misconfigured("a control character in the URL of the files tier")
    if scheme == "origin":
        return _origin(rest, data_dir)
    if scheme == "file" and "::" not in url:
        return _file(rest)
    if scheme == "memory" and "::" not in url:
        from quine.files.memory import Memory

        return Memory(rest.removeprefix("//"))
    if not scheme:
        hint = (
            f"QUINE_FS=file://{os.path.abspath(url)}" if "/" in url else "origin:, file:///DIR, s3://BUCKET"
        )
        raise Misconfigured(f"the files tier needs a URL, and {url[:80]!r} has no scheme", hint)
    from quine.files.foreign import open_foreign

    return open_foreign(url, environ)


def _scheme(url: str) -> str:
    """What stands before the first colon, if it can be a scheme. Without `re`, which takes as long as all of ours."""
    before, colon, _ = url.partition(":")
    plain = before.replace("+", "a").replace(".", "a").replace("-", "a")
    return before.lower() if colon and plain.isascii() and plain.isalnum() and before[0].isalpha() else ""


def _origin(rest: str, data_dir: str) -> Tier:
    from quine.files.local import Local

    if rest.startswith("//"):
        raise Misconfigured("origin: is followed by a directory, as in origin:shared or origin:/srv/shared")
    return Local(rest or os.path.join(data_dir, DIRECTORY), f"origin:{rest}")


def _file(rest: str) -> Tier:
    """`file:///DIR`; what stands there is the name itself, without `%20` and the like."""
    from quine.files.local import Local

    path = rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest.removeprefix("//")
    if not path.startswith("/"):
        raise Misconfigured(
            "file: is followed by an absolute path, as in file:///mnt/shared",
            "origin:DIR takes a relative one",
        )
    return Local(path)

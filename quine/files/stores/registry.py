"""Opens the store of a URL, in a process at the origin or one that has its own access to the store.

Laws
1. A local store needs no library. The driver of another store is imported when a URL asks for it.
2. An invalid URL is reported before anything is opened, and never with the secrets in it.
3. `memory://NAME` is a local store in a filesystem in memory: all processes of the user on this machine share it, until
   it is removed, the machine reboots, or logind removes all shared memory of the user at logout. Its directory is
   refused unless it is the user's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quine.base.errors import Misconfigured
from quine.files import urls
from quine.files.api import Tier

DEFAULT = "origin:"
DIRECTORY = "fs"  # in the data directory
SHARED_MEMORY = "/dev/shm"  # a tmpfs, which Linux has and macOS has not


def open_store(url: str, environ: Mapping[str, str], data_dir: str) -> Tier:
    """Return the store of `url`; "" means `origin:`. Its root is not created; a local store contacts no other process.

    `environ` has the store's credentials. Raises Misconfigured: no valid URL, an unknown scheme, a missing driver,
    a directory of `memory:` that others may use.
    """
    url = url or DEFAULT
    scheme, place = urls.parsed(url)
    if scheme in ("origin", "file") and "::" not in url:
        from quine.files.stores.local.store import Local

        if scheme == "origin" and not place:
            from quine.files.stores.local.private import OfUser

            return OfUser(data_dir, DIRECTORY)
        root = urls.root(place)
        return Local(root, f"origin:{url.partition(':')[2]}" if scheme == "origin" else "")
    if scheme == "memory" and "::" not in url:
        from quine.files.stores.local.private import Private

        return Private(_in_memory(place), f"memory://{place}")
    from quine.files.stores.drivers import open_foreign

    return open_foreign(url, environ)


def _in_memory(name: str) -> str:
    """Return the directory of `memory://NAME`. Its parent is made at once, so that no other user can make it."""
    from transport import address
    from transport.errors import Refused

    base = SHARED_MEMORY
    if not os.access(base, os.W_OK):
        import tempfile

        base = tempfile.gettempdir()
    # The name differs from that of the runtime directory, which may be there, too.
    parent = f"{base}/quine-memory-{os.getuid()}"
    path, cure = f"{parent}/{name}", "name another store, such as file:///DIR"
    try:
        address.private_directory(parent, cure)
        if os.path.lexists(path):
            address.private_directory(path, cure)
    except Refused as error:
        raise Misconfigured(error.detail, error.hint) from None
    return path

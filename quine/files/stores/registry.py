"""Opens the store of a URL, in a process at the origin or one that has its own access to the store.

Laws
1. A local store needs no library. The driver of another store is imported when a URL asks for it.
2. An invalid URL is reported before anything is opened, and never with the secrets in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quine.files import urls
from quine.files.api import Tier

DEFAULT = "origin:"
DIRECTORY = "fs"  # in the data directory


def open_store(url: str, environ: Mapping[str, str], data_dir: str) -> Tier:
    """Return the store of `url`; "" means `origin:`. Nothing is created yet; a local store contacts no other process.

    `environ` has the store's credentials. Raises Misconfigured: no valid URL, an unknown scheme, a missing driver.
    """
    url = url or DEFAULT
    scheme, directory = urls.parsed(url)
    if scheme in ("origin", "file") and "::" not in url:
        from quine.files.stores.local.store import Local

        root = urls.root(directory or os.path.join(data_dir, DIRECTORY))
        return Local(root, f"origin:{url.partition(':')[2]}" if scheme == "origin" else "")
    if scheme == "memory" and "::" not in url:
        from quine.files.stores.memory import Memory

        return Memory(url.partition(":")[2].removeprefix("//"))
    from quine.files.stores.drivers import open_foreign

    return open_foreign(url, environ)

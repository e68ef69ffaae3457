"""From a URL to a tier: who is at the origin, or has access of his own, opens the store itself.

Laws
1. A local tier needs no library: what speaks to other stores is imported when a URL asks for it.
2. What is wrong with a URL is said before anything is opened, and never with the secrets in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quine.files import urls
from quine.files.api import Tier

DEFAULT = "origin:"
DIRECTORY = "fs"  # in the data directory


def open_store(url: str, environ: Mapping[str, str], data_dir: str) -> Tier:
    """The tier of a URL; nothing is made yet, and a local one asks nobody. `environ` has the store's credentials.

    Raises Misconfigured: no URL, a scheme that nobody knows, a driver that is not installed.
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

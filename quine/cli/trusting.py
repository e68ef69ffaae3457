"""`quine hosts trust [FILE]`: an inventory of the current directory is used from now on, as it is."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from quine.base.errors import OK, Misconfigured
from transport.text import harmless


def show_and_trust(words: list[str]) -> int:
    """Show the inventory, or what has changed in it since it was trusted, and trust it. Raises Misconfigured."""
    from deploy import trust
    from deploy.inventory import ConfigError, parsed
    from transport.provenance.safe_path import Unsafe

    if len(words) > 1:
        raise Misconfigured("hosts trust takes one file", "quine hosts trust [FILE]")
    path = os.path.abspath(words[0] if words else trust.NAME)
    try:
        data = trust.read(path)
        count = len(parsed(data, Path(path)).hosts)
    except FileNotFoundError:
        raise Misconfigured(f"{path}: no such inventory", "quine hosts trust FILE") from None
    except Unsafe as unsafe:
        raise Misconfigured(f"{path} is not read: {unsafe}", unsafe.hint) from None
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    except OSError as error:
        raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None
    before = trust.former(path)
    if before is None:
        print(_shown(data))
    elif before != data:
        print(
            *difflib.unified_diff(
                _shown(before).split("\n"), _shown(data).split("\n"), "trusted", path, lineterm=""
            ),
            sep="\n",
        )
    try:
        trust.trust(path, data)
    except OSError as error:
        raise Misconfigured(f"cannot keep it: {error.filename}: {(error.strerror or '').lower()}") from None
    print(f"trusted: {path}: {count} host{'s' * (count != 1)}")
    return OK


def _shown(data: bytes) -> str:
    """Return a text that hides nothing on a terminal."""
    return harmless(data.decode(errors="backslashreplace").rstrip("\n"), "\n\t")

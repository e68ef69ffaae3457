"""Paths of the tier as keys of an object store: a reversible escape, which leaves ordinary names as they are.

Laws
1. A key is valid UTF-8 without control characters and backslashes: such a byte of a name is `%XX` in its key. A `%` is
   escaped only if it would otherwise read as such an escape, so `50%.txt` stays as it is.
2. A key that encodes no name is left out of listings. Keys that begin with `ASIDE` are hidden by this.
3. Unicode is not normalised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ASIDE = "%51uine-aside/"  # an escaped `Q`, which needs no escape: no name encodes to this key

# Characters that XML 1.0 or a gateway cannot carry; SeaweedFS turns a backslash into a slash
UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\\\\\udc80-\udcff\ufffe\uffff]|%(?=[0-9A-F]{2})")
# Also those that a driver parses as part of a URL or strips: `?`, `#`, outer spaces of a name, a dot at its end
IN_URLS = re.compile(rf"{UNFIT.pattern}|[?#]|(?:^|(?<=/)) | (?=/|$)|\.(?=/|$)")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def key_of(path: str, unfit: re.Pattern[str] = UNFIT) -> str:
    """Return the key of a clean path."""
    return unfit.sub(_escape, path)


def path_of(key: str, unfit: re.Pattern[str] = UNFIT) -> str | None:
    """Return the path of a key; None if the key encodes no path."""
    if "\ufffd" not in key and "%" not in key:
        return key if key_of(key, unfit) == key else None
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), key.encode("utf-8", "surrogatepass"))
    path = raw.decode("utf-8", "surrogateescape")
    return path if key_of(path, unfit) == key and "\0" not in path else None


def path_below(key: str) -> str | None:
    """Return the path that a key, relative to a directory, encodes; None if it encodes none."""
    path = path_of(key.rstrip("/")) if not key.endswith("//") and not key.startswith("/") else None
    return path if path and "//" not in path else None


def depth(key: str) -> int:
    return key.count("/")


def folders_of(folder: str, keys: Iterable[str]) -> set[str]:
    """Return the prefixes, from `folder` down, that stand for the directories above `keys`.

    A gateway with real directories may have one of which it lists no object. To delete a key that does not exist is
    no error.
    """
    found = {folder}
    for key in keys:
        end = key.rfind("/", len(folder)) + 1
        while end > len(folder) and key[:end] not in found:
            found.add(key[:end])
            end = key.rfind("/", len(folder), end - 1) + 1
    return found


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))

"""Trust in an inventory that was found in the current directory: in this content at this path, by the user.

Laws
1. An inventory says which commands run on this machine (`command`, a proxy, `env`), and a repository may bring one. So
   one that was found is read only if the user has trusted it (`quine hosts trust`), as it is now.
2. The trusted content is kept in the user's state directory, so that an edit can be shown.
3. Standard library only, and little of it: every client looks.
"""

from __future__ import annotations

import os

from transport.address import state_directory
from transport.lean import Mapping, blake2b
from transport.provenance import safe_path

NAME = "inventory.toml"
MOST = 16 << 20  # bytes
CURE = "look at it, then: quine hosts trust; or name it with --inventory"


def found(environ: Mapping[str, str]) -> tuple[str, bytes, str]:
    """Return the path of ./inventory.toml, its content, and the reason not to use it.

    The path is "" if the file does not exist, the reason is "" if the user trusts it.
    """
    data = b""
    try:
        path = os.path.join(os.getcwd(), NAME)
        data = read(path)
    except FileNotFoundError:
        return "", data, ""
    except safe_path.Unsafe as unsafe:
        return path, data, str(unsafe)
    except OSError as error:
        return path, data, (error.strerror or str(error)).lower()
    before = former(path, environ)
    if before == data:
        return path, data, ""
    why = "it has changed since you trusted it" if before is not None else "you have not trusted it"
    return path, data, why


def read(path: str) -> bytes:
    """Return the content of an inventory that was found. Raises Unsafe, OSError."""
    with os.fdopen(safe_path.found(path), "rb") as file:
        return file.read(MOST)


def unread(path: str, why: str) -> tuple[str, str]:
    """Return the message that an inventory is not read, and the cure: that of `trust`, if it refuses the file, too."""
    hint = CURE
    try:
        read(path)
    except safe_path.Unsafe as unsafe:
        hint = unsafe.hint
    except OSError:
        pass
    return f"{path} is not read: {why}", hint


def former(path: str, environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return what the user has trusted at that path, if anything."""
    try:
        with os.fdopen(safe_path.named(_place(path, environ)), "rb") as file:
            named, _, data = file.read().partition(b"\0")
    except (OSError, safe_path.Unsafe):
        return None
    return data if named == os.fsencode(path) else None


def trust(path: str, data: bytes, environ: Mapping[str, str] = os.environ) -> None:
    """Keep what the user trusts. Raises OSError."""
    from transport import atomic

    place = _place(path, environ)
    os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
    atomic.write(place, os.fsencode(path) + b"\0" + data, 0o600, own=True)


def _place(path: str, environ: Mapping[str, str]) -> str:
    digest = blake2b(os.fsencode(path), digest_size=16).hexdigest()
    return os.path.join(state_directory(environ), "trusted", digest)

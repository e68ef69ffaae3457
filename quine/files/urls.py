"""URLs of the files tier: parsing `QUINE_FS`, and the form of it that other processes and machines get.

Laws
1. A relative directory is relative to the first process that reads it, which makes it absolute.
2. Another machine gets a URL only if it opens the store itself, and never with a password.
3. The process that starts with a URL reports errors in it, as far as they can be seen without a store.
"""

from __future__ import annotations

import os

from quine.base import data_directory, dirs
from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

VARIABLES = ("QUINE_FS", "QUINE_FS_QUOTA")
GONE = "gone:"  # in place of a URL: this job has outlived the origin that it could ask
NO_ORIGIN = "a command that was detached has no origin that it could ask for files"
GIVE_STORE = 'fs = "direct" in the inventory, or --env QUINE_FS=URL; a detached agent keeps its origin'
RESERVED = ".quine"  # directory at the root of the tier that holds the record of trees, and no user's files
OURS = ("origin", "memory", "gone")  # schemes of this machine alone, or of no store
KNOWN = {
    **dict.fromkeys(("s3", "s3a"), "s3://BUCKET/PREFIX"),
    **dict.fromkeys(("gs", "gcs"), "gs://BUCKET/PREFIX"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az://CONTAINER/PREFIX"),
    **dict.fromkeys(("sftp", "ssh"), "sftp://[USER@]HOST[:PORT]/DIRECTORY"),
}  # the form of the other schemes that are known without a library


def parsed(url: str) -> tuple[str, str]:
    """Return (scheme, absolute directory of `origin:DIR` or `file:`, name of `memory:`, else "") of a URL of the tier.

    Raises Misconfigured. It asks no store, so that an error can be reported at the start.
    """
    before, colon, rest = url.partition(":")
    plain = before.replace("+", "a").replace(".", "a").replace("-", "a")
    scheme = before.lower() if colon and plain.isascii() and plain.isalnum() and plain[0].isalpha() else ""
    if "\0" in url or "\n" in url:
        raise Misconfigured("a control character in the URL of the files tier")
    if not scheme:
        before, _, after = url.rpartition("@")
        url = after if ":" in before else url  # keep a password out of the message
        shown = os.path.join("/", url) if "/" in url else "/DIR"
        hint = f"origin:{url[:80]}, file://{shown[:80]}, s3://BUCKET/PREFIX"
        raise Misconfigured(f"the files tier needs a URL, and {url[:80]!r} has no scheme", hint)
    if scheme == "origin":
        if rest.startswith("//"):
            hint = f"origin:{rest.lstrip('/') or 'DIR'}, origin:/{rest.lstrip('/') or 'DIR'}"
            raise Misconfigured("origin: is followed by a directory, relative or from the root on", hint)
        return scheme, dirs.absolute(rest) if rest else ""
    if scheme == "file" and "::" not in url:
        path = (
            rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest.removeprefix("//")
        )
        if not path.startswith("/"):
            hint = "origin:DIR takes a relative one"
            raise Misconfigured("file: is followed by an absolute path, as in file:///mnt/shared", hint)
        return scheme, path
    if scheme == "memory" and "::" not in url:
        name = rest.removeprefix("//") or "default"
        if "/" in name or name in (".", ".."):
            raise Misconfigured("memory: is followed by one name", "memory://NAME")
        return scheme, name
    if scheme not in OURS:
        _foreign(url)
    return scheme, ""


def root(directory: str) -> str:
    """Return `directory` if it can be the root of a tier: a directory, or nothing yet. Raises Misconfigured."""
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise Misconfigured(f"the files tier needs a directory, and {directory} is none", "see QUINE_FS")
    return directory


def _foreign(url: str) -> None:
    """Check that each chained scheme is known and followed by a place. Libraries are asked only for unknown ones."""
    from quine.files.credentials import is_query

    for part in url.split("::"):
        scheme, colon, rest = part.partition(":")
        if scheme.lower() not in KNOWN:
            from quine.files.stores.drivers import speaks

            speaks(scheme.lower())
        # A password can be found, and hidden, only behind //.
        if colon and not rest.startswith("//") and (scheme.lower() in KNOWN or "@" in rest):
            hint = KNOWN.get(scheme.lower(), f"{scheme[:80]}://[USER@]HOST/DIRECTORY")
            raise Misconfigured(f"{scheme[:80]}: is followed by //", hint)
        if scheme.lower() in KNOWN and is_query(rest):
            raise Misconfigured(
                f"a URL of {scheme[:80]}:// takes no query", "keys belong into QUINE_FS_OPTIONS"
            )


def absolute(url: str) -> str:
    """Make the directory of `origin:DIR` absolute; any other URL stays. Raises Misconfigured if it is no URL.

    The scheme of a store of this machine is written in small letters from here on.
    """
    scheme, directory = parsed(url)
    if scheme == "memory" and "::" not in url:
        return f"memory://{directory}"
    # `file:` is not checked: a mount that hangs must block only the processes that use it.
    return f"origin:{directory and root(directory)}" if scheme == "origin" else url


def settle(environ: MutableMapping[str, str]) -> None:
    """Make the directories in `environ` absolute, so that the tier stays the same after a chdir.

    An invalid URL stays as it is; opening it reports the error.
    """
    environ["QUINE_DATA_DIR"] = data_directory.path(environ)
    if url := environ.get("QUINE_FS"):
        try:
            environ["QUINE_FS"] = absolute(url)
        except Misconfigured:
            pass


def shareable(url: str, environ: Mapping[str, str]) -> str | None:
    """The URL for a host with its own access to the store, without secrets; None if the host has to ask the origin.

    It has to ask if there is a quota: nothing would count the bytes that it writes.
    """
    scheme = url.partition(":")[0].lower()
    if not url or environ.get("QUINE_FS_QUOTA") or scheme in OURS:
        return None
    from quine.files import credentials

    return credentials.shown(url)

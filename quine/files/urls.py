"""Where the files tier is, as text: what of `QUINE_FS` is passed on, and to whom.

Laws
1. A relative directory is one of the process that read it first, and is made absolute there.
2. Another machine is told a URL only where it opens the store itself, and never a password in it.
3. What is wrong with a URL is said by who starts with it, as far as that can be seen without a store.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

VARIABLES = ("QUINE_FS", "QUINE_FS_QUOTA")
GONE = "gone:"  # in place of a URL: there was an origin to ask, and this job has outlived it
NO_ORIGIN = "a command that was detached has no origin that it could ask for files"
GIVE_STORE = 'fs = "direct" in the inventory, or --env QUINE_FS=URL; a detached agent keeps its origin'
RESERVED = ".quine"  # at the root of the tier: what is kept there is the record of trees, and nobody's file
OURS = ("origin", "memory", "gone")  # of this machine or this process alone
KNOWN = {
    **dict.fromkeys(("s3", "s3a"), "s3://BUCKET/PREFIX"),
    **dict.fromkeys(("gs", "gcs"), "gs://BUCKET/PREFIX"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az://CONTAINER/PREFIX"),
    **dict.fromkeys(("sftp", "ssh"), "sftp://[USER@]HOST[:PORT]/DIRECTORY"),
}  # how the others of which we know without a library are written


def parsed(url: str) -> tuple[str, str]:
    """(scheme, for `origin:DIR` and `file:` the directory from the root on), of a URL that can be one of a tier.

    Raises Misconfigured. No store is asked, so that whoever starts with it can be told.
    """
    before, colon, rest = url.partition(":")
    plain = before.replace("+", "a").replace(".", "a").replace("-", "a")
    scheme = before.lower() if colon and plain.isascii() and plain.isalnum() and plain[0].isalpha() else ""
    if "\0" in url or "\n" in url:
        raise Misconfigured("a control character in the URL of the files tier")
    if not scheme:
        before, _, after = url.rpartition("@")
        url = after if ":" in before else url  # there is a password, of which no message tells
        shown = os.path.join("/", url) if "/" in url else "/DIR"
        hint = f"origin:{url[:80]}, file://{shown[:80]}, s3://BUCKET/PREFIX"
        raise Misconfigured(f"the files tier needs a URL, and {url[:80]!r} has no scheme", hint)
    if scheme == "origin":
        if rest.startswith("//"):
            hint = f"origin:{rest.lstrip('/') or 'DIR'}, origin:/{rest.lstrip('/') or 'DIR'}"
            raise Misconfigured("origin: is followed by a directory, relative or from the root on", hint)
        return scheme, _from_here(rest) if rest else ""
    if scheme == "file" and "::" not in url:
        path = (
            rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest.removeprefix("//")
        )
        if not path.startswith("/"):
            hint = "origin:DIR takes a relative one"
            raise Misconfigured("file: is followed by an absolute path, as in file:///mnt/shared", hint)
        return scheme, path
    if scheme not in OURS:
        _foreign(url)
    return scheme, ""


def root(directory: str) -> str:
    """The same, if it can be the root of a tier: a directory, or nothing yet. Misconfigured."""
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise Misconfigured(f"the files tier needs a directory, and {directory} is none", "see QUINE_FS")
    return directory


def _foreign(url: str) -> None:
    """Of each scheme: known, and followed by a place. Libraries are asked only for what we have not heard of."""
    from quine.files.credentials import is_query

    for part in url.split("::"):
        scheme, colon, rest = part.partition(":")
        if scheme.lower() not in KNOWN:
            from quine.files.stores.drivers import speaks

            speaks(scheme.lower())
        # where a password would stand is known only behind //
        if colon and not rest.startswith("//") and (scheme.lower() in KNOWN or "@" in rest):
            hint = KNOWN.get(scheme.lower(), f"{scheme[:80]}://[USER@]HOST/DIRECTORY")
            raise Misconfigured(f"{scheme[:80]}: is followed by //", hint)
        if scheme.lower() in KNOWN and is_query(rest):
            raise Misconfigured(
                f"a URL of {scheme[:80]}:// takes no query", "keys belong into QUINE_FS_OPTIONS"
            )


def absolute(url: str) -> str:
    """`origin:DIR` with the directory from the root on; any other URL as it is. Misconfigured where it is none."""
    scheme, directory = parsed(url)
    # of a mount nothing is asked here: one that hangs is felt by nobody but who uses it
    return f"origin:{directory and root(directory)}" if scheme == "origin" else url


def settle(environ: MutableMapping[str, str]) -> None:
    """For who is about to leave the directory that he was started in: the tier stays where it is.

    A URL that is none is left as it is: who opens it says so.
    """
    environ["QUINE_DATA_DIR"] = _from_here(environ.get("QUINE_DATA_DIR") or ".quine")
    if url := environ.get("QUINE_FS"):
        try:
            environ["QUINE_FS"] = absolute(url)
        except Misconfigured:
            pass


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

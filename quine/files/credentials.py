"""What opens a store: names of the variables that hold its keys, and a URL without what it should not show.

Laws
1. The keys of a store are masked and taken out of environments as the keys of guests are; those of the store that the
   tree uses are kept for the origin's own processes, in the sealed memo, and the others are not kept at all.
2. A URL is shown without its password and without its query, whatever scheme it has and however many it chains.
"""

from __future__ import annotations

from transport.job import inherit
from transport.wire import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

URL, OPTIONS = "QUINE_FS", "QUINE_FS_OPTIONS"

_FAMILIES = {
    "AWS_": ("s3", "s3a"),
    "GOOGLE_": ("gs", "gcs"),
    "GCS_": ("gs", "gcs"),
    "AZURE_": ("az", "abfs", "abfss", "adl"),
}


_WITH_NAMES = ("s3", "gs", "az", "sftp", "ssh", "memory")  # those in whose paths a `?` is one of a name


def is_query(path: str) -> bool:
    """Does a path end with what looks like a query, as a signature that was pasted with its URL?"""
    return "=" in path.partition("?")[2]


def schemes(url: str) -> list[str]:
    """Of a URL, and of those that it chains."""
    return [part.partition(":")[0].lower() for part in url.split("::") if part]


def shown(url: str) -> str:
    """As people and other machines may see it."""
    return "::".join(_shown(part) for part in url.split("::"))


def _shown(url: str) -> str:
    head, mark, rest = url.partition("://")
    if not mark or head in ("file", "origin", "local"):
        return url
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    if at:
        place = f"{user.partition(':')[0]}@{host}" if user.partition(":")[0] else host
    if head not in _WITH_NAMES or is_query(path):
        path = path.partition("?")[0]
    return f"{head}://{place}{slash}{path}"


def kept(url: str, removed: Mapping[str, str]) -> dict[str, str]:
    """Of the secrets that were taken out of an environment: those that open the store of this URL."""
    used = {prefix for prefix, known in _FAMILIES.items() if not set(known).isdisjoint(schemes(url))}
    mine = {name: value for name, value in removed.items() if name == OPTIONS or name.startswith(tuple(used))}
    return mine | ({URL: url} if shown(url) != url else {})


def secrets_of(url: str, options: str) -> list[str]:
    """What the URL and the options of drivers hold that no tape may."""
    places = [part.partition("://")[2].partition("/")[0] for part in url.split("::")]
    found = [place.rpartition("@")[0].partition(":")[2] for place in places]
    for query in [part.partition("?")[2] for part in url.split("::")]:
        found += [
            query,
            *(value for field in query.split("&") if len(value := field.partition("=")[2]) >= 16),
        ]
    try:
        _leaves(quickjson.loads(options) if options else {}, "", found)
    except ValueError:
        found.append(options)
    return [secret for secret in found if secret]


def _leaves(value: object, name: str, found: list[str]) -> None:
    """The texts in a JSON value whose names say that they are secret."""
    if isinstance(value, dict):
        for key, each in value.items():
            _leaves(each, str(key), found)
    elif isinstance(value, list):
        for each in value:
            _leaves(each, name, found)
    elif isinstance(value, str) and (inherit.is_secret(name.upper()) or "secret" in name.lower()):
        found.append(value)


def completed(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment with the keys that were taken out of it, where a memo was inherited that has them."""
    memo = inherit.read(environ).get("environ")
    known = memo if isinstance(memo, dict) else {}
    whole = dict(environ)
    for name, value in known.items():
        ours = name == OPTIONS or str(name).startswith(tuple(_FAMILIES))
        if ours or (name == URL and environ.get(URL) == shown(str(value))):
            whole[str(name)] = str(value)
    return whole

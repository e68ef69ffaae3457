"""Credentials of stores: the variables that hold their keys, and URLs without their secrets.

Laws
1. The keys of a store are masked and taken out of environments as the keys of providers are. Those of the tree's store
   are kept in the sealed memo, for the origin's own processes; the others are not kept at all.
2. A URL is shown without its password and without its query, whatever its scheme and however many URLs it chains.
"""

from __future__ import annotations

from transport import inherit, quickjson

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


_WITH_NAMES = (
    "s3",
    "gs",
    "az",
    "sftp",
    "ssh",
    "memory",
)  # schemes in whose paths a `?` may be part of a name


def is_query(path: str) -> bool:
    """Return whether a path ends in a query, such as a signature that was pasted with its URL."""
    return "=" in path.partition("?")[2]


def schemes(url: str) -> list[str]:
    """The schemes of a URL and of those that it chains, in lower case."""
    return [part.partition(":")[0].lower() for part in url.split("::") if part]


def shown(url: str) -> str:
    """The URL without its secrets, for people and other machines."""
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
    """Of the secrets removed from an environment, the ones that open the store of this URL."""
    used = {prefix for prefix, known in _FAMILIES.items() if not set(known).isdisjoint(schemes(url))}
    mine = {name: value for name, value in removed.items() if name == OPTIONS or name.startswith(tuple(used))}
    return mine | ({URL: url} if shown(url) != url else {})


def secrets_of(url: str, options: str) -> list[str]:
    """The secrets in a URL and in the JSON of driver options, for masking in tapes."""
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
    """Append to `found` the strings of a JSON value whose names mark them as secret."""
    if isinstance(value, dict):
        for key, each in value.items():
            _leaves(each, str(key), found)
    elif isinstance(value, list):
        for each in value:
            _leaves(each, name, found)
    elif isinstance(value, str) and (inherit.is_secret(name.upper()) or "secret" in name.lower()):
        found.append(value)


def completed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` plus the store keys that were taken out of it, if an inherited memo holds them."""
    memo = inherit.read(environ).get("environ")
    known = memo if isinstance(memo, dict) else {}
    whole = dict(environ)
    for name, value in known.items():
        ours = name == OPTIONS or str(name).startswith(tuple(_FAMILIES))
        if ours or (name == URL and environ.get(URL) == shown(str(value))):
            whole[str(name)] = str(value)
    return whole

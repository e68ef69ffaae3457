"""The credentials of a broker, the name that they give it, and the addresses to which each key may go.

Laws
1. A set of credentials is the keys and all that decides where they go: addresses, proxies, certificates, prices. Two
   sets have two brokers.
2. A key goes to an address that the environment of the broker's maker named, or to the vendor's own host. A client can
   choose a model and an address; for any other address it has no key.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured, NoGuest
from quine.budget import prices
from quine.providers.choice import BASES, KEYS, choose
from quine.providers.vendors import FILES, VENDORS, Config
from transport import quickjson
from transport.address import boot_id
from transport.lean import blake2b
from transport.this_build import build_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FILE, COMMAND = "QUINE_API_KEY_FILE", "QUINE_API_KEY_COMMAND"
GUEST = ("QUINE_API_TYPE", "QUINE_MODEL_ID", *BASES)  # variables that a client sends
_WAY = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
WAYS = (*_WAY, *map(str.upper, _WAY), "SSL_CERT_FILE", "SSL_CERT_DIR")
_PLACES = ("HOME", "XDG_CONFIG_HOME", prices.VARIABLE)


def is_elsewhere(environ: Mapping[str, str]) -> bool:
    """Return whether the guest is a server, as far as the variables say: not a script, a program or a tape."""
    return environ.get("QUINE_API_TYPE", "") not in FILES


def sources(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a file or a command that gives the key."""
    return any(environ.get(name) for name in (FILE, COMMAND))


def secret(environ: Mapping[str, str], keys: Mapping[str, str]) -> bytes:
    """Return the bytes that only the holders of this set know, as far as it has a key."""
    names = (*BASES, *WAYS, *_PLACES, FILE, COMMAND)
    named = {name: environ[name] for name in names if environ.get(name)}
    facts = [named, {name: keys[name] for name in KEYS if keys.get(name)}, _stamp(environ)]
    return bytes(blake2b(quickjson.dumps(facts).encode(), digest_size=32, person=b"quine-proof").digest())


def name_of(key: bytes) -> str:
    """Return the name of the broker's socket for `secret`, which it does not tell."""
    text = f"{build_hash()} {boot_id()} {os.getuid()}".encode()
    return str(blake2b(text, key=key, digest_size=12, person=b"quine-name").hexdigest())


def _stamp(environ: Mapping[str, str]) -> list[int]:
    """Return facts that change with the file of prices, which a broker reads once."""
    try:
        facts = os.stat(prices.path(environ))
    except OSError:
        return []
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns]


class Credentials:
    """The keys that a broker holds, and the environment of the process that made it."""

    def __init__(self, environ: Mapping[str, str], keys: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._keys = {name: keys[name] for name in KEYS if keys.get(name)}

    def config(self, asked: Mapping[str, str], given: str = "") -> Config:
        """Return how to reach the guest that a client asks for. `given` is the key of a file or a command.

        Raises Misconfigured or NoGuest.
        """
        keys = self._with(given)
        known = {name: asked[name] for name in GUEST if asked.get(name)}
        if not known.keys() - {"QUINE_MODEL_ID"}:  # as below `env -i`: the guest is that of the maker
            known = {name: self._environ[name] for name in GUEST if self._environ.get(name)} | known
        found = choose({**known, **keys})
        if found.kind in FILES:
            raise Misconfigured("a broker serves no guest of files")
        if found.key and (found.key, _place(found.base)) not in self._allowed(keys):
            return found._replace(key="")
        return found

    @property
    def are_of_a_command(self) -> bool:
        """Whether only a command gives the key: any process can prove such keys, though the command may ask a person.

        Where there is no key, or a file has it, any process of the user has as much as the broker.
        """
        return not self._keys and not self._environ.get(FILE) and bool(self._environ.get(COMMAND))

    @property
    def names(self) -> list[str]:
        """The variables that gave the keys, or say where the key is."""
        return [*self._keys, *(name for name in (FILE, COMMAND) if self._environ.get(name))]

    def name_of(self, key: str) -> str:
        """Return the variable that gave a key; "" for no key."""
        named = [name for name, value in self._keys.items() if value == key]
        return (named or self.names)[0] if key else ""

    @property
    def keys(self) -> list[str]:
        return list(self._keys.values())

    def _with(self, given: str) -> dict[str, str]:
        keys = dict(self._keys)
        if given and "QUINE_API_KEY" not in keys:
            keys["QUINE_API_KEY"] = given
        return keys

    def _allowed(self, keys: Mapping[str, str]) -> set[tuple[str, str]]:
        """Return the pairs of a key and an address to which the maker's environment sends it."""
        own = self._environ
        pairs = {
            (keys[name], _place(base))
            for vendor in VENDORS
            for name in vendor.keys
            if keys.get(name)
            for base in (vendor.base, *(own.get(variable, "") for variable in vendor.bases))
            if base
        }
        known = {name: own[name] for name in GUEST if own.get(name)} | {"QUINE_MODEL_ID": "any"}
        for kind in {own.get("QUINE_API_TYPE", ""), ""}:
            try:
                found = choose({**known, **keys, "QUINE_API_TYPE": kind})
            except (Misconfigured, NoGuest):
                continue
            if found.key:
                pairs.add((found.key, _place(found.base)))
        return pairs


def _place(base: str) -> str:
    return base.rstrip("/")

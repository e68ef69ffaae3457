"""Stores that are reached through a library: the choice by URL, and how each is opened.

Laws
1. A driver is imported when its URL is opened. A missing driver is an error that names the extra to install.
2. Options of a driver come from QUINE_FS_OPTIONS, which holds keys and is treated as a secret; a URL carries none.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.there import layers as layer_host
from quine.base.errors import Misconfigured
from quine.files import credentials, paths
from quine.files.api import Tier
from transport.carrier.dialer import SshTarget

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(?::([0-9]{1,5}))?")
UNSAFE = "unsafe"  # our own option: write to a store that does not replace a file in one step

EXTRAS = {scheme: name for scheme, name in layer_host.NAMES.items() if name != "sftp"}  # asyncssh is no extra

# Variables that drivers read from their process environment, and the option for each: the keys were removed from there.
_AZURE = {
    f"AZURE_STORAGE_{name.upper()}": name
    for name in (
        *("connection_string", "account_name", "account_key", "sas_token"),
        *("client_id", "client_secret", "tenant_id"),
    )
}
_AZURE_KEYS = {"connection_string", "account_key", "sas_token", "client_secret"}
AZURE = ("az", "abfs", "abfss")
_GOOGLE = {"GOOGLE_APPLICATION_CREDENTIALS": "token"}  # a file name
VARIABLES = {
    **dict.fromkeys(AZURE, _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
}


def open_foreign(url: str, environ: Mapping[str, str]) -> Tier:
    """Return the store of a URL that is not local. Raises Misconfigured."""
    layer_host.use(url)
    whole = credentials.completed(environ)
    if whole.get(credentials.URL) and credentials.shown(whole[credentials.URL]) == url:
        url = whole[credentials.URL]
    options = _options(whole)
    unsafe = options.pop(UNSAFE, False)
    if not isinstance(unsafe, bool):
        raise Misconfigured(f"{UNSAFE} in {credentials.OPTIONS} must be true or false")
    scheme = credentials.schemes(url)[0]
    if "::" not in url and scheme in ("s3", "s3a"):
        return _s3(url, whole, options, unsafe)
    if "::" not in url and scheme in ("sftp", "ssh"):
        return _sftp(url, whole, options)
    return _generic(url, whole, options, unsafe)


def speaks(scheme: str) -> None:
    """Raise Misconfigured for an unknown scheme. Without fsspec nothing is raised: `open_foreign` does it."""
    try:
        from fsspec import available_protocols  # type: ignore[import-untyped]
    except ImportError:
        return
    if scheme not in available_protocols():
        from difflib import get_close_matches

        near = get_close_matches(scheme, ["origin", "file", "memory", *EXTRAS, "sftp"], 1)
        hint = f"did you mean {near[0]}:? " if near else ""
        hint += "origin:, file:///DIR, memory://NAME, s3://, gs://, az://, sftp://, or what fsspec knows"
        raise Misconfigured(f"nothing here speaks {scheme[:80]}: for the files tier", hint)


def _options(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(credentials.OPTIONS, "")
    try:
        options = json.loads(text) if text else {}
    except ValueError:
        options = None
    if not isinstance(options, dict):
        hint = """QUINE_FS_OPTIONS='{"endpoint_url": "https://…"}'"""
        raise Misconfigured(f"{credentials.OPTIONS} must be a JSON object", hint)
    return options


def _s3(url: str, environ: Mapping[str, str], options: dict[str, Any], unsafe: bool) -> Tier:
    from quine.files.stores.object.client import Bucket
    from quine.files.stores.object.store import ObjectTier

    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not _BUCKET.fullmatch(bucket):
        hint = "s3://BUCKET/PREFIX; keys belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise Misconfigured(f"no name of a bucket in {credentials.shown(url)[:80]}", hint)
    opened = Bucket(bucket, environ, options)
    opened.driver()
    return ObjectTier(credentials.shown(url).rstrip("/"), opened, inside(prefix), unsafe)


def _sftp(url: str, environ: Mapping[str, str], options: dict[str, Any]) -> Tier:
    """Open a store on an sshd. Options: identity, jump (another [USER@]HOST[:PORT]), as in the inventory."""
    from quine.files.stores.sftp.store import SftpTier

    place, _, path = url.partition("://")[2].partition("/")
    if ":" in place.rpartition("@")[0]:
        hint = "keys: the ssh agent, ~/.ssh/config, or identity in QUINE_FS_OPTIONS"
        raise Misconfigured("sftp:// takes no password", hint)
    target = _target(place, environ)
    jump, identity = options.pop("jump", None), options.pop("identity", None)
    if options or not all(isinstance(value, (str, type(None))) for value in (jump, identity)):
        raise Misconfigured("options of sftp:// are identity and jump", "see QUINE_FS_OPTIONS")
    target = replace(target, identity=identity, jump=_target(jump, environ) if jump else None)
    root = "~" if path in ("", "~") else path if path.startswith("~/") else f"/{path}"
    inside(root)
    return SftpTier(credentials.shown(url).rstrip("/"), target, root)


def _generic(url: str, environ: Mapping[str, str], options: dict[str, Any], unsafe: bool) -> Tier:
    """Open a store through fsspec. `options` are the driver's; in a chain of drivers, a dict under each one's name."""
    chain = credentials.schemes(url)
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        raise Misconfigured(f"{chain[0]}:// needs fsspec", "pip install fsspec") from None
    # Otherwise Google's driver asks by gRPC for the kind of the bucket, for a minute, whatever the endpoint is.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    for scheme in chain:
        try:
            driver = get_filesystem_class(scheme)
            # A driver's log messages and tracebacks reach us as errors. A program that set up logging still gets them.
            logging.getLogger(driver.__module__.partition(".")[0]).addHandler(logging.NullHandler())
        except ImportError as error:
            from deploy.install import with_extra

            extra = EXTRAS.get(scheme)
            hint = with_extra(extra) if extra else "install the package that fsspec names for it"
            raise Misconfigured(f"{scheme}:// needs a driver that is not installed: {error}", hint) from None
        except ValueError as error:
            raise Misconfigured(f"{scheme}:// cannot be opened: {error}") from None
    if len(chain) == 1:
        if chain[0] in EXTRAS and not url.partition("://")[2].partition("/")[0]:
            detail = f"no name of a bucket or container in {credentials.shown(url)[:80]}"
            raise Misconfigured(detail, f"{chain[0]}://NAME/PREFIX")
        options = _of_driver(chain[0], environ, options)
    else:
        each = {scheme: options.get(scheme) for scheme in chain}
        options = {
            name: _of_driver(name, environ, of if isinstance(of, dict) else {}) for name, of in each.items()
        }
    from quine.files.stores.fsspec_io import about
    from quine.files.stores.fsspec_store import Generic

    protocol = next(scheme for scheme in chain if scheme != "dir")
    try:
        return Generic(url, protocol, options, credentials.shown(url).rstrip("/"), unsafe)
    except (TypeError, ValueError) as error:
        detail = (
            f"{chain[0]}:// cannot be opened with the keys and options that there are: {type(error).__name__}"
        )
        keys = ", ".join((*VARIABLES.get(chain[-1], {}), credentials.OPTIONS))
        raise Misconfigured(detail, f"see {keys}") from None
    except Exception:  # some drivers connect at once
        with about(credentials.shown(url)):
            raise


def _of_driver(scheme: str, environ: Mapping[str, str], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of one driver. Outside fsspec's instance cache, it closes with its last reference."""
    if scheme in ("s3", "s3a"):
        from quine.files.stores.object.client import settings

        return settings(environ, options)
    known: dict[str, Any] = {
        option: environ[name] for name, option in VARIABLES.get(scheme, {}).items() if environ.get(name)
    }
    if scheme in AZURE and environ.get("AZURE_FEDERATED_TOKEN_FILE") and not known.keys() & _AZURE_KEYS:
        # The role of a machine: the driver's library finds it alone, unless client_id or tenant_id is passed.
        known = {name: value for name, value in known.items() if name not in ("client_id", "tenant_id")}
        known["anon"] = False
    return {**known, **options, "skip_instance_cache": True}


def _target(place: str, environ: Mapping[str, str]) -> SshTarget:
    user, _, rest = place.rpartition("@")
    found = _HOST.fullmatch(rest)
    if found is None or user.startswith("-"):
        raise Misconfigured(f"no host in {rest[:80]!r}", "sftp://[USER@]HOST[:PORT]/DIRECTORY")
    host, port = found[1].strip("[]"), int(found[2]) if found[2] else None
    return SshTarget(host, host, user or None, port, agent=environ.get("SSH_AUTH_SOCK"))


def inside(prefix: str) -> str:
    """Return `prefix` as a clean path, the root of the tier in its store. Raises Misconfigured."""
    try:
        return paths.clean(prefix)
    except OSError as error:
        raise Misconfigured(f"no root of a tier: {prefix[:80]!r}: {error.strerror}") from None

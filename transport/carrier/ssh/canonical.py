"""CanonicalizeHostname of ~/.ssh/config: a short name becomes the full one of a domain that has it."""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Callable


def of(name: str, get: Callable[[str], str], words: Callable[[str], list[str]]) -> str:
    """Return the canonical name; "" where nothing is to be made canonical. Raises ValueError."""
    wanted = get("canonicalizehostname").lower()
    proxied = any(get(option).lower() not in ("", "none") for option in ("proxyjump", "proxycommand"))
    if wanted not in ("yes", "true", "always") or (proxied and wanted != "always"):
        return ""
    if _is_address(name) or name.count(".") > int(get("canonicalizemaxdots") or 1):
        return name
    if name.endswith("."):
        return name.rstrip(".")
    for domain in words("canonicaldomains"):
        full = f"{name}.{domain.strip('.')}"
        alias = _lookup(full)
        if alias:
            permitted = words("canonicalizepermittedcnames")
            return alias if alias != full and _permitted(full, alias, permitted) else full
    if get("canonicalizefallbacklocal").lower() in ("no", "false"):
        domains = " ".join(words("canonicaldomains"))
        raise ValueError(
            f"{name} is in none of CanonicalDomains {domains}, and CanonicalizeFallbackLocal is no"
        )
    return name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _lookup(name: str) -> str:
    """Return the name that the resolver gives for `name`, itself unless it is an alias; "" for an unknown one."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    except (socket.gaierror, UnicodeError):
        return ""
    return (found[0][3] or name).lower().rstrip(".")


def _permitted(name: str, alias: str, rules: list[str]) -> bool:
    for rule in rules:
        sources, colon, targets = rule.partition(":")
        if colon and _any(name, sources) and _any(alias, targets):
            return True
    return False


def _any(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for pattern in patterns.split(","))

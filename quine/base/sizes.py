"""Sizes as people write them: `500M`, `2G`, in powers of 1024."""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def parse(text: str, name: str) -> int:
    """Return a size in bytes. Raises Misconfigured, which mentions `name`."""
    from transport import rlimits

    try:
        return rlimits.size(text)
    except ValueError:
        raise Misconfigured(f"{name} must be a size as 500M or 2G, not {text[:80]}") from None


def of(environ: Mapping[str, str], name: str) -> int:
    """Return the size in a variable in bytes; 0 if it is unset or empty."""
    return parse(environ[name], name) if environ.get(name) else 0

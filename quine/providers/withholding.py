"""Secrets among the variables of an agent: taken out of what its commands get, by name or by a password in the value.

Laws
1. The user's `--env NAME` passes one to the commands of the agent and of those below it, on other machines too. The key
   of a guest is passed to none.
2. An address of a guest stays, also with a password in it: a nested agent would ask another server without it.
3. The proxies stay on the machine where the user has set them.
"""

from __future__ import annotations

from quine.providers.choice import BASES, KEYS
from transport import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping

PASSED = "QUINE_ENV_PASSED"  # names of the variables of law 1
WITHHELD = "withheld"  # in the memo: names of the variables that were taken out


def passed_on(given: Iterable[str]) -> dict[str, str]:
    """Return the variable that tells an agent the names of --env; {} for none. `given` are the words of the option."""
    names = [text.partition("=")[0] for text in given]
    return {PASSED: ",".join(names)} if names else {}


def passed(given: Iterable[str], environ: MutableMapping[str, str]) -> set[str]:
    """Return the names that --env has given here or above, and keep them for the agents below."""
    names = {*environ.get(PASSED, "").split(","), *(text.partition("=")[0] for text in given)} - {"", *KEYS}
    if names:
        environ[PASSED] = ",".join(sorted(names))
    return names


def taken_out(environ: MutableMapping[str, str], passed: set[str]) -> dict[str, str]:
    """Remove the secrets from an environment, and return them."""
    return {name: environ.pop(name) for name in [*environ] if _is_withheld(name, environ[name], passed)}


def told(removed: Mapping[str, str], passed: set[str], *before: object) -> tuple[str, ...]:
    """Return the names that a guest is told. `before`: as memos have them, of the agent above and of this process."""
    above = [name for names in before if isinstance(names, list) for name in names if isinstance(name, str)]
    return tuple(sorted({*above, *removed} - passed - {*KEYS}))


def _is_withheld(name: str, value: str, passed: set[str]) -> bool:
    if name in BASES or name.startswith("QUINE_"):
        return inherit.is_secret(name)
    return name not in passed and inherit.withholds(name, value, here=True)

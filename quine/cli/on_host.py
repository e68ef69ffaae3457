"""The verbs of app.py that are of use on a host, where there is no typer and no inventory can be read.

Law: a form that is known here does the same as there; any other one is refused in a sentence.
"""

from __future__ import annotations

import os
from pathlib import Path

from quine.base.errors import OK, Misconfigured

STATUS = (["--status"], ["--json", "--status"])
STOP = (["--stop"], ["--force", "--stop"])


def main(words: list[str]) -> int:
    verb, *rest = words
    if verb == "hosts":
        if rest not in ([], ["--json"]):
            raise Misconfigured("hosts are chosen and checked where the inventory is", "quine hosts")
        return _hosts(bool(rest))
    if verb == "node" and (rest == ["--resume"] or sorted(rest) in (*STATUS, *STOP)):
        return _node(rest)
    if (
        verb == "deploy"
        and rest[:1] == ["build"]
        and (len(rest) == 1 or (len(rest) == 3 and rest[1] == "-o"))
    ):
        return _build(Path(rest[2]) if len(rest) == 3 else None)
    known = "quine hosts [--json], quine node --status [--json]|--stop [--force]|--resume, quine deploy build [-o FILE]"
    raise Misconfigured(
        f"not on a host: quine {' '.join(words)}", f"here: {known}; all else where quine was installed"
    )


def _hosts(as_json: bool) -> int:
    from deploy.paths import find
    from quine.base.allowed_hosts import asks_origin, from_origin
    from quine.cli.visits import reachable
    from transport import inherit

    if not asks_origin(False, find(os.environ).path, inherit.read()):
        raise Misconfigured(
            "no origin to ask: this is not a job of one", "quine hosts, where quine was installed"
        )
    print(reachable(from_origin(), as_json), end="")
    return OK


def _node(words: list[str]) -> int:
    from quine.cli.node import status

    if "--status" in words:
        return status.show("--json" in words)
    return status.stop("--force" in words) if "--stop" in words else status.resume()


def _build(output: Path | None) -> int:
    from deploy.build import build

    print("\n".join(build(output).lines()))
    return OK

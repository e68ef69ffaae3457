"""The modules that a whole process imports."""

from __future__ import annotations

from tests.lab import Lab

HEAVY = {"asyncssh", "httpx", "typer", "fsspec", "pydantic", "pex", "rich"}
BLOCKING = HEAVY | {"asyncio", "argparse"}  # and 50 ms for asyncio: too dear for a command called in loops


def imported_by(lab: Lab, *args: str, env: dict[str, str] | None = None) -> set[str]:
    """Top-level names that a whole `quine` process imported, from -X importtime."""
    done = lab.run(args, env={"PYTHONPROFILEIMPORTTIME": "1", **(env or {})})
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    assert lines, "python did not say what it imported"
    return {line.rpartition("|")[2].strip().split(".")[0] for line in lines}

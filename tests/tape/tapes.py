"""Tapes as the tests read them."""

from __future__ import annotations

from typing import Any

from quine.tape import lines


def read(path: str) -> list[dict[str, Any]]:
    return [entry for _, entry in lines.entries(path)]

"""A finding of a check, and its form: lines for people, or JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

from quine.base.errors import FAILED, OK
from transport import quickjson


class Finding(NamedTuple):
    """`facts` are for programs, beside what the detail says to people."""

    state: str  # ok, warn, fail
    subject: str
    detail: str
    cure: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed in place


def show(findings: list[Finding], as_json: bool) -> int:
    """Print the findings; return the exit status."""
    for finding in findings:
        if as_json:
            print(quickjson.dumps({**finding._asdict(), "facts": finding.facts}))
            continue
        print(f"{finding.state:4}  {finding.subject:10}  {finding.detail}")
        if finding.cure:
            print(f"{'':18}{finding.cure}")
    return FAILED if any(finding.state == "fail" for finding in findings) else OK

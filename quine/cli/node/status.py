"""`quine node --status`: the node of this machine, and the brokers of this user with their gates; and `--resume`.

Laws
1. The text is for people, and fits what a terminal shows; with --json every fact is there.
2. Models and addresses come from clients: nothing of them reaches a terminal as control characters.
3. No node is exit 1, also where brokers answer: these need none. A node that does not answer hides no broker.
"""

from __future__ import annotations

import json

from quine.base.errors import FAILED, OK, complain
from quine.base.text import plain, table
from quine.broker import asking
from quine.jobs import census
from transport.errors import Refused
from transport.node import rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMED, SHOWN = 5, 40  # jobs in a message, and characters of each
LINKS = ("LINK", "STATE", "CHANNELS", "QUEUED", "JOBS")
BROKERS = ("BROKER", "SECONDS", "AGENTS", "KEYS")
GATES = ("BROKER", "KEY", "MODEL", "BASE", "RUNNING", "WAITING", "STARTED", "429", "PAUSED", "WITHOUT")


def show(as_json: bool) -> int:
    facts, refused = None, None
    try:
        facts = rendezvous.status()
    except Refused as error:
        refused = error
    brokers = asking.status()
    if as_json:
        print(json.dumps({**(facts or {}), "brokers": brokers}, indent=2))
    else:
        print(_of_node(facts) + _of_brokers(brokers), end="")
    if refused:
        raise refused
    if facts is None:
        complain(
            "no node of this build runs here",
            census.other_builds() or "it is started by the first command that needs it",
        )
        return FAILED
    return OK


def stop(force: bool) -> int:
    """End the node; without `force` only if nothing ends with it."""
    living = [] if force else census.carried_by(rendezvous.status() or {})
    if living:
        shown = "; ".join(
            f"{one.agent.mission[:SHOWN] or one.agent.id} on {one.agent.host}" for one in living[:NAMED]
        )
        more = f" and {len(living) - NAMED} more" if len(living) > NAMED else ""
        count = "1 job" if len(living) == 1 else f"{len(living)} jobs"
        complain(
            f"{count} would end with it: {plain(shown, newlines=False)}{more}", "quine node --stop --force"
        )
        return FAILED
    if rendezvous.stop():
        return OK
    complain("no node of this build runs here", census.other_builds())
    return FAILED


def resume() -> int:
    """Let all trees go on that are paused because their provider has no quota left."""
    if asking.resume():
        return OK
    complain("nothing is paused because a provider has no quota left", "quine node --status")
    return FAILED


def _of_node(facts: dict[str, Any] | None) -> str:
    if not facts:
        return ""
    head = ("NODE", "SECONDS", "CPU", "JOBS", "LINKS")
    row = (facts["pid"], f"{facts['seconds']:.0f}", facts["cpu"], facts["jobs"], facts["links"])
    text = table([head, tuple(map(str, row))], right=(0, 1, 2, 3, 4))
    lines = [
        (
            plain(str(line["host"] or line["name"]), newlines=False),
            "up" if line["up"] else f"down for {line.get('down', 0):.0f} s",
            str(line["channels"]),
            str(line["queued"]),
            str(facts["hosts"].get(line["host"], {}).get("running", "-")),
        )
        for line in facts["lines"]
    ]
    return text + (table([LINKS, *lines], right=(2, 3, 4)) if lines else "")


def _of_brokers(brokers: list[dict[str, Any]]) -> str:
    rows, gates, silent = [], [], ""
    for broker in brokers:
        if "pid" not in broker:
            silent += f"the broker at {_word(broker, 'path')} does not tell: {_word(broker, 'error')}\n"
            continue
        keys = broker.get("keys")
        named = " ".join(map(str, keys)) if isinstance(keys, list) else ""
        pid = _word(broker, "pid")
        try:
            found = broker.get("gates")
            of_it = [(pid, *_gate(each)) for each in found] if isinstance(found, list) else []
        except (TypeError, ValueError, KeyError, AttributeError):
            silent += f"the gates of broker {pid} cannot be read, so it is a stranger\n"
            continue
        gates += of_it
        rows.append(
            (pid, _word(broker, "seconds"), _word(broker, "agents"), plain(named, newlines=False) or "-")
        )
    text = table([BROKERS, *rows], right=(0, 1, 2)) if rows else ""
    return text + (table([GATES, *gates], right=(0, 4, 5, 6, 7)) if gates else "") + silent


def _gate(gate: dict[str, Any]) -> tuple[str, ...]:
    running = f"{_word(gate, 'under_way')}/{_word(gate, 'limit')}"
    names = [_word(gate, name) or "-" for name in ("key", "model", "base")]
    counts = [_word(gate, name) for name in ("waiting", "started", "answered_429")]
    left_out = gate.get("left_out")
    without = ", ".join(map(str, left_out)) if isinstance(left_out, list) else ""
    return (*names, running, *counts, _pauses(gate) or "-", plain(without, newlines=False) or "-")


def _pauses(gate: dict[str, Any]) -> str:
    """Return the pauses of a gate and of its trees, each with its end."""
    told = [f"for {gate['paused']:.0f} s (Retry-After)"] if gate.get("paused") else []
    for tree in gate.get("without_quota") or ():
        ends = []
        if tree["seconds"] is not None:
            ends.append(f"for {tree['seconds']:.0f} s")
        else:
            ends.append("until it is raised")
        if tree["deadline"] is not None:
            ends.append(f"at most {tree['deadline']:.0f} s")
        told.append(f"a tree without quota {', '.join(ends)}")
    return "; ".join(told)


def _word(facts: dict[str, Any], name: str) -> str:
    return plain(str(facts.get(name, "")), newlines=False)

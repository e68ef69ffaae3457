"""Questions to the brokers of this user that any of its processes may ask: their state, and a pause to end.

Laws
1. A broker is found by its socket in the runtime directory, so nothing is stale. One that does not answer is named.
2. The other end may be a stranger's, of the same user: it is told nothing, and what it tells is bounded.
3. All brokers are asked at one time, and have one time to answer: a stranger that tells nothing, or a byte now and
   then, costs no more than that.
"""

from __future__ import annotations

import os
import time

from quine.broker import wire
from quine.broker.client import Gone, connected
from transport.address import runtime_directory
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ANSWER = 2.0  # seconds for all brokers to answer
SILENT = "timed out"
PATIENCE = 60.0  # seconds for an answer on which a right depends; the next inference would wait for it, too


def status() -> list[dict[str, Any]]:
    """Return what each broker tells of itself; of one that does not answer its `path`, and the reason as `error`."""
    return _all_asked({"ask": "status"})


def resume(tree: int = 0) -> int:
    """Let a tree that is paused for a quota ask its provider again, or all trees; return how many pauses ended."""
    answers = [answer.get("resumed") for answer in _all_asked({"ask": "resume", "tree": tree})]
    return sum(answer for answer in answers if isinstance(answer, int))


def raise_purse(inode: int, limits: Sequence[float | None]) -> str:
    """Ask each broker for other limits of a purse, as `Purse.with_limits`; return why they refuse, or "".

    A stranger may refuse what the broker of the purse has done: then nothing is refused.
    """
    answers = _all_asked({"ask": "raise", "purse": inode, "limits": list(limits)})
    if any(answer.get("raised") is True for answer in answers):
        return ""
    return next((str(answer.get("detail")) for answer in answers if answer.get("error") == "denied"), "")


def detach(path: str, pid: int) -> None:
    """Tell the broker at `path` that a process outlives the agent above this process, and infers as that does.

    It is the supervisor of a job that was detached, or a child for which its parent, which is this process, does not
    wait.
    """
    with contextlib.suppress(OSError):  # without a broker nothing below that process infers
        _asked(path, {"ask": "detach", "supervisor": pid}, PATIENCE)


def _all_asked(question: dict[str, object]) -> list[dict[str, Any]]:
    from threading import Thread

    directory = runtime_directory()
    paths = [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.endswith(wire.SUFFIX)]
    answers: dict[str, dict[str, Any]] = {path: {"path": path, "error": SILENT} for path in paths}

    def ask(path: str) -> None:
        try:
            answers[path] = _asked(path, question, ANSWER)
        except Gone:
            del answers[path]  # it has ended, and left its name if it was killed
        except OSError as error:
            answers[path] = {"path": path, "error": str(error) or type(error).__name__}

    threads = [Thread(target=ask, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        with contextlib.suppress(RuntimeError):  # there are too many; it counts as one that is silent
            thread.start()
    over = time.monotonic() + ANSWER
    for thread in threads:
        if thread.ident:
            thread.join(max(0.0, over - time.monotonic()))
    return list(answers.values())


def _asked(path: str, question: dict[str, object], seconds: float) -> dict[str, Any]:
    line, _ = connected(path, seconds)
    try:
        wire.send(line, wire.packed(question))
        return wire.receive_json(line)
    finally:
        line.close()

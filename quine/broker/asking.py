"""Questions to the brokers of this user that any of its processes may ask: their state, and a pause to end.

Laws
1. A broker is found by its socket in the runtime directory, so nothing is stale. One that does not answer is named.
2. The other end may be a stranger's, of the same user: it is told nothing, and what it tells is bounded.
3. All brokers have one time to answer, and up to AT_ONCE are asked together: a stranger that tells nothing, or a byte
   now and then, costs no more than that, and many of them take no more descriptors. Where there are more, one that does
   not answer soon is asked again after all others, with more time: so strangers keep no broker from being asked.
4. A broker that has not answered has not refused either: where a right depends on its answer it is named. So is one
   that refuses what another one says that it has done: one of the two is a stranger.
"""

from __future__ import annotations

import os
import time
from collections import deque

from quine.broker import wire
from quine.broker.client import PAUSE, Gone, connected
from transport.address import runtime_directory
from transport.lean import NamedTuple, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ANSWER = 2.0  # seconds for all brokers to answer
SILENT = "timed out"
PATIENCE = 60.0  # seconds for an answer on which a right depends; the next inference would wait for it, too
AT_ONCE = 64  # brokers that are asked at one time
SOON = 0.25  # seconds for the first try with each of more than that; doubled with each further one


class Raise(NamedTuple):
    """The end of a request to raise a purse: whether a broker says that it has done it; why one refuses, if none does.

    Then the paths of silent brokers, and of those that refuse what another one says that it has done.
    """

    done: bool
    refused: str
    silent: list[str]
    opposed: tuple[str, ...] = ()


def status() -> list[dict[str, Any]]:
    """Return what each broker tells of itself; of one that does not answer its `path`, and the reason as `error`."""
    told = _all_asked({"ask": "status"}, ANSWER)
    return [{"path": path, "error": one} if isinstance(one, str) else one for path, one in told.items()]


def resume(tree: int = 0) -> int:
    """Let a tree that is paused for a quota ask its provider again, or all trees; return how many pauses ended."""
    told = _all_asked({"ask": "resume", "tree": tree}, ANSWER).values()
    answers = [one.get("resumed") for one in told if not isinstance(one, str)]
    return sum(answer for answer in answers if isinstance(answer, int))


def raise_purse(inode: int, limits: Sequence[float | None]) -> Raise:
    """Ask each broker for other limits of a purse, as `Purse.with_limits`.

    A stranger may refuse what the broker of the purse has done, or say that it has done what the broker refuses: then
    nothing is refused, and that is told. A purse that no broker knows is neither raised nor refused.
    """
    told = _all_asked({"ask": "raise", "purse": inode, "limits": list(limits)}, PATIENCE)
    answers = {path: one for path, one in told.items() if not isinstance(one, str)}
    silent = [path for path in told if path not in answers]
    refusals = {path: str(one.get("detail")) for path, one in answers.items() if one.get("error") == "denied"}
    if any(answer.get("raised") is True for answer in answers.values()):
        return Raise(True, "", silent, tuple(refusals))
    return Raise(False, next(iter(refusals.values()), ""), silent)


def detach(path: str, pid: int) -> None:
    """Tell the broker at `path` that a process outlives the agent above this process, and infers as that does.

    It is the supervisor of a job that was detached, or a child for which its parent, which is this process, does not
    wait.
    """
    with contextlib.suppress(OSError):  # without a broker nothing below that process infers
        _asked(path, {"ask": "detach", "supervisor": pid}, PATIENCE)


def _all_asked(question: dict[str, object], seconds: float) -> dict[str, dict[str, Any] | str]:
    """Return the answer of each living broker by its path; the reason, as text, if none came within `seconds`."""
    from threading import Thread

    directory = runtime_directory()
    paths = [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.endswith(wire.SUFFIX)]
    answers: dict[str, dict[str, Any] | str] = dict.fromkeys(paths, SILENT)
    left = deque((path, SOON if len(paths) > AT_ONCE else seconds) for path in paths)
    over = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < over:
            try:
                path, most = left.popleft()
            except IndexError:
                return
            try:
                answers[path] = _asked_again(path, question, min(over, time.monotonic() + most))
            except Gone:
                del answers[path]  # it has ended, and left its name if it was killed
            except TimeoutError:
                left.append((path, 2 * most))
            except OSError as error:
                answers[path] = str(error) or type(error).__name__

    threads = [Thread(target=ask, daemon=True) for _ in paths[:AT_ONCE]]
    for thread in threads:
        with contextlib.suppress(RuntimeError):  # there are too many; another one asks in its place
            thread.start()
    for thread in threads:
        if thread.ident:
            thread.join(max(0.0, over - time.monotonic()))
    return dict(answers)


def _asked_again(path: str, question: dict[str, object], over: float) -> dict[str, Any]:
    """Ask a broker, again if its worker ends in the middle: a worker may be killed, or may have become idle."""
    while True:
        try:
            return _asked(path, question, max(PAUSE, over - time.monotonic()))
        except ConnectionError:
            if time.monotonic() + PAUSE > over:
                raise
        time.sleep(PAUSE)


def _asked(path: str, question: dict[str, object], seconds: float) -> dict[str, Any]:
    line, _ = connected(path, seconds)
    try:
        wire.send(line, wire.packed(question))
        return wire.receive_json(line)
    finally:
        line.close()

"""A server that leaves out the beginning of a prompt without a word, as Ollama does: its counts give it away."""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from quine.agent import prompt
from quine.agent.usage import Account, _Sizes
from quine.base.messages import Message, Remaining, Reply, ToolCall, ToolResult, Usage
from quine.budget.limits import Limits
from quine.providers import metering
from tests.support.agents import OK, Agents, call, says, sh

TOOLS = 1500  # tokens that precede each conversation
WORDS = [random.Random(n).randbytes(4).hex()[: 2 + n % 7] for n in range(500)]
Count = Callable[[list[Message], int], int]  # of the tokens of a prompt, the new ones, by a server


class NoLimit:
    def left(self, surely: bool = False) -> Remaining:
        return Remaining()

    def time_left(self) -> None:
        return None


def english(size: int, seed: int = 0) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(size // 5))


def tokens(messages: list[Message]) -> int:
    return TOOLS + sum(len(m.result.text if m.result else m.text) for m in messages) // 4


def session(
    count: Count, *results: str, window: int = 128_000, thought: str = "", written: int = 20
) -> list[list[str]]:
    """Return the notes after each result of a session; `count` is that of the server, for messages and those before."""
    ledger: Any = NoLimit()
    guest: Any = None
    account = Account(Limits(turns=0, window=window), ledger, guest, None)
    messages = [Message("system", "be"), Message("user", "do")]
    before, notes = 0, []
    for text in results:
        reply = Message("assistant", "", (ToolCall("c", "sh"),), reasoning=thought)
        account.count(Reply(reply, Usage(count(messages, before), written)), messages)
        before = len(messages)
        messages.append(reply)
        notes.append(account.notes(messages, text))
        messages.append(Message("tool", result=ToolResult("c", "sh", text)))
    return notes


def cutting(window: int) -> Count:
    """A server that drops the oldest messages behind the system prompt until the rest fits."""

    def count(messages: list[Message], before: int) -> int:
        kept = list(messages)
        while tokens(kept) > window and len(kept) > 2:
            del kept[1]
        return tokens(kept)

    return count


def forgotten(notes: list[list[str]]) -> list[int]:
    start = prompt.FORGOTTEN.partition("{}")[0]
    return [turn for turn, lines in enumerate(notes) if any(line.startswith(start) for line in lines)]


@pytest.mark.parametrize("sizes", [(1200,), (3000,), (6000, 100)])
def test_it_is_told_once_and_the_session_goes_by_the_window_that_is_there(sizes: tuple[int, ...]) -> None:
    texts = [english(size, n) for n in range(30) for size in sizes]
    notes = session(cutting(4096), *texts)
    (turn,) = forgotten(notes)
    assert tokens([Message("user", text) for text in texts[:turn]]) < 2.5 * 4096
    lines = notes[turn]
    assert prompt.SERVED.format(4096, 128_000) in lines
    assert prompt.last_note("context_exhaustion") in lines


def test_a_window_that_is_known_is_reached_before_it_is_cut() -> None:
    notes = session(cutting(4096), *(english(1200, n) for n in range(30)), window=4096)
    assert forgotten(notes) == []
    assert any(prompt.last_note("context_exhaustion") in lines for lines in notes)


def uncached(messages: list[Message], before: int) -> int:
    """A server that counts the tokens that it has not cached, and no others."""
    return tokens(messages) if not before else tokens(messages[before:]) - TOOLS + 40


def whole(messages: list[Message], before: int) -> int:
    return tokens(messages)


def thoughtless(messages: list[Message], before: int) -> int:
    """A server that counts the reasoning of the last six replies, and drops all of it at a seventh."""
    replies = sum(message.role == "assistant" for message in messages)
    return tokens(messages) + 2000 * (replies % 7)


SPREAD = {
    "words": english(8000),
    "spaces": "  " * 4000 + "x",
    "one letter": "x" * 8000,
    "a table": "".join(f"| {n:<60} | {n:>60} |\n" for n in range(60)),
    "random": base64.b64encode(random.Random(1).randbytes(6000)).decode(),
    "nothing": "",
}


@pytest.mark.parametrize("text", SPREAD.values(), ids=SPREAD)
@pytest.mark.parametrize("count", [uncached, whole], ids=["no cached ones", "all"])
def test_a_server_that_reads_all_is_not_suspected(count: Count, text: str) -> None:
    notes = session(count, *[text, "done", text, text, "done", *["ok"] * 20])
    assert forgotten(notes) == []


def in_turn(*factors: float) -> Count:
    """A router that gives each prompt to the next model: their tokenizers make more of a text or less. None cuts."""
    models = itertools.chain(factors, itertools.repeat(factors[-1]))

    def count(messages: list[Message], before: int) -> int:
        return int(next(models) * tokens(messages))

    return count


@pytest.mark.parametrize("texts", [(8000,), (1200,), (8000, 40, 40)], ids=str)
@pytest.mark.parametrize(
    "count",
    [
        in_turn(*[1.5] * 12, 1.0),
        in_turn(*[1.5] * 12, *[1.0, 1.5] * 20),
        in_turn(*[1.5] * 12, 1.0, 1.0, 1.5, 1.0),
    ],
    ids=["once", "back and forth", "three times"],
)
def test_another_tokenizer_is_no_cut(count: Count, texts: tuple[int, ...]) -> None:
    notes = session(count, *[english(size, n) for n in range(9) for size in texts])
    assert forgotten(notes) == []
    assert not any(prompt.last_note("context_exhaustion") in lines for lines in notes)


def test_a_window_is_forgotten_once_a_longer_prompt_is_read() -> None:
    sizes, message = _Sizes(), Message("assistant", "")

    def count(read: int, new: str) -> int:
        sizes.count(Reply(message, Usage(read, 20)), [Message("user", new)])
        return sizes.window

    assert [count(1600, ""), count(3500, english(8000)), count(9500, english(24_000))] == [0, 0, 0]
    assert count(3900, "ok") == 0
    assert count(3900, "ok") == 9520
    assert count(9600, "ok") == 0


def test_reasoning_that_is_dropped_is_not_missed() -> None:
    notes = session(thoughtless, *[english(1200, n) for n in range(20)], thought="hm", written=2000)
    assert forgotten(notes) == []


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("x" * 8000, 1000),
        (" " * 8000, 100),
        (SPREAD["a table"], 1500),
        (english(8000), 2000),
        (SPREAD["random"], 5000),
    ],
    ids=["a letter", "spaces", "a table", "words", "random"],
)
def test_the_bound_is_one(text: str, true: int) -> None:
    assert metering.at_least([Message("user", text)]) <= true


def test_the_next_session_keeps_the_window(agents: Agents) -> None:
    (agents.directory / "words").write_text(english(18_000))

    def used(line: dict[str, Any], read: int) -> dict[str, Any]:
        return {**line, "usage": {"input": read, "output": 10}}

    agents.script(
        used(says(sh("cat words"), wisdom="^{}$"), 3000),
        used(says(sh("true"), wisdom="^{}$"), 3400),
        used(says(sh("true"), wisdom="^{}$"), 3500),
        used(says(sh("true"), wisdom="^{}$"), 3500),
        used(says(call("exec", wisdom={"n": "1"}), wisdom="^{}$"), 3500),
        used(says(sh("true"), wisdom="1"), 1500),
        says(OK, wisdom="1"),
    )
    done = agents.run()
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = agents.tapes()
    results = [[e["data"]["content"] for e in tape if e["type"] == "tool_result"] for tape in (first, second)]
    assert "has read only" not in results[0][2]  # it may be another tokenizer's count
    assert "has read only 3500 tokens" in results[0][3]
    assert prompt.SERVED.format(4096, 128_000) in results[0][3]
    assert "[CONTEXT USED] 2K of 4K" in results[1][0]

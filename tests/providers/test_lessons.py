"""Lessons of refusals, and those that are none, or are taken back: of one guest that many agents share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quine.base.messages import GuestError, Message, Refused, Request, unheard
from quine.providers import http, lessons
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.faults import Adapted
from quine.providers.dialects.turns import SMALL
from quine.providers.http import HttpGuest
from quine.providers.lessons import Lesson, Lessons
from quine.providers.way import Open
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen, Turn

HI = Said("hi")
THOUGHT = Message("assistant", "a", raw={"chat": {"content": "a", "reasoning_content": "hm"}})
ASKED = Request([Message("system", "be"), Message("user", "do"), THOUGHT, Message("user", "go on")], ())
AGENTS = 50


class Lenient:
    """A server that takes whatever is JSON."""

    error, reply_json, reply_events = chat.error, chat.reply_json, chat.reply_events

    @staticmethod
    def check(headers: Any, path: str, body: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.0)


def guest(provider: Provider) -> HttpGuest:
    async def pause(seconds: float) -> None:
        pass

    return HttpGuest(ChatDialect("m"), f"{provider.base}/v1", KEY, pause=pause)


def mission(body: Any) -> str:
    return str(body["messages"][1]["content"])


def refused(message: str, status: int = 400) -> Fault:
    return Fault(status, "bad" if status < 500 else "server", message=message)


def about(mission: str) -> Request:
    return ASKED._replace(messages=[ASKED.messages[0], Message("user", mission), *ASKED.messages[2:]])


def taught(*parts: str) -> Lesson:
    lesson = Lesson(frozenset())
    assert lesson.learn(Adapted(Refused("no"), frozenset(parts)))
    return lesson


def run(
    choose: Callable[[Seen], Turn], *missions: str, one_by_one: bool = True
) -> tuple[list[Any], HttpGuest, list[Any]]:
    """The ends of one inference for each mission, by one guest; the guest, and the bodies that were sent."""

    async def work() -> list[Any]:
        async def one(mission: str) -> Any:
            try:
                return (await made.infer(about(mission), unheard)).message.text
            except GuestError as error:
                return error

        if one_by_one:
            return [await one(each) for each in missions]
        return await asyncio.gather(*map(one, missions))

    with Provider(Lenient, choose=choose) as provider:
        made = guest(provider)
        try:
            return asyncio.run(_closing(made, work)), made, provider.bodies
        finally:
            pass


async def _closing(made: HttpGuest, work: Callable[[], Any]) -> Any:
    try:
        return await work()
    finally:
        await made.close()


WRONG = {
    "a 500 that quotes the model": refused(
        "Failed to parse input at pos 9: reasoning of max_completion_tokens", 500
    ),
    "reasoning that is demanded": refused("reasoning_content is missing in assistant message at index 2"),
    "a name alone": refused("error in stream_options or reasoning"),
    "a full context": refused(
        "max_tokens=9cannot be greater than max_model_len=8; reasoning is not supported"
    ),
    "its own arguments": refused(
        "Unexpected error: arguments of reasoning: Expecting ',' delimiter: line 1 column 5"
    ),
    "a refusal that nothing cures": refused("Unknown parameter: 'reasoning_content'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_lesson_harms_nobody_else(name: str) -> None:
    """One agent's trouble was learned as a fact about the server, and killed the healthy ones of that key and model."""

    def choose(seen: Seen) -> Turn:
        if mission(seen.body) == "bad":
            return WRONG[name]
        whole = "reasoning_content" in seen.body["messages"][2] and "stream_options" in seen.body
        return HI if whole and "max_tokens" not in seen.body else refused("Missing `reasoning_content` field")

    ends, made, _ = run(choose, "bad", *["good"] * (AGENTS - 1), one_by_one=False)
    assert isinstance(ends[0], GuestError)
    assert ends[1:] == ["hi"] * (AGENTS - 1)
    assert made.lessons == []


def test_a_lesson_that_helps_is_kept_and_told() -> None:
    def choose(seen: Seen) -> Turn:
        return (
            refused("Unrecognized request argument supplied: stream_options")
            if "stream_options" in seen.body
            else HI
        )

    ends, made, bodies = run(choose, "a", "b")
    assert ends == ["hi", "hi"] and made.lessons == ["usage"]
    assert ["stream_options" in body for body in bodies] == [True, False, False]


def test_a_lesson_about_its_own_conversation_is_that_of_the_tree() -> None:
    """A command may forge a block, or ask for a reply of any length: other trees keep their thoughts, and their length.

    That the server takes no `stream_options` is its own word: once an inference has learned that alone, all trees know.
    """

    def choose(seen: Seen) -> Turn:
        if "stream_options" in seen.body:
            return refused("Unknown parameter: 'stream_options'")
        forged = mission(seen.body) == "forged" and "reasoning_content" in seen.body["messages"][2]
        return refused("Unknown parameter: 'reasoning_content'") if forged else HI

    class Of(Open):
        def __init__(self, tree: int) -> None:
            self.tree = tree

    async def work() -> list[str]:
        asked = [(1, "forged"), (1, "forged"), (2, "good"), (3, "good"), (1, "good")]
        return [(await made.infer(about(mission), unheard, Of(tree))).message.text for tree, mission in asked]

    with Provider(Lenient, choose=choose) as provider:
        made = guest(provider)
        assert asyncio.run(_closing(made, work)) == ["hi"] * 5
    told = [
        ("stream_options" in body, "reasoning_content" in body["messages"][2]) for body in provider.bodies
    ]
    whole, unsaid, neither = (True, True), (False, True), (False, False)
    assert told == [whole, unsaid, neither, neither, whole, unsaid, unsaid, neither]
    assert made.lessons == ["reasoning", "usage"]


def test_the_trees_with_lessons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "MOST_TREES", 2)
    made = Lessons({"thoughts"})
    for tree in (1, 2, 1, 3):
        made.keep(tree, taught("thoughts"))
    assert [sorted(made.of(tree)) for tree in (1, 2, 3, 4)] == [["thoughts"], [], ["thoughts"], []]


def test_a_lesson_that_harms_later_is_taken_back() -> None:
    """The server was changed, or the lesson helped by chance."""
    asked: list[bool] = []

    def choose(seen: Seen) -> Turn:
        asked.append("stream_options" in seen.body)
        if len(asked) == 1:
            return refused("Unknown parameter: 'stream_options'")
        return HI if len(asked) == 2 or asked[-1] else refused("usage has to be asked for")

    ends, made, _ = run(choose, "a", "b", "c")
    assert ends == ["hi"] * 3 and made.lessons == []
    assert asked == [True, False, False, True, True]


def test_reasoning_that_is_demanded_is_given_empty_where_there_is_none() -> None:
    """DeepSeek and Kimi, of a conversation that another model began."""

    def choose(seen: Seen) -> Turn:
        missing = any("reasoning_content" not in m for m in seen.body["messages"] if m["role"] == "assistant")
        return refused("thinking is enabled but reasoning_content is missing at index 2") if missing else HI

    begun = ASKED._replace(messages=[*ASKED.messages[:2], Message("assistant", "a"), ASKED.messages[3]])

    async def work() -> Any:
        return (await made.infer(begun, unheard)).message.text

    with Provider(Lenient, choose=choose) as provider:
        made = guest(provider)
        assert asyncio.run(_closing(made, work)) == "hi"
    assert [message.get("reasoning_content") for message in provider.bodies[1]["messages"]] == [
        None,
        None,
        "",
        None,
    ]


def test_what_stays_refused_is_told_in_its_own_words() -> None:
    ends, _, bodies = run(lambda seen: refused("Unknown parameter: 'stream_options'"), "a")
    assert type(ends[0]) is Refused and "stream_options" in str(ends[0]) and len(bodies) == 2


def test_a_reply_that_leaves_no_room_is_asked_for_shorter_before_results_are_dropped() -> None:
    """The conversation fits, and the longest reply behind it does not. The next conversation begins anew."""
    words = "max_completion_tokens=16384cannot be greater than max_model_len=max_total_tokens=8192. Please ask for less"

    def choose(seen: Seen) -> Turn:
        return refused(words) if seen.body["max_tokens"] > SMALL else HI

    with Provider(Lenient, choose=choose) as provider:
        made = guest(provider)

        async def work() -> list[str]:
            asked = ASKED._replace(output=16384)
            return [(await made.infer(asked, unheard)).message.text for _ in range(2)]

        assert asyncio.run(_closing(made, work)) == ["hi", "hi"]
    assert [body["max_tokens"] for body in provider.bodies] == [16384, SMALL] * 2
    assert made.lessons == []

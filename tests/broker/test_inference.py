"""The inferences of a broker against strict servers: replies, errors, payment, cancellation, and trees that wait."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from typing import Any

import pytest

from quine.base.messages import Message, Reply, unheard
from quine.broker import turns
from quine.broker.payment import tree_of
from quine.budget.ledger import Ledger
from quine.providers import metering
from quine.providers.dialects.chatstream import ChatStream
from quine.providers.dialects.faults import NO_QUOTA_LEFT
from quine.providers.relay import RelayGuest
from tests.broker.inferring import config, gates, inferences, ledger, payer, request, run
from tests.vendors import anthropic, chat, gemini, responses
from tests.vendors.limits import Limited
from tests.vendors.server import KEY, Cut, Fault, Provider, Said, Silent, Turn

HI = Said("hi, wörld", usage=(100, 10, 40))
PROMPT = metering.TOOLS + 1
EVENTS = 1000
VENDORS = {
    "openai": (chat, "/v1"),
    "responses": (responses, "/v1"),
    "anthropic": (anthropic, ""),
    "gemini": (gemini, ""),
}


def asked(provider: Provider, paying: Ledger, *bodies: bytes, **more: Any) -> list[Any]:
    """The answers to these requests, one after the other."""

    async def work() -> list[Any]:
        async with inferences() as made:
            return [
                json.loads(await made.infer(payer(provider, paying, **more), body, unheard))
                for body in bodies
            ]

    found: list[Any] = run(work())
    return found


@pytest.mark.parametrize("kind", VENDORS)
def test_each_vendor_answers_through_the_broker(kind: str) -> None:
    vendor, path = VENDORS[kind]

    async def work() -> bytes:
        async with inferences() as made:
            paying = payer(provider, paid)._replace(config=config(provider, kind, path))
            return await made.infer(paying, request(), unheard)

    with Provider(vendor, HI) as provider, ledger(tokens=100_000) as paid:
        answer = run(work())
        guest = RelayGuest(lambda name, body: answer)
        reply = guest.infer(metering_request())
        assert reply.message.text == HI.text
        assert guest.left == guest.surely == (100_000 - 110, None)
        assert paid.totals()[1] == 110


def metering_request() -> Any:
    from quine.base.messages import Request

    return Request([Message("user", "do")], ())


@pytest.mark.parametrize(
    ("turn", "kind", "says"),
    [
        (Fault(401, "auth"), "refused", "Incorrect API key"),
        (Fault(429, "quota"), "refused", "quota"),
        (Fault(400, "overflow"), "overflow", "maximum context length"),
    ],
)
def test_an_error_is_an_answer_and_costs_nothing(turn: Turn, kind: str, says: str) -> None:
    with Provider(chat, turn) as provider, ledger(tokens=100_000) as paid:
        (answer,) = asked(provider, paid, request())
        assert (answer["error"], says in answer["detail"]) == (kind, True)
        assert paid.totals()[1] == 0 and paid.left() == (100_000, None)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"session": 1}', request(session="x" * 37), request()[:-1] + b', "more": 1}']
)
def test_a_body_that_is_no_request_is_answered_with_the_reason(body: bytes) -> None:
    with Provider(chat) as provider, ledger() as paid:
        (answer,) = asked(provider, paid, body)
        assert answer["error"] == "other" and answer["detail"].startswith("infer: ")


def test_a_message_that_is_none_is_answered_with_the_reason() -> None:
    data = json.loads(request())
    for wrong in ({}, {"role": "boss", "content": ""}, {"role": "user", "content": 5}):
        data["messages"] = [wrong]
        with Provider(chat) as provider, ledger() as paid:
            (answer,) = asked(provider, paid, json.dumps(data).encode())
            assert "not a conversation" in answer["detail"]


def test_what_cannot_be_paid_is_not_asked_for() -> None:
    with Provider(chat) as provider, ledger(tokens=PROMPT) as paid:
        (answer,) = asked(provider, paid, request())
        assert (answer["error"], answer["option"]) == ("spent", "--max-tokens")


def test_the_lower_bound_of_the_client_is_reserved() -> None:
    with Provider(chat) as provider, ledger(tokens=50_000) as paid:
        (answer,) = asked(provider, paid, request(known=50_000))
        assert answer["error"] == "spent"


def test_tries_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quine.providers.http.FIRST_PAUSE", 0.001)
    notes: list[str] = []

    async def work() -> None:
        async with inferences() as made:
            await made.infer(payer(provider, paid), request(), notes.append)

    with Provider(chat, Cut(HI, 1), HI) as provider, ledger() as paid:
        run(work())
    assert len(notes) == 1 and notes[0].startswith("try 2 of 4 in ")


# -------------------------------------------------------------------------------------- cancellation


async def seen(event: threading.Event) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 60)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("after", [0, 2], ids=["before the first event", "in the middle"])
def test_a_cancelled_inference_is_charged_its_prompt_and_closes_its_request(after: int) -> None:
    async def work() -> None:
        async with inferences() as made:
            task = asyncio.ensure_future(made.infer(payer(provider, paid), request(), unheard))
            await seen(provider.silent)
            await cancelled(task)
            await seen(provider.hung_up)

    with Provider(chat, Silent(HI, after)) as provider, ledger(tokens=100_000) as paid:
        run(work())
        assert PROMPT <= paid.totals()[1] <= PROMPT + 1  # as much as had come
        assert paid.left().tokens == 100_000 - paid.totals()[1]


def test_a_reply_is_charged_as_far_as_it_had_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hung up just before its end had thousands of tokens for the price of a short prompt."""
    come, feed = threading.Event(), ChatStream.feed

    def fed(stream: ChatStream, event: str, data: Any) -> bool:
        last = feed(stream, event, data)
        if stream.events == EVENTS:
            come.set()
        return last

    async def work() -> None:
        async with inferences() as made:
            task = asyncio.ensure_future(made.infer(payer(provider, paid), request(), unheard))
            await seen(come)
            await cancelled(task)

    monkeypatch.setattr(ChatStream, "feed", fed)
    with Provider(chat, Silent(Said("abc" * 2000), EVENTS)) as provider, ledger(tokens=100_000) as paid:
        run(work())
        letters = 3 * (EVENTS - 1)  # the first event has none
        assert paid.totals()[1] == PROMPT + letters // metering.LETTERS


def test_one_that_was_cancelled_before_it_was_sent_costs_nothing() -> None:
    """It waited for a slot of its tree, or between two tries."""

    async def work() -> None:
        async with inferences() as made:
            paying = payer(provider, paid, concurrent=1)
            first = asyncio.ensure_future(made.infer(paying, request(), unheard))
            await seen(provider.silent)
            second = asyncio.ensure_future(made.infer(paying, request(), unheard))
            await asyncio.sleep(0.01)
            await cancelled(second)
            await cancelled(first)

    with Provider(chat, Silent(HI)) as provider, ledger(tokens=100_000) as paid:
        run(work())
        assert paid.totals()[1] == PROMPT
        assert paid.left() == (100_000 - PROMPT, None)


def test_one_that_was_cancelled_between_two_tries_costs_nothing() -> None:
    async def work() -> None:
        noted = asyncio.Event()
        async with inferences() as made:
            task = asyncio.ensure_future(
                made.infer(payer(provider, paid), request(), lambda text: noted.set())
            )
            await noted.wait()
            await cancelled(task)

    with Provider(chat, Fault(429, "rate", {"Retry-After": "100"})) as provider, ledger(tokens=9000) as paid:
        run(work())
        assert paid.totals()[1] == 0 and paid.left() == (9000, None)


def test_an_inference_whose_broker_was_killed_is_charged_at_its_reservation_once() -> None:
    async def work() -> None:
        async with inferences() as made:
            await made.infer(payer(provider, paid), request(), unheard)

    with Provider(chat, Silent(HI), HI) as provider, ledger(tokens=100_000) as paid:
        if (broker := os.fork()) == 0:
            try:
                run(work())
            finally:
                os._exit(1)
        assert provider.silent.wait(60)
        reserved = 100_000 - (paid.left().tokens or 0)
        assert reserved > PROMPT
        os.kill(broker, signal.SIGKILL)
        os.waitpid(broker, 0)
        assert provider.hung_up.wait(60)
        run(work())
        assert paid.totals()[1] == reserved + 110
        assert paid.left() == (100_000 - reserved - 110, None)


# ------------------------------------------------------------------------------------ trees beside each other


def test_a_locked_ledger_stops_its_own_tree_only() -> None:
    """A process of the one tree was stopped in the middle of a change; ten of its inferences wait."""

    async def work() -> list[Any]:
        async with inferences() as made:
            with locked.book.changing():
                stuck = [
                    asyncio.ensure_future(made.infer(payer(provider, locked), request(), unheard))
                    for _ in range(10)
                ]
                others = [made.infer(payer(provider, free), request(), unheard) for _ in range(10)]
                done = await asyncio.gather(*others)
                assert not any(task.done() for task in stuck)
            return [json.loads(answer) for answer in [*done, *await asyncio.gather(*stuck)]]

    with (
        Provider(chat, choose=lambda _: HI) as provider,
        ledger(tokens=10**6) as locked,
        ledger(tokens=10**6) as free,
    ):
        assert all("error" not in answer for answer in run(work()))
        assert locked.totals()[1] == free.totals()[1] == 10 * 110


def test_no_more_at_a_time_than_the_tree_allows() -> None:
    async def work() -> None:
        async with inferences() as made:
            paying = payer(provider, paid, concurrent=2)
            await asyncio.gather(*(made.infer(paying, request(), unheard) for _ in range(20)))

    with Limited(chat, HI, 100, 100, 60.0, 0.005) as provider, ledger() as paid:
        run(work())
        assert provider.most <= 2
        assert paid.totals()[1] == 20 * 110


def test_siblings_with_a_fresh_prefix_wait_for_the_first_one() -> None:
    """The provider reads their prefix once, and finds it in its cache for the others."""

    async def work() -> None:
        async with inferences() as made:
            paying = payer(provider, paid)
            same = Message("system", "x" * 10_000)
            siblings = [
                asyncio.ensure_future(made.infer(paying, request([same, Message("user", f"{n}")]), unheard))
                for n in range(5)
            ]
            await seen(provider.silent)
            (gate,) = gates(made)
            while gate["waiting"] + gate["under_way"] < 5:
                await asyncio.sleep(0)
                (gate,) = gates(made)
            assert (gate["under_way"], gate["waiting"]) == (1, 4)
            first = int(provider.bodies[0]["messages"][1]["content"])
            await cancelled(siblings.pop(first))  # it has not said a byte, so the next one goes first
            for answer in await asyncio.gather(*siblings):
                assert "error" not in json.loads(answer)

    plan = iter([Silent(HI, 0)])
    with Provider(chat, choose=lambda _: next(plan, HI)) as provider, ledger() as paid:
        run(work())
    assert len(provider.requests) == 5


# ---------------------------------------------------------------------------------- a provider's quota

NO_QUOTA = Fault(429, "quota")
LATER = Fault(429, "rate", {"Retry-After": "3600"})


@pytest.mark.parametrize("turn", [NO_QUOTA, LATER], ids=["no quota", "a long pause"])
def test_without_quota_a_tree_that_can_wait_is_paused_until_it_is_resumed(turn: Turn) -> None:
    notes: list[str] = []

    async def work() -> list[Any]:
        async with inferences() as made:
            paying = payer(provider, paid, raises=lambda: 0)
            paused = asyncio.Event()

            def note(text: str) -> None:
                notes.append(text)
                paused.set()

            tasks = [asyncio.ensure_future(made.infer(paying, request(), note)) for _ in range(3)]
            await paused.wait()
            assert not any(task.done() for task in tasks)
            assert [each["tree"] for each in gates(made)[0]["without_quota"]] == [tree_of(paid)]
            assert made.resume(tree_of(paid)) and not made.resume(tree_of(paid))
            return [json.loads(await task) for task in tasks]

    plan = iter([turn])
    with Provider(chat, choose=lambda _: next(plan, HI)) as provider, ledger() as paid:
        assert [answer["message"]["content"] for answer in run(work())] == [HI.text] * 3
    assert notes[0].startswith("paused until the quota is raised")


def test_a_raise_of_its_budget_resumes_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOK", 0.01)
    raised = [0]

    async def work() -> Any:
        async with inferences() as made:

            def note(text: str) -> None:
                if text.startswith("paused"):
                    asyncio.get_running_loop().call_later(0.05, raised.__setitem__, 0, 1)

            paying = payer(provider, paid, raises=lambda: raised[0])
            return json.loads(await made.infer(paying, request(), note))

    with Provider(chat, NO_QUOTA, HI) as provider, ledger() as paid:
        assert run(work())["message"]["content"] == HI.text


def test_without_quota_a_tree_that_nobody_can_raise_is_refused() -> None:
    with Provider(chat, NO_QUOTA) as provider, ledger() as paid:
        (answer,) = asked(provider, paid, request())
        assert (answer["error"], answer["hint"]) == ("refused", NO_QUOTA_LEFT)


def test_a_paused_tree_is_refused_at_its_deadline() -> None:
    with Provider(chat, NO_QUOTA) as provider, ledger(deadline=0.3) as paid:
        (answer,) = asked(provider, paid, request())
        assert (answer["error"], answer["status"]) == ("refused", 124)


# ------------------------------------------------------------------------------------------ the status


def test_no_key_is_in_the_status() -> None:
    async def work() -> str:
        async with inferences() as made:
            await made.infer(payer(provider, paid), request(), unheard)
            return json.dumps(gates(made))

    with Provider(chat, HI) as provider, ledger() as paid:
        told = run(work())
        assert KEY not in told and provider.base in told and '"started": 1' in told


def test_the_reply_is_read_as_it_was_made() -> None:
    with Provider(chat, HI) as provider, ledger() as paid:
        (answer,) = asked(provider, paid, request())
        reply = Reply.from_json(answer)
        assert (reply.message.text, reply.usage[:3]) == (HI.text, (100, 10, 40))
        assert os.fstat(paid.fd).st_ino == tree_of(paid)

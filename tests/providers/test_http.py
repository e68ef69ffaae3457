"""The file that owns the socket, against a real server: streams, silences, tries, and what is never sent."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.agent.tools import TOOLS
from quine.base import strict
from quine.base.errors import Misconfigured
from quine.base.messages import Message, Overflow, Refused, Reply, Request, Unavailable
from quine.providers import http
from quine.providers.dialects import sse
from quine.providers.dialects.chat import ChatDialect
from quine.providers.http import FIRST_PAUSE, LONGEST_PAUSE, OTHER_RETRIES, RETRIES, HttpGuest
from tests.support.blocking import BlockingGuest
from tests.vendors import chat
from tests.vendors.server import (
    KEY,
    Cut,
    Fault,
    Inside,
    Lingering,
    Provider,
    Raw,
    Said,
    Silent,
    Slow,
    Turn,
    Whole,
)

ASKED = Request([Message("system", "be"), Message("user", "do")], TOOLS)
HI = Said("hi, wörld", usage=(12, 3, 4))
SILENCE = 1.0  # seconds: the other answers of the same test must be quicker, on any machine


class Guest(BlockingGuest):
    """A guest that does not wait between its tries, but says how long it would have."""

    def __init__(self, base: str, key: str = KEY, **more: Any) -> None:
        self.pauses: list[float] = []
        self.notes: list[str] = []

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        super().__init__(lambda: HttpGuest(ChatDialect("m"), base, key, pause=pause, **more))
        self.note = self.notes.append

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def infer(*plan: Turn, **more: Any) -> tuple[Reply, Guest, Provider]:
    """One inference against a server with this plan, which must be used up."""
    with Provider(chat, *plan) as provider, Guest(f"{provider.base}/v1", **more) as guest:
        reply = guest.infer(ASKED)
    return reply, guest, provider


def fails(kind: type[Exception], *plan: Turn, **more: Any) -> tuple[Any, Guest, Provider]:
    with (
        Provider(chat, *plan) as provider,
        Guest(f"{provider.base}/v1", **more) as guest,
        pytest.raises(kind) as caught,
    ):
        guest.infer(ASKED)
    assert type(caught.value) is kind
    return caught.value, guest, provider


# ------------------------------------------------------------------------------------------ one answer


@pytest.mark.parametrize("turn", [HI, Whole(HI), Slow(HI)], ids=["streamed", "whole", "byte by byte"])
def test_an_answer(turn: Turn) -> None:
    reply, guest, provider = infer(turn)
    assert (reply.message.text, reply.stop, reply.usage[:3]) == ("hi, wörld", "end", (12, 3, 4))
    assert guest.notes == []
    (seen,) = provider.requests
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["user-agent"].startswith("quine/")


def test_half_a_surrogate_is_never_sent() -> None:
    with Provider(chat, HI) as provider, Guest(f"{provider.base}/v1") as guest:
        guest.infer(ASKED._replace(messages=[Message("system", "a\ud83db")]))
    assert provider.bodies[0]["messages"][0]["content"] == "a?b"


class Lenient:
    """A server that takes whatever is JSON."""

    error, reply_json, reply_events = chat.error, chat.reply_json, chat.reply_events

    @staticmethod
    def check(headers: Any, path: str, body: Any) -> None:
        pass


@pytest.mark.parametrize("streams", [False, True])
def test_what_came_as_nan_can_be_sent_back(streams: bool) -> None:
    said = {"content": "hi", "reasoning_details": [{"score": float("nan"), "n": float("-inf")}]}
    body = json.dumps({"choices": [{"delta" if streams else "message": said, "finish_reason": "stop"}]})
    turn = Raw(200, f"data: {body}".encode(), "text/event-stream") if streams else Raw(200, body.encode())
    with Provider(Lenient, turn, HI) as provider, Guest(f"{provider.base}/v1") as guest:
        reply = guest.infer(ASKED)
        guest.infer(ASKED._replace(messages=[*ASKED.messages, reply.message]))
    assert provider.bodies[1]["messages"][2]["reasoning_details"] == [{"score": None, "n": None}]


# ------------------------------------------------------------------------------------- one connection


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server that takes its time to end an answer: a slow machine is no reason to close a connection."""
    monkeypatch.setattr(http, "LINGER", 100.0)


def test_connections_are_kept(patient: None) -> None:
    with Provider(chat, HI, Whole(HI), HI, HI) as provider, Guest(f"{provider.base}/v1") as guest:
        for _ in range(4):
            guest.infer(ASKED)
    assert provider.connections == 1


def test_who_leaves_a_complete_answer_open_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER", 0.01)
    with Provider(chat, Lingering(HI), HI) as provider, Guest(f"{provider.base}/v1") as guest:
        assert [guest.infer(ASKED).message.text for _ in range(2)] == [HI.text] * 2
    assert provider.connections == 2
    assert provider.hung_up.is_set()


def test_a_forked_child_makes_its_own_connection(patient: None) -> None:
    with Provider(chat, HI, HI, HI) as provider, Guest(f"{provider.base}/v1") as guest:
        guest.infer(ASKED)
        if (pid := os.fork()) == 0:
            try:
                os._exit(guest.infer(ASKED).message.text != HI.text)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        guest.infer(ASKED)
    assert provider.connections == 2


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("after", [0, 2], ids=["before the first event", "in the middle"])
def test_a_signal_ends_an_inference_and_its_connection(after: int) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    def send() -> None:
        provider.silent.wait(120)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Provider(chat, Silent(HI, after)) as provider, Guest(f"{provider.base}/v1") as guest:
            thread = threading.Thread(target=send)
            thread.start()
            with pytest.raises(Interrupted):
                guest.infer(ASKED)
            thread.join()
            assert provider.hung_up.wait(120)
    finally:
        signal.signal(signal.SIGUSR1, before)


# ------------------------------------------------------------------------------------ tried once more


DEEP = b'{"choices": [{"%b": {"reasoning_details": [{"a": ' + b"[" * 500 + b"]" * 500
DEEP += b'}]}, "finish_reason": "stop"}]}'

VALUES = {"extra": [[]] * (strict.MAX_VALUES // 2)}  # two separators each: more than are read

CUTS: dict[str, Turn] = {
    "cut in good order": Cut(HI, 3),
    "torn in an event": Cut(HI, 3, torn=True),
    "torn at once": Cut(HI, 0, torn=True),
    "nothing at all": Cut(HI, 0),
    "an error inside": Inside("server", HI, 2),
    "overloaded inside": Inside("overloaded"),
    "500": Fault(500, "server"),
    "503": Fault(503, "overloaded"),
    "529": Fault(529, "overloaded"),
    "429": Fault(429, "rate"),
    "408": Fault(408, "server"),
    "a proxy's page": Raw(502, b"<html><head><title>502 Bad Gateway</title></head></html>", "text/html"),
    "no JSON": Raw(200, b'{"choices": [{"mess'),
    "an event that is no JSON": Raw(200, b'data: {"choices": [\n\n', "text/event-stream"),
    "nothing": Raw(200, b""),
    "too deep": Raw(200, DEEP % b"message"),
    "much too deep": Raw(200, b"[" * 100_000),
    "an event too deep": Raw(200, b"data: %b\n\n" % (DEEP % b"delta"), "text/event-stream"),
    "an event much too deep": Raw(200, b"data: " + b"[" * 100_000 + b"\n\n", "text/event-stream"),
    "too many values": Raw(200, json.dumps(chat.reply_json(HI) | VALUES).encode()),
    "an event of too many values": Raw(
        200, f"data: {json.dumps(chat.reply_json(HI) | VALUES)}\n\n".encode(), "text/event-stream"
    ),
}


def test_a_long_answer_of_few_values_is_read() -> None:
    long = Said(',[{"' * strict.MAX_VALUES)
    reply, guest, _ = infer(Raw(200, json.dumps(chat.reply_json(long)).encode()))
    assert (reply.message.text, guest.notes) == (long.text, [])


@pytest.mark.parametrize("turn", CUTS.values(), ids=CUTS)
def test_what_may_pass_is_tried_again(turn: Turn) -> None:
    reply, guest, provider = infer(turn, HI)
    assert reply.message.text == HI.text
    assert len(provider.requests) == 2 and provider.bodies[0] == provider.bodies[1]
    assert FIRST_PAUSE <= guest.pauses[0] <= 1.5 * FIRST_PAUSE
    assert len(guest.notes) == 1 and guest.notes[0].startswith("try 2 of ")


@pytest.mark.parametrize(
    ("turn", "tries"),
    [
        (Fault(429, "rate"), RETRIES[429]),
        (Fault(529, "overloaded"), RETRIES[529]),
        (Fault(500, "server"), OTHER_RETRIES),
        (Cut(HI), OTHER_RETRIES),
    ],
    ids=["429", "529", "500", "cut"],
)
def test_the_tries_end(turn: Turn, tries: int) -> None:
    _, guest, _ = fails(Unavailable, *[turn] * (tries + 1))
    assert len(guest.pauses) == tries
    factors = [pause / min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n, pause in enumerate(guest.pauses)]
    assert all(1 <= factor <= 1.5 for factor in factors) and len(set(factors)) == tries


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        port = held.getsockname()[1]
        with (
            Guest(f"http://127.0.0.1:{port}/v1") as guest,
            pytest.raises(Unavailable, match=rf"127.0.0.1:{port}"),
        ):
            guest.infer(ASKED)
    assert len(guest.pauses) == OTHER_RETRIES


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 3], ids=["before the first event", "in the middle"])
def test_silence_is_a_fault(after: int) -> None:
    turns: Iterator[Turn] = iter([Silent(HI, after)])  # then it answers, however often a slow one is asked
    limits = httpx.Timeout(30.0, read=SILENCE)
    with (
        Provider(chat, choose=lambda _: next(turns, HI)) as provider,
        Guest(f"{provider.base}/v1", timeout=limits) as guest,
    ):
        reply = guest.infer(ASKED)
    assert reply.message.text == HI.text
    assert "nothing came for" in guest.notes[0]
    assert provider.hung_up.is_set()


def test_a_silence_after_the_finish_loses_nothing() -> None:
    """All was said but [DONE], which some servers never say."""
    finished = len(list(chat.reply_events(HI))) - 1
    reply, guest, _ = infer(Silent(HI, finished), timeout=httpx.Timeout(30.0, read=SILENCE))
    assert (reply.message.text, guest.notes) == (HI.text, [])


# --------------------------------------------------------------------------------- not tried once more


@pytest.mark.parametrize(
    ("turn", "kind", "says"),
    [
        (Fault(400, "bad", message="no such field"), Refused, "no such field"),
        (Fault(401, "auth"), Refused, "Incorrect API key"),
        (Fault(403, "auth"), Refused, "Incorrect API key"),
        (Fault(404, "model"), Refused, "does not exist"),
        (Fault(422, "bad", message="no such field"), Refused, "no such field"),
        (Fault(402, "quota"), Refused, "quota"),
        (Fault(429, "quota"), Refused, "quota"),
        (Fault(400, "overflow"), Overflow, "maximum context length"),
        (Raw(413, b"too large", "text/plain"), Overflow, "too large"),
        (Inside("overflow"), Overflow, "maximum context length"),
        (Inside("quota", HI, 2), Refused, "quota"),
        (Raw(307, headers={"Location": "http://other.example/v1"}), Refused, "moved to http://other.example/v1"),
        (Raw(200, b" " * 11), Refused, "larger than"),
        (Raw(200, b"data: " + b"x" * 11, "text/event-stream"), Refused, "longer than 8 bytes"),
        (Raw(200, b": x\n" * 11, "text/event-stream"), Refused, "larger than"),
    ],
)  # fmt: skip
def test_what_never_helps_is_not_tried_again(
    turn: Turn, kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(turn, Raw) and turn.status == 200:  # the limits, as they were smaller
        monkeypatch.setattr(http, "LARGEST", 10)
        monkeypatch.setattr(http, "LARGEST_STREAM", 40)
        monkeypatch.setattr(sse.Decoder.__init__, "__defaults__", (8,))
    error, guest, _ = fails(kind, turn)
    assert says in str(error)
    assert guest.pauses == guest.notes == []


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after-ms": "1500", "Retry-After": "7"}, 1.5),
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": "in a minute"}, 50),
        ({"Retry-After": "0"}, FIRST_PAUSE),
        ({"Retry-After": "-3"}, FIRST_PAUSE),
        ({"Retry-After": "nan"}, FIRST_PAUSE),
        ({"Retry-After": "soon"}, FIRST_PAUSE),
    ],
)
def test_a_server_says_when(headers: dict[str, str], pause: float) -> None:
    if headers.get("Retry-After") == "in a minute":
        headers = {"Retry-After": formatdate(time.time() + 60, usegmt=True)}
    _, guest, _ = infer(Fault(429, "rate", headers), HI)
    assert pause <= guest.pauses[0] <= pause * (1.5 if pause == FIRST_PAUSE else 1.4)


@pytest.mark.parametrize("after", ["3600", "inf"])
def test_a_pause_that_is_too_long_is_told_and_not_made(after: str) -> None:
    if after == "inf":  # is no time at all
        _, guest, _ = infer(Fault(503, "server", {"Retry-After": after}), HI)
        assert len(guest.pauses) == 1
        return
    error, guest, _ = fails(Unavailable, Fault(429, "rate", {"Retry-After": after}))
    assert "it asks to wait 3600 s" in str(error)
    assert (error.after, guest.pauses) == (3600, [])


def test_a_server_forbids_or_invites_another_try() -> None:
    fails(Unavailable, Fault(500, "server", {"x-should-retry": "false"}))
    infer(Fault(400, "bad", {"x-should-retry": "true"}, "try later"), HI)
    for fault in (Fault(401, "auth"), Fault(429, "quota")):
        fails(Refused, fault._replace(headers={"x-should-retry": "true"}))
    fails(Overflow, Fault(400, "overflow", {"x-should-retry": "true"}))


# ------------------------------------------------------------------------------------ what was learned


def test_a_refused_field_is_left_out_from_then_on() -> None:
    with (
        Provider(chat, Fault(400, "bad", message="Unknown parameter: 'stream_options'."), HI, HI) as provider,
        Guest(f"{provider.base}/v1") as guest,
    ):
        guest.infer(ASKED)
        guest.infer(ASKED)
    assert [("stream_options" in body, body["stream"]) for body in provider.bodies] == [
        (True, True),
        (False, True),
        (False, True),
    ]
    assert guest.pauses == [] and "stream_options" in guest.notes[0]


def test_what_was_learned_already_is_a_refusal_the_second_time() -> None:
    refusal = Fault(400, "bad", message="Unknown parameter: 'stream_options'.")
    error, guest, _ = fails(Refused, refusal, refusal)
    assert "stream_options" in str(error) and guest.pauses == []


def test_a_login_page_is_not_asked_again() -> None:
    error, guest, _ = fails(Refused, Raw(200, b"<html><title>Log in</title></html>", "text/html"))
    assert str(error) == "the server answered with an HTML page: Log in" and "QUINE_API_BASE" in error.hint
    assert guest.pauses == []


EVENTS = "".join(
    f"data: {each if each == '[DONE]' else json.dumps(each)}\n\n" for _, each in chat.reply_events(HI)
)


@pytest.mark.parametrize(
    "turn",
    [
        Raw(200, EVENTS.encode(), "application/json"),
        Raw(200, EVENTS.encode(), "text/plain"),
        Raw(200, b"\n\n: OPENROUTER PROCESSING\n\n" + EVENTS.encode(), "application/json"),
        Raw(200, json.dumps(chat.reply_json(HI)).encode(), "text/event-stream"),
    ],
)
def test_an_answer_with_a_wrong_label(turn: Turn) -> None:
    """Servers and proxies label them wrongly: four paid tries, and a class name of ours in the message."""
    reply, guest, _ = infer(turn)
    assert (reply.message.text, guest.notes) == (HI.text, [])


def test_an_answer_of_another_form_is_shown_as_it_begins() -> None:
    for body, says in (
        (b'"text"', "it begins with 'text'"),
        (b"[1]", "it is [1]"),
        (b'{"choices": [5]}', "should be an object"),
    ):
        error, _, _ = fails(Unavailable, *[Raw(200, body)] * 4)
        assert says in str(error) and "_answer" not in str(error).lower(), error


def test_signs_of_life_alone_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STALLED", -1.0)
    error, _, _ = fails(Unavailable, *[Slow(HI)] * 4)
    assert "signs of life" in str(error)


def test_a_server_that_cannot_stream() -> None:
    _, _, provider = infer(Fault(400, "bad", message="Cannot use tools with stream"), HI)
    assert provider.bodies[1].keys() & {"stream", "stream_options"} == set()


# -------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize("base", ["host", "ftp://host", "", "http://[::1", "http://h:x/"])
def test_a_base_that_is_no_url(base: str) -> None:
    with pytest.raises(Misconfigured):
        HttpGuest(ChatDialect("m"), base, KEY)


@pytest.mark.parametrize("key", [KEY + "\n", KEY + "é", KEY + "\udc80"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    error, guest, _ = fails(Refused, key=key)
    assert KEY not in f"{error} {error.hint} {guest.notes}"


def test_a_proxy_is_not_for_servers_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with (
        Provider(chat, HI) as provider,
        Guest(provider.base.replace("127.0.0.1", "localhost") + "/v1") as guest,
    ):
        assert guest.infer(ASKED).message.text == HI.text


@pytest.mark.parametrize(
    "turn",
    [
        Fault(401, "auth", message=f"Incorrect API key provided: {KEY}."),
        Fault(400, "bad", message=f"{'x' * 485} {KEY}"),
        Raw(403, f"<html>{KEY}</html>".encode(), "text/html"),
        Inside("quota", HI, 2, message=f"No quota for {KEY}"),
        Raw(308, headers={"Location": f"http://me:{KEY}@other.example"}),
    ],
    ids=["401", "at the cut", "a page", "inside", "moved"],
)
def test_a_key_that_the_server_quotes_is_not_shown(turn: Turn) -> None:
    error, _, _ = fails(Refused, turn)
    assert not any(KEY[:size] in str(error) for size in range(7, len(KEY)))
    _, guest, _ = infer(Fault(500, "server", message=f"No answer for {KEY}"), HI)
    assert KEY not in guest.notes[0] and "<secret>" in guest.notes[0]


def test_a_password_in_the_base_is_not_shown() -> None:
    with Guest("http://me:pass@word@127.0.0.1:1/v1") as guest, pytest.raises(Unavailable) as caught:
        guest.infer(ASKED)
    assert "word" not in f"{caught.value} {guest.notes}" and "//127.0.0.1:1/v1" in str(caught.value)
    with pytest.raises(Misconfigured) as wrong:
        Guest("ftp://me:password@host/")
    assert "password" not in str(wrong.value)


def test_no_key_no_header() -> None:
    with Provider(Lenient, HI) as provider, Guest(f"{provider.base}/v1", key="") as guest:
        guest.infer(ASKED)
    assert "authorization" not in provider.requests[0].headers


# ------------------------------------------------------------------------------------------------ SSE


def decoded(data: bytes, cuts: list[int] | None = None, **more: Any) -> list[tuple[str, str]]:
    decoder = sse.Decoder(**more)
    ends = sorted({min(cut, len(data)) for cut in cuts or ()} | {len(data)})
    found: list[tuple[str, str]] = []
    at = 0
    for end in ends:
        found += decoder.feed(data[at:end])
        at = end
    return found + decoder.close()


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"event: e\ndata: a\n\ndata: b\n\n", [("e", "a"), ("", "b")]),
        (b"data: a\r\n\r\ndata: b\r\r", [("", "a"), ("", "b")]),
        (b"data: a\ndata:  b\ndata\n\n", [("", "a\n b\n")]),
        (b": ping\n\nevent: e\n\nid: 1\nretry: 5\ndata:a\n\n", [("", "a")]),
        ("\ufeffdata: ä\n\n".encode(), [("", "ä")]),
        (b"data: \xff\n\n", [("", "�")]),
        (b"data: a\n\ndata: begun", [("", "a"), ("", "begun")]),
        (b"data: a:b: c\n\n", [("", "a:b: c")]),
        (b"", []),
    ],
)  # fmt: skip
def test_the_grammar_of_events(data: bytes, events: list[tuple[str, str]]) -> None:
    assert decoded(data) == events


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", "e", "message_stop"]), st.lists(TEXT, min_size=1, max_size=3))),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400)),
)
def test_events_are_the_same_however_the_bytes_were_split(
    events: list[tuple[str, list[str]]], end: str, cuts: list[int]
) -> None:
    lines = []
    for name, texts in events:
        lines += ([f"event: {name}"] if name else []) + [f"data: {text}" for text in texts] + [": c", ""]
    data = "".join(line + end for line in lines).encode()
    assert decoded(data, cuts) == [(name, "\n".join(texts)) for name, texts in events]
    assert decoded(data, list(range(len(data)))) == decoded(data, cuts)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_make_the_same_events_however_split(data: bytes, cuts: list[int]) -> None:
    assert decoded(data, cuts) == decoded(data)


@pytest.mark.parametrize("make", [lambda n: b"data: " + b"x" * n, lambda n: b"data: xxxxxxxxx\n" * (n // 10)])
def test_an_event_is_bounded(make: Callable[[int], bytes]) -> None:
    assert decoded(make(900), longest=1000)
    with pytest.raises(sse.TooLong):
        decoded(make(1100), [500], longest=1000)


def test_an_event_comes_with_its_empty_line_and_not_later() -> None:
    decoder = sse.Decoder()
    assert decoder.feed(b"data: a\r\n\r") == [("", "a")]
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: b\n") == []
    assert decoder.feed(b"\n") == [("", "b")]


def test_a_request_is_in_memory_once() -> None:
    """As one text it was there many times over: the agent of a conversation of 50 MB took 600."""
    size = 5_000_000
    messages = [Message("user", "u"), *(Message("user", "x" * 250_000) for _ in range(size // 250_000))]
    guest = HttpGuest(ChatDialect("m"), "http://127.0.0.1:9/v1", "")
    tracemalloc.start()
    try:
        body = guest._body(Request(messages, TOOLS))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < sum(map(len, body)) < 1.1 * size
    assert peak < 1.4 * size


def test_a_server_that_is_not_there_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens to nobody
        base = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with Guest(base) as guest, pytest.raises(Unavailable) as caught:
            guest.infer(ASKED)
    assert (
        str(caught.value) == f"cannot reach the model server at {base}/chat/completions: connection refused"
    )

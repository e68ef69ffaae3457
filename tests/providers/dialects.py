"""One suite for every dialect, through a broker's inferences; each brings its class, its strict vendor and its address.

The strict vendor (tests/vendors) judges each request by its rules. A reply is compared with the vendor's words.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quine.base.messages import GuestError, Message, Overflow, Refused, Reply, Request, Unavailable
from quine.providers.dialects.faults import Adapted
from tests.broker.inferring import Guest
from tests.support.agents import Agents
from tests.tape.conversations import (
    ASKED,
    CALLS,
    Step,
    answered,
    conversation,
    replaced,
    saids,
    sent,
    steps,
    through_a_tape,
    tree,
)
from tests.vendors.server import KEY, Cut, Fault, Inside, Provider, Raw, Said, Slow, Turn, Whole

HI = Said("hi, wörld 🂡", usage=(100, 10, 40))


SLOW_OR_SHARED = [HealthCheck.differing_executors, HealthCheck.too_slow]


def examples(count: int) -> settings:
    """The suite is inherited, and each class is a test of its own."""
    return settings(max_examples=count, deadline=None, suppress_health_check=SLOW_OR_SHARED)


class Patient(Provider):
    """A client that leaves in the middle of an answer may reset its connection: that is its right."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Conformance:
    dialect: Any
    vendor: ModuleType
    model: str
    path = ""  # of the base
    kind: str

    # -- helpers -----------------------------------------------------------------------------------

    def check(self, body: Any, dialect: Any = None) -> None:
        """The vendor takes it."""
        dialect = dialect or self.dialect(self.model)
        url = dialect.url(f"http://host{self.path}")
        headers = {name.lower(): value for name, value in dialect.headers(KEY).items()}
        wrong = self.vendor.check(headers, url.removeprefix("http://host"), sent(body))
        assert wrong is None, wrong

    def streamed(self, events: list[tuple[str, Any]]) -> Any:
        """The body that these events make."""
        stream = self.dialect(self.model).stream()
        complete = [stream.feed(*event) for event in events]
        assert stream.complete and not any(complete[:-1])
        return stream.whole()

    def infer(self, *plan: Turn, request: Request = ASKED) -> tuple[Reply, Guest, Provider]:
        with Patient(self.vendor, *plan) as provider:
            guest = Guest(self.dialect(self.model), provider.base + self.path)
            try:
                return guest.infer(request), guest, provider
            finally:
                guest.close()

    # -- what is sent ------------------------------------------------------------------------------

    @examples(25)
    @given(steps)
    def test_the_vendor_takes_every_conversation(self, lived: list[Step]) -> None:
        messages = conversation(self.dialect(self.model), self.vendor, lived)
        self.check(self.dialect(self.model).body(ASKED._replace(messages=messages)))

    @examples(40)
    @given(steps, st.data())
    @pytest.mark.long
    def test_the_vendor_takes_what_is_left_of_a_conversation(
        self, lived: list[Step], data: st.DataObject
    ) -> None:
        """Messages that are missing are no reason to be refused: a tape may be torn, or edited."""
        messages = conversation(self.dialect(self.model), self.vendor, lived)
        kept = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
        left = [message for message, keep in zip(messages, kept, strict=True) if keep]
        self.check(self.dialect(self.model).body(ASKED._replace(messages=left)))

    @examples(15)
    @given(steps, saids)
    def test_what_was_sent_once_is_sent_again(self, lived: list[Step], said: Said) -> None:
        """The prefix stays: the caches of all vendors live on that."""
        dialect = self.dialect(self.model)
        messages = conversation(self.dialect(self.model), self.vendor, lived)
        reply = dialect.reply(sent(self.vendor.reply_json(said)))
        before = self.said(dialect.body(ASKED._replace(messages=messages)))
        longer = [*messages, *answered(reply.message), Message("user", "go on")]
        after = self.said(dialect.body(ASKED._replace(messages=longer)))
        assert json.dumps(after[: len(before)]) == json.dumps(before)

    def said(self, body: Any) -> list[Any]:
        """The body's parts in the order of its prefix, without marks that are no part of it."""
        raise NotImplementedError

    def test_the_limit_of_the_output(self) -> None:
        dialect = self.dialect(self.model)
        assert "16384" in json.dumps(dialect.body(ASKED))
        assert "777" in json.dumps(dialect.body(ASKED._replace(output=777)))
        self.check(dialect.body(ASKED._replace(output=1)))

    def test_no_key_no_header(self) -> None:
        headers = self.dialect(self.model).headers("")
        assert not {"authorization", "x-api-key", "x-goog-api-key"} & {name.lower() for name in headers}

    # -- what is received --------------------------------------------------------------------------

    @examples(25)
    @given(saids)
    def test_a_streamed_answer_is_the_whole_answer(self, said: Said) -> None:
        dialect = self.dialect(self.model)
        body = self.vendor.reply_json(said)
        reply = dialect.reply(body)
        assert dialect.reply(self.streamed(list(self.vendor.events(body, said)))) == reply
        assert reply.message.text == said.text or not said.text.strip()
        assert [(c.name, c.args) for c in reply.message.tool_calls] == [
            (c["name"], c["arguments"]) for c in said.calls
        ]
        assert reply.stop == ("tool" if said.calls else "end")
        assert through_a_tape(reply.message) == reply.message
        assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply

    @examples(15)
    @given(saids)
    def test_an_answer_goes_back_as_it_came(self, said: Said) -> None:
        dialect = self.dialect(self.model)
        body = self.vendor.reply_json(said)
        message = through_a_tape(dialect.reply(self.streamed(list(self.vendor.events(body, said)))).message)
        next_body = dialect.body(ASKED._replace(messages=[*ASKED.messages, *answered(message)]))
        assert json.dumps(self.returned(next_body)) == json.dumps(self.returnable(body))

    def returned(self, body: Any) -> list[Any]:
        """Return the part of a request body that gives the one reply back."""
        raise NotImplementedError

    def returnable(self, answer: Any) -> list[Any]:
        """Return the parts of its answer that the vendor wants back."""
        raise NotImplementedError

    def test_a_cut_stream_is_no_answer(self) -> None:
        events = list(self.vendor.reply_events(Said("text", CALLS, "thought")))
        for length in range(len(events)):
            stream = self.dialect(self.model).stream()
            assert sum(stream.feed(*event) for event in events[:length]) == 0
            if stream.complete:  # nothing is missing but the mark of the end
                assert length == len(events) - 1
                continue
            with pytest.raises(Unavailable, match="cut"):
                stream.whole()

    @examples(80)
    @given(st.data())
    def test_nothing_that_comes_breaks_it(self, data: st.DataObject) -> None:
        """An answer of which anything was replaced is an answer, or a GuestError; nothing else, and it can be kept."""
        odd = st.sampled_from(
            (
                None,
                True,
                0,
                -1,
                1.5,
                float("inf"),
                "",
                "x",
                [],
                {},
                [[]],
                [{}],
                {"a": []},
                ["x"],
                {"type": "x"},
            )
        )
        dialect = self.dialect(self.model)
        said = Said("text", CALLS[:2], "thought")
        body = self.vendor.reply_json(said)
        events = list(self.vendor.events(body, said))
        try:
            if data.draw(st.booleans()):
                reply = dialect.reply(replaced(body, data.draw, odd))
            else:
                stream = dialect.stream()
                for name, event in replaced(events, data.draw, odd, 2):
                    stream.feed(name, event)
                reply = dialect.reply(stream.whole())
        except GuestError as error:
            assert str(error)
        else:
            message = through_a_tape(reply.message)
            sent(dialect.body(ASKED._replace(messages=[*ASKED.messages, *answered(message)])))

    def test_errors_of_any_shape(self) -> None:
        dialect = self.dialect(self.model)
        shapes = (
            *(
                None,
                [],
                {},
                "",
                "<html>",
                5,
                {"error": None},
                {"error": "x"},
                {"error": []},
                {"detail": [{}]},
            ),
            [{"error": {"details": 1}}],
            {"error": {"code": {}, "message": [], "details": [None, {"violations": [1]}]}},
        )
        for status in (200, 400, 401, 403, 404, 413, 429, 500, 503):
            for shape in shapes:
                assert isinstance(dialect.fault(status, shape), GuestError), (status, shape)

    def test_stops(self) -> None:
        dialect = self.dialect(self.model)
        for stop in ("length", "refusal"):
            reply = dialect.reply(self.vendor.reply_json(Said("", stop=stop)))
            assert reply.stop == stop
            assert bool(reply.message.text) is (stop == "refusal")

    def test_usage(self) -> None:
        usage = self.dialect(self.model).reply(self.vendor.reply_json(HI)).usage
        assert (usage.input, usage.output, usage.cache_read, usage.reasoning) == (100, 10, 40, 5)

    # -- against a server --------------------------------------------------------------------------

    def test_tried_again_until_it_works(self) -> None:
        """One server and one client for all: a turn leaves nothing behind that breaks the next."""
        plans: list[tuple[Turn, ...]] = [
            (HI,),
            (Slow(HI),),
            (Whole(HI),),
            (Fault(429, "rate", {"Retry-After": "3"}), HI),
            (Fault(500, "server"), HI),
            (Fault(503, "overloaded"), Fault(529, "overloaded"), HI),
            (Inside("overloaded", HI, 1), HI),
            (Inside("server"), HI),
            (Cut(HI, 1), HI),
            (Cut(HI, 1, torn=True), HI),
            (Raw(502, b"<html><title>Bad Gateway</title></html>", "text/html"), HI),
            (Raw(200, b'{"choices": ['), HI),
            (Raw(200, b"data: {not json\n\n", "text/event-stream"), HI),
            (Raw(200, b"", "text/event-stream"), HI),
            (Raw(200, b""), HI),
        ]
        with Patient(self.vendor, *(turn for turns in plans for turn in turns)) as provider:
            guest = Guest(self.dialect(self.model), provider.base + self.path)
            try:
                for turns in plans:
                    guest.pauses.clear()
                    assert guest.infer(ASKED).message.text == HI.text, turns
                    assert len(guest.pauses) == len(turns) - 1, turns
                    if isinstance(turns[0], Fault) and turns[0].headers:
                        assert 3 <= guest.pauses[0] <= 4
            finally:
                guest.close()
        assert len({json.dumps(body) for body in provider.bodies}) == 1

    def test_never_tried_again(self) -> None:
        final: list[tuple[Turn, type[GuestError]]] = [
            (Fault(401, "auth"), Refused),
            (Fault(404, "model"), Refused),
            (Fault(400, "bad"), Refused),
            (Fault(429, "quota"), Refused),
            (Fault(400, "overflow"), Overflow),
            (Fault(413, "bad"), Overflow),
            (Inside("overflow"), Overflow),
            (Inside("auth", HI, 1), Refused),
            (Raw(200, b"<html>a login page</html>", "text/html"), Refused),
        ]
        with Patient(self.vendor, *(turn for turn, _ in final)) as provider:
            guest = Guest(self.dialect(self.model), provider.base + self.path)
            try:
                for number, (turn, kind) in enumerate(final, 1):
                    with pytest.raises(GuestError) as caught:
                        guest.infer(ASKED)
                    assert (type(caught.value), len(provider.requests)) == (kind, number), turn
                    assert KEY not in str(caught.value), turn
            finally:
                guest.close()

    def test_an_answer_of_nothing(self) -> None:
        reply, _, _ = self.infer(Said())
        assert (reply.message.text, reply.message.tool_calls, reply.stop) == ("", (), "end")
        self.check(self.dialect(self.model).body(ASKED._replace(messages=[*ASKED.messages, reply.message])))

    def test_it_is_learned_what_a_server_does_not_take(self) -> None:
        """One request more, the first time; afterwards it is not sent again, but where it is refused without it."""
        for message, gone in self.refusals():
            refusal = Fault(400, "bad", message=message)
            learned = self.dialect(self.model).fault(400, self.vendor.error(400, "bad", message))
            if isinstance(learned, Adapted) and isinstance(learned.fault, Overflow):
                continue  # a full context: a part that is left out for it is so for one conversation alone
            with Patient(self.vendor, refusal, HI, HI, refusal, refusal) as provider:
                guest = Guest(self.dialect(self.model), provider.base + self.path)
                for _ in range(2):
                    assert guest.infer(ASKED).message.text == HI.text
                with pytest.raises((Refused, Overflow)):
                    guest.infer(ASKED)
                guest.close()
            sent_with = [gone in json.dumps(body) for body in provider.bodies]
            assert sent_with == [True, False, False, False, True], message
            assert guest.pauses == []

    def refusals(self) -> list[tuple[str, str]]:
        """Messages of a 400, and the field that is not sent after it."""
        raise NotImplementedError

    # -- a whole agent -----------------------------------------------------------------------------

    def test_an_agent_and_its_clones(self, tmp_path: Path) -> None:
        """Commands, two children at the same time, and the end; the vendor finds nothing wrong with any request."""
        agents = Agents(tmp_path)
        with Patient(self.vendor, choose=tree) as provider:
            agents.env |= {
                "QUINE_API_TYPE": self.kind,
                "QUINE_API_BASE": provider.base + self.path,
                "QUINE_API_KEY": KEY,
                "QUINE_MODEL_ID": self.model,
            }
            done = agents.run(mission="play")
            assert (done.returncode, done.stdout, done.stderr) == (0, b"parent\n", b"")
        assert len(provider.requests) == 3 + 2 * 2
        assert sorted((tmp_path / name).read_text() for name in ("left", "right")) == ["left\n", "right\n"]
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or KEY.encode() not in path.read_bytes()
        # A child's first request begins with all that its parent's last one before the fork said.
        told = sorted((self.said(body) for body in provider.bodies), key=len)
        forked = next(body for body in told if "parent" in json.dumps(body[-1]))
        clones = [body for body in told if "You are the child" in json.dumps(body)]
        assert len(clones) == 4
        assert all(json.dumps(clone[: len(forked)]) == json.dumps(forked) for clone in clones)

"""Servers and their troubles: each server of the table answers with each trouble, in its own words, over real sockets.

Laws
1. The rows come from `servers.toml`: a new server or rule is tried without a change here. The text of an answer is a
   shortest one that the rule's pattern fits; a server without a rule of its own for a trouble has that of any server.
2. An answer that came begun is never taken for a whole one, and a call of it is never lost in silence.
3. A trouble that passes is over with the next answer: the reply comes, and the log has a line.
4. A trouble that does not pass is told once, at the first request, with what cures it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from quine.agent.tools import TOOLS
from quine.base.messages import GuestError, Message, Overflow, Refused, Reply, Request
from quine.providers import servers
from quine.providers.dialects.faults import ERRORS, REFUSALS
from quine.providers.http import HttpGuest
from tests.providers.test_servers import DIALECTS
from tests.support.agents import call
from tests.vendors import anthropic, chat, gemini, responses
from tests.vendors.server import KEY, Cut, Inside, Provider, Raw, Said, Seen, Turn

TABLE = servers.table()
VENDORS: dict[str, ModuleType] = {
    "openai": chat,
    "anthropic": anthropic,
    "gemini": gemini,
    "responses": responses,
}
BASES = {"gemini": "", "anthropic": ""}  # others have /v1
ASKED = Request([Message("system", "be"), Message("user", "do")], TOOLS)
WORK = Said("hi", (call("sh", command="echo a"),))
PASSES = ("rate", "overloaded", "loading", "unavailable")
TROUBLES = (*ERRORS, *REFUSALS)
# A text and a status for servers without a rule, as any server may have them.
PLAIN = {
    "auth": (401, "Incorrect API key provided"),
    "nomodel": (404, "The model does not exist"),
    "unavailable": (502, "Bad gateway"),
    "environment": (0, ""),  # only where a server has it
    "rate": (429, "Rate limit reached"),
}


class Cell(NamedTuple):
    server: str
    kind: str
    trouble: str
    turn: Turn
    status: int


# ------------------------------------------------------------------------------------ words of a rule


def sample(pattern: str) -> str:
    """Return a short text that a regular expression fits."""
    from re import _parser as parser  # type: ignore[attr-defined]

    text = "".join(_texts(parser.parse(pattern)))
    assert re.search(pattern, text), (pattern, text)
    return text


def _texts(parsed: Any) -> Iterator[str]:
    for kind, value in parsed:
        name = str(kind)
        if name == "LITERAL":
            yield chr(value)
        elif name in ("NOT_LITERAL", "ANY"):
            yield " "
        elif name == "IN":
            yield _member(value)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            yield "".join("".join(_texts(inner)) for _ in range(max(least, min(most, 1))))
        elif name == "SUBPATTERN":
            yield "".join(_texts(value[-1]))
        elif name == "BRANCH":
            yield "".join(_texts(value[1][0]))
        else:
            assert name in ("AT", "ASSERT", "ASSERT_NOT"), name


def _member(members: Any) -> str:
    kind, value = members[0]
    if str(kind) == "CATEGORY":
        return {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " "}.get(str(value), "x")
    return chr(value[0] if str(kind) == "RANGE" else value)


# ------------------------------------------------------------------------------------ the cells


def shaped(kind: str, status: int, code: str, text: str) -> Any:
    """Return the body of an error in the shape of a dialect."""
    if kind == "anthropic":
        return {"type": "error", "error": {"type": code or "invalid_request_error", "message": text}}
    if kind == "gemini":
        return {"error": {"code": status, "message": text, "status": code}}
    return {"error": {"message": text, "type": code or None, "param": None, "code": code or None}}


def rule_of(server: str, trouble: str) -> dict[str, Any] | None:
    own = TABLE["servers"][server]["judge"]
    return next((row for row in (*own, *TABLE["common"]["judge"]) if row["t"] == trouble), None)


def cell(server: str, kind: str, trouble: str) -> Cell | None:
    row = rule_of(server, trouble)
    if row is None:
        if trouble not in PLAIN or not PLAIN[trouble][0]:
            return None
        status, text, code = *PLAIN[trouble], ""
    else:
        status = next((each for each in row["s"] if each), 0 if row["s"] else 400)
        code = row["c"][0] if row["c"] else ""
        text = "it says: no" if code and not row["w"] else sample(row["w"][0]) if row["w"] else "no"
    body = json.dumps(shaped(kind, status, code, text)).encode()
    return Cell(server, kind, trouble, Raw(status or 200, body), status)


def cells(server: str) -> list[Cell]:
    kind = TABLE["servers"][server]["speaks"][0]
    return [found for trouble in TROUBLES if (found := cell(server, kind, trouble))]


class Lenient:
    """A vendor that takes whatever is JSON: here only its answers count."""

    def __init__(self, vendor: ModuleType) -> None:
        self.error, self.reply_json = vendor.error, vendor.reply_json
        self.reply_events = vendor.reply_events
        if hasattr(vendor, "error_event"):
            self.error_event = vendor.error_event

    @staticmethod
    def check(headers: Any, path: str, body: Any) -> None:
        pass


class Asked(NamedTuple):
    reply: Reply | GuestError
    requests: int
    notes: list[str]


def ask(
    server: str, kind: str, plans: Sequence[Sequence[Turn]], monkeypatch: pytest.MonkeyPatch
) -> list[Asked]:
    """Return the end of one inference for each plan, each by a guest of its own, at one provider."""
    left: list[Turn] = []

    def choose(seen: Seen) -> Turn:
        return left.pop(0) if left else WORK

    async def pause(seconds: float) -> None:
        pass

    async def work(base: str, provider: Provider) -> list[Asked]:
        ends = []
        for plan in plans:
            left[:] = plan
            provider.requests.clear()
            notes: list[str] = []
            guest = HttpGuest(DIALECTS[kind]("m"), base, KEY, pause=pause)
            try:
                end: Reply | GuestError = await guest.infer(ASKED, notes.append)
            except GuestError as error:
                end = error
            finally:
                await guest.close()
            ends.append(Asked(end, len(provider.requests), notes))
        return ends

    hosts = TABLE["servers"][server]["hosts"]
    with Provider(Lenient(VENDORS[kind]), choose=choose) as provider:
        path = BASES.get(kind, "/v1")
        if hosts:  # as through a proxy: the rules are those of the host's name
            monkeypatch.setenv("http_proxy", provider.base)
            return asyncio.run(work(f"http://{hosts[0]}{path}", provider))
        return asyncio.run(work(provider.base + path, provider))


def is_whole(reply: Reply | GuestError) -> bool:
    """Whether it is the reply with its one call."""
    return (
        isinstance(reply, Reply)
        and reply.message.text == "hi"
        and [(each.name, each.args) for each in reply.message.tool_calls] == [("sh", {"command": "echo a"})]
    )


# ------------------------------------------------------------------------------------ errors


def test_the_matrix_is_large() -> None:
    assert len(TABLE["servers"]) >= 20
    assert all(len(cells(server)) >= 12 for server in TABLE["servers"])


@pytest.mark.parametrize("server", TABLE["servers"])
def test_an_error_of_each_kind(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = cells(server)
    for each, asked in zip(
        row, ask(server, row[0].kind, [[each.turn] for each in row], monkeypatch), strict=True
    ):
        assert ends_as_documented(each.trouble, asked), (each, asked)


def ends_as_documented(trouble: str, asked: Asked) -> bool:
    """The table of docs/reference/guests.md."""
    reply, requests, notes = asked
    if trouble in PASSES or trouble == "malformed":
        return is_whole(reply) and requests == 2 and len(notes) == 1
    if trouble in ("overflow", "too_big"):
        return (isinstance(reply, Overflow) and requests == 1) or is_lesson(asked)
    if trouble in ("field", "demand", "badargs"):
        return (isinstance(reply, Refused) and requests == 1) or is_lesson(asked)
    hint, status = REFUSALS[trouble]
    refused = isinstance(reply, Refused) and (reply.hint, reply.status) == (hint, status) and requests == 1
    return refused or (trouble == "notools" and is_lesson(asked))


def is_lesson(asked: Asked) -> bool:
    """The request was sent once more in another form, and that helped."""
    return is_whole(asked.reply) and asked.requests == 2 and asked.notes[0].startswith("asked again with")


# ------------------------------------------------------------------------------------ answers that begin well


def broken(kind: str, every: bool) -> dict[str, tuple[Turn, Callable[[Asked], bool]]]:
    """Return streams that end badly, and their ends; `every`: after each event, else after the first and the last."""
    events = len(list(VENDORS[kind].reply_events(WORK)))
    cuts = range(1, events - 2) if every else (1, events - 3)

    def again(asked: Asked) -> bool:
        return is_whole(asked.reply) and asked.requests == 2

    ends = {f"cut after {n}": (Cut(WORK, n), again) for n in cuts}
    ends |= {f"torn after {n}": (Cut(WORK, n, torn=True), again) for n in cuts}
    ends["an error inside"] = (Inside("overloaded", WORK, 2), again)
    ends["length"] = (WORK._replace(stop="length"), lambda asked: is_end(asked, "length"))
    ends["refusal"] = (WORK._replace(stop="refusal", calls=()), lambda asked: is_end(asked, "refusal"))
    return ends


def is_end(asked: Asked, stop: str) -> bool:
    return (
        (isinstance(asked.reply, Reply) and asked.reply.stop == stop) or isinstance(asked.reply, Refused)
    ) and asked.requests == 1


@pytest.mark.parametrize("server", TABLE["servers"])
def test_an_answer_that_ends_badly(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect is cut after each event of one server: where the event is does not depend on who speaks it."""
    for kind in TABLE["servers"][server]["speaks"]:
        first = next(name for name, row in TABLE["servers"].items() if kind in row["speaks"])
        troubles = broken(kind, server == first)
        found = ask(server, kind, [[turn] for turn, _ in troubles.values()], monkeypatch)
        for (name, (_, holds)), asked in zip(troubles.items(), found, strict=True):
            assert holds(asked), (name, asked)

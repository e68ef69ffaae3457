"""The form of a dialect, and its checks of server data: it is untrusted, so it is checked here before it is used.

Laws
1. Data that is not a reply raises Unavailable, whatever its fault: a wrong type, a depth, a NaN. `read` raises nothing
   else, and the events of a stream raise nothing else but the error that they hold.
2. Data that passes can be kept on a tape and sent back.
3. A streamed answer is assembled into the body that it is without streaming, so each dialect reads only that.
4. A dialect knows which optional part of a request an error refuses. It learns nothing: that is for whoever asks.
"""

from __future__ import annotations

import abc
import itertools
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quine.base.messages import (
    DEEPEST,
    GuestError,
    Malformed,
    Overflow,
    Reply,
    Request,
    Unavailable,
    Usage,
    too_deep,
)
from quine.providers.dialects.faults import Adapted, Told, judge, no_reply, printable
from transport import quickjson

HUGE = 1e15  # no count of tokens and no price is larger
OBJECT = (
    "model_type",
    "model_attributes_type",
    "dict_type",
)  # pydantic's errors, whose texts name our classes
# Words of a server that refuses a field. "missing reasoning_content" names one, too, and demands it.
REFUSES = (
    r"unknown|unsupported|unrecognized|unexpected|extra (inputs|fields)|extra_forbidden|forbidden|"
    r"(not|n't) (be )?(support|permit|allow|accept|recogni|used|valid)\w*|invalid (param|arg|field|prop)\w*"
)
NEAR = 120  # characters between such a word and the field


def refusing(field: str) -> re.Pattern[str]:
    """Return the pattern of an error that refuses a field, which is a pattern itself."""
    return re.compile(
        rf"({REFUSES}).{{0,{NEAR}}}{field}|{field}.{{0,{NEAR}}}({REFUSES})", re.IGNORECASE | re.DOTALL
    )


class Foreign(BaseModel):
    """Demands little: servers differ in every optional field."""

    model_config = ConfigDict(extra="allow")


Model = TypeVar("Model", bound=Foreign)


def read(model: type[Model], data: Any) -> Model:
    """Return `data` as the model; the data can also be written as JSON again."""
    if not isinstance(data, dict):
        raise Unavailable(f"the server's answer is no reply: it is {printable(repr(data), 100)}")
    if too_deep(data, DEEPEST):
        raise Unavailable(f"the server's answer is no reply: it nests more than {DEEPEST} levels deep")
    try:
        quickjson.dumps(data)
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = "should be an object" if first["type"] in OBJECT else first["msg"].lower()
        raise Unavailable(f"the server's answer is no reply: {where}: {what}") from None
    except (ValueError, TypeError) as error:
        raise Unavailable(f"the server's answer is no reply: {error}") from None


def number(data: Any, *path: str) -> int:
    """Return a count somewhere in an object; 0 if it is missing, partial or null."""
    return int(amount(data, *path))


def amount(data: Any, *path: str) -> float:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    counts = isinstance(data, (int, float)) and not isinstance(data, bool)
    return data if counts and 0 < data < HUGE else 0


def unused(wanted: object, taken: set[str], made: str = "call_") -> str:
    """Return the id of a call and add it to `taken`.

    The id is new, and begins with `made`, if the server sent none, or the same one twice.
    """
    text = str(wanted) if isinstance(wanted, (str, int)) and wanted != "" else ""
    if not text or text in taken:
        text = next(name for n in itertools.count(len(taken)) if (name := f"{made}{n}") not in taken)
    taken.add(text)
    return text


def spelled(arguments: str | dict[str, Any] | None) -> str:
    """Return the arguments of a call as text. Some servers send an object, or nothing."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments or "{}"


def failed(data: Any) -> bool:
    """Return True for an error in the place of an answer; it may be the one element of an array."""
    data = data[0] if isinstance(data, list) and data else data
    return isinstance(data, dict) and bool(
        data.get("error") or data.get("type") == "error" or data.get("object") == "error"
    )


class Stream(abc.ABC):
    """Assembles one streamed answer. Each answer needs a new one."""

    def __init__(self, fault: Callable[[int, Any], GuestError]) -> None:
        self._fault = fault
        self.complete = False  # set with the last event, or by the dialect before optional ones
        self.events = 0  # that were more than a sign of life
        self._last = 0.0  # when the last of them came

    def feed(self, event: str, data: Any) -> bool:
        """Take one event; return True if it is the last one.

        `event` is its name or "", `data` is parsed JSON or the text "[DONE]". Raise a GuestError for an error event.
        """
        if event == "error" or failed(data):
            raise self._fault(200, data)
        if event == "ping" or (isinstance(data, dict) and data.get("type") == "ping"):
            return False
        try:
            last = self._take(event, data)
            self.events += 1
            self._last = time.monotonic()
        except (KeyError, TypeError, ValueError, AttributeError):
            where = f" at {event}" if event else ""
            raise Unavailable(f"the server's stream cannot be read{where}") from None
        self.complete = self.complete or last
        return last

    @property
    def quiet(self) -> float:
        """The seconds since the last event that was more than a sign of life."""
        return time.monotonic() - self._last

    @property
    def settled(self) -> bool:
        """Whether nothing is awaited any more of a complete answer but its end."""
        return self.complete

    def begun(self) -> dict[str, Any]:
        """Return the body as far as it has come."""
        return self._body()

    def whole(self) -> Any:
        """Return the body of the same answer without streaming.

        Raise Unavailable if the stream was cut before its end.
        """
        if not self.complete:
            raise Unavailable("the server's answer was cut")
        return self._body()

    @abc.abstractmethod
    def _take(self, event: str, data: Any) -> bool:
        """Take one event; return True if it is the last one. May raise as a wrong access to `data` does."""

    @abc.abstractmethod
    def _body(self) -> dict[str, Any]: ...


class Dialect(abc.ABC):
    """Pure: values to a request, an answer to values. It never sees a socket."""

    KIND: ClassVar[str]  # its name among the dialects, as in QUINE_API_TYPE
    SPARE: ClassVar[Mapping[str, re.Pattern[str]]] = {}  # optional parts, and the error that refuses each
    # Parts of SPARE whose refusal may be about this conversation: its blocks, or the length of its reply.
    OWN = ("output", "thinking", "thoughts", "cache", "reasoning", "unreasoned", "signatures")
    REFUSALS: ClassVar[tuple[int, ...]] = (400, 422)  # statuses of such an error; a 500 has other causes

    def __init__(self, model: str) -> None:
        self._model = model
        self.host = ""  # of the server, in small letters

    def url(self, base: str) -> str:
        """Return the URL to POST to. `base` is as configured, without a slash at its end. Called before `body`."""
        self.host = re.sub(r"^https?://(?:[^/?#]*@)?|[:/?#].*$", "", base.lower())
        return self._url(base)

    @abc.abstractmethod
    def _url(self, base: str) -> str: ...

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    @abc.abstractmethod
    def body(self, request: Request, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the request body, `without` parts of SPARE. It asks for a stream, unless the URL already does."""

    @abc.abstractmethod
    def stream(self) -> Stream: ...

    @abc.abstractmethod
    def reply(self, data: Any) -> Reply:
        """Return the reply in a whole body. Raise a GuestError if `data` is an error, or not a reply."""

    @abc.abstractmethod
    def usage(self, data: dict[str, Any]) -> Usage:
        """Return the usage that a body tells, which may have been cut."""

    @abc.abstractmethod
    def fault(self, status: int, data: Any) -> GuestError:
        """Return the error for an HTTP status and a body (parsed JSON, or text) that is not a reply."""

    def _answer(self, model: type[Model], data: Any) -> Model:
        """Return `data` as the model. Raise the error that stands in its place."""
        if failed(data):
            raise self.fault(200, data)
        if isinstance(data, str):
            raise no_reply(data)
        return read(model, data)

    def _judged(self, status: int, said: Told) -> GuestError:
        return judge(status, said, self.host, self.KIND)

    def _adapted(self, fault: GuestError, status: int, message: str) -> GuestError:
        """Return Adapted if the error refuses an optional part, else `fault`.

        A full context refuses none but the length of the reply. An error may hold words of the model, too: a server
        that cannot read it quotes it, and other agents were to go without what it spoke of.
        """
        if status not in self.REFUSALS or isinstance(fault, (Malformed, Unavailable)):
            return fault
        refused = frozenset(part for part, refusal in self.SPARE.items() if refusal.search(message))
        if isinstance(fault, Overflow):
            refused &= {"output"}
        return Adapted(fault, refused) if refused else fault

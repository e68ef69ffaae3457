"""A hostile node: a program that stands where a host keeps the quine binary, and misbehaves by plan.

The origin's dial runs it in place of `quine node --dial`: its stdin and stdout are the link. The plan is a file of JSON
lines, each a step, a list of a word and its arguments:

    ["shell", TEXT, N]        it is the command of the host itself: read the origin's line of shell, and answer N times
                              this text, with its marker in the place of MARKER
    ["pour", FD, TEXT, N]     N times this text (latin-1) to a descriptor, 1 or 2, as fast as it is taken
    ["say", HEX]              bytes as they are
    ["greet", {CHANGE}]       read the origin's hello and answer it, with these fields otherwise; null leaves one out
    ["await", KIND, COUNT]    until so many frames of that kind have come; the channel of the last spawn is then "job"
    ["frame", {FIELDS}]       kind, channel, stream, offset; payload (text) or json; length, where it lies about it
    ["flood", {FIELDS}…, N]   N times these frames, as fast as the pipe takes them; [first, step] is counted on
    ["drip", HEX, SECONDS]    byte by byte, so far apart
    ["until", PATH]           until there is such a file
    ["once"]                  when it is run again, hold from here
    ["deaf"]                  read nothing more
    ["mark"]                  note "begun" in PLAN.done
    ["seen"]                  lawfully, what the origin has sent so far
    ["attach"]                a lawful answer to the spawn
    ["jobs", STEP…]           these steps for one job after the other, as their spawns come; "job" is that one
    ["crowd", N, NAME, …]     "ask" so many times at once
    ["of", WORD, STEP…]       these steps if the command of the job has that word
    ["output", STREAM, TEXT, N]   N times this text as output of the job, as fast as its window allows
    ["ask", NAME, BODY]       a lawful request of the job: a body (TREE is its tree), and its answer, to PLAN.said
    ["ask", NAME, [[TEXT, N]…]]   the same with a body of N times each text, one behind the other
    ["exit", {CHANGE}]        a lawful end of the job, with these fields otherwise
    ["hold"]                  nothing more, until the origin hangs up

Laws
1. It is a process of its own and uses the product's own encoder: it breaks a rule of the wire only by intent.
2. It answers pings, and reads what comes unless it is told to be deaf, so that nothing but its plan ends the link.
3. A line for each step that it has done goes to PLAN.done, so that a test can wait for it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from transport import this_build
from transport.status import Status
from transport.wire.flow import INITIAL_WINDOW, QUICK_WINDOW
from transport.wire.frames import (
    BESIDE,
    CHUNK,
    GREETING,
    HEADER,
    LIFE,
    VERSION,
    Decoder,
    Frame,
    Kind,
    encode,
    pack,
)

BLOCK = 1 << 16
STREAMING = ("stage", "fs")


class Started(NamedTuple):
    """A job that came."""

    channel: int
    argv: list[str]
    tree: str
    capability: str


class Double:
    def __init__(self, plan: Path) -> None:
        self._steps = [json.loads(line) for line in plan.read_text().splitlines() if line.strip()]
        self._plan = plan
        self._news = threading.Condition()
        self._counts: Counter[int] = Counter()  # frames by kind
        self._bytes_heard = 0
        self._acked: dict[tuple[int, int], int] = {}  # (channel, stream) -> offset
        self._stopped: set[int] = set()  # channels of which the origin reads no more
        self._answers: dict[int, list[bytes]] = {}  # of our requests
        self._plain: set[int] = set()  # our requests whose body is gathered before it is handled
        self._replies: dict[int, Frame] = {}
        self._line = b""  # of shell
        self._hello: dict[str, Any] = {}
        self._deaf = False
        self._gone = False
        self._write_lock, self._opening = threading.Lock(), threading.Lock()
        self._templates: dict[int, dict[str, Any]] = {}
        self._spawns: list[Started] = []
        self._turn = -1  # the number of the job that the steps are about; -1: the last one
        self._numbers = itertools.count(2, 2)  # of our requests
        self._sent: dict[tuple[int, int], int] = {}  # bytes of the outputs of jobs

    @property
    def _job(self) -> int:
        return self._spawns[self._turn].channel if self._spawns else 1

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        try:
            for word, *rest in self._steps:
                getattr(self, f"step_{word}")(*rest)
                self._note("done", word)
        except (BrokenPipeError, ConnectionResetError):
            self._note("done", "refused")
        else:
            self._note("done", "end")

    def _note(self, file: str, text: str) -> None:
        with open(f"{self._plan}.{file}", "a") as out:
            out.write(text + "\n")

    def _read(self) -> None:
        decoder = Decoder()
        if any(step[0] == "shell" for step in self._steps):
            line = b""
            while not line.endswith(b"\n") and (data := os.read(0, BLOCK)):
                line += data
            with self._news:
                self._line = line
                self._news.notify_all()
        while not self._deaf:
            data = os.read(0, BLOCK)
            if not data:
                break
            for frame in decoder.feed(data):
                if frame.kind == Kind.PING and frame.stream == 0:
                    self._send(encode(Frame(Kind.PING, 0, 1, frame.offset)))
                with self._news:
                    self._take(frame)
                    self._news.notify_all()
        with self._news:
            self._gone = not self._deaf
            self._news.notify_all()

    def _take(self, frame: Frame) -> None:
        number = frame.channel
        if frame.kind == Kind.HELLO:
            self._hello = frame.body()
        elif frame.kind == Kind.TEMPLATE:
            self._templates[frame.offset] = frame.body()
        elif frame.kind == Kind.SPAWN and frame.stream == 0:
            body = {**self._templates.get(frame.offset, {}), **frame.body()}
            self._spawns.append(
                Started(number, body["argv"], body.get("tree", body["id"]), body.get("capability", ""))
            )
        elif frame.kind == Kind.ACK:
            self._acked[number, frame.stream] = frame.offset
        elif frame.kind == Kind.STOP:
            self._stopped.add(number)
        elif frame.kind == Kind.DATA and number % 2 == 0:
            self._answers.setdefault(number, []).append(bytes(frame.payload))
            read = frame.offset + len(frame.payload)
            self._send(encode(Frame(Kind.ACK, number, frame.stream, read)))
        elif frame.kind == Kind.REPLY:
            self._replies[number] = frame
        self._counts[frame.kind] += 1
        if frame.kind not in BESIDE:
            self._bytes_heard += HEADER.size + len(frame.payload)

    def _send(self, data: bytes) -> None:
        with self._write_lock:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]

    def _bytes(self, fields: dict[str, Any], turn: int = 0) -> bytes:
        def number(name: str) -> int:
            value = fields.get(name, 0)
            if value == "job":
                return self._job
            return value[0] + turn * value[1] if isinstance(value, list) else int(value)

        kind = getattr(Kind, fields["kind"]) if isinstance(fields["kind"], str) else fields["kind"]
        if "json" in fields:
            payload = json.dumps(fields["json"]).replace('"JOB"', str(self._job)).encode()
        else:
            payload = fields.get("payload", "").encode("latin-1") * fields.get("times", 1)
        stream = LIFE if fields.get("stream") == "life" else number("stream")
        length = fields.get("length", len(payload))
        return HEADER.pack(length, kind, stream, number("channel"), number("offset")) + payload

    # -- the steps -----------------------------------------------------------------------------------

    def step_say(self, text: str) -> None:
        self._send(bytes.fromhex(text))

    def step_greet(self, change: dict[str, Any]) -> None:
        self._send(GREETING)
        with self._news:
            self._news.wait_for(lambda: self._hello or self._gone)
        told = {
            "version": VERSION, "build": this_build.build_hash(), "node": "double", "boot": "b", "pid": os.getpid(),
            "link": self._hello.get("link"), "seen": 0, "resume": self._hello.get("resume"),
            "attempt": self._hello.get("attempt"), **change,
        }  # fmt: skip
        self._send(encode(Frame(Kind.HELLO, payload=pack({k: v for k, v in told.items() if v is not None}))))

    def step_await(self, kind: str, count: int = 1) -> None:
        self._wait(lambda: self._counts[getattr(Kind, kind)] >= count)

    def _wait(self, come: Callable[[], bool]) -> None:
        with self._news:
            self._news.wait_for(lambda: come() or self._gone)
            if not come():
                raise BrokenPipeError

    def step_shell(self, text: str, times: int = 1) -> None:
        self._wait(lambda: bool(self._line))
        found = re.search(r"echo ([0-9a-f]{32}) ", self._line.decode("latin-1"))
        assert found, self._line
        self.step_pour(1, text.replace("MARKER", found[1]), times)

    def step_pour(self, fd: int, text: str, times: int) -> None:
        block = text.encode("latin-1")
        many = max(1, min(times, BLOCK // len(block)))
        for _ in range(0, times, many):
            view = memoryview(block * many)
            while view:
                view = view[os.write(fd, view) :]

    def step_jobs(self, *steps: list[Any]) -> None:
        for self._turn in itertools.count():
            self._wait(lambda: len(self._spawns) > self._turn)
            self._steps_of(steps)

    def step_of(self, word: str, *steps: list[Any]) -> None:
        if word in self._spawns[self._turn].argv:
            self._steps_of(steps)

    def _steps_of(self, steps: Iterable[list[Any]]) -> None:
        for word, *rest in steps:
            getattr(self, f"step_{word}")(*rest)

    def step_mark(self) -> None:
        self._note("done", "begun")

    def step_output(self, stream: int, text: str, times: int) -> None:
        self._sent[self._job, stream] = self._pass_on(self._job, stream, ((text, times),))

    def step_attach(self) -> None:
        self._send(self._bytes({"kind": "ATTACH", "channel": "job", "stream": "life", "json": {"pid": 4711}}))

    def step_exit(self, change: dict[str, Any]) -> None:
        for stream in (1, 2):
            offset = self._sent.pop((self._job, stream), 0)
            self._send(self._bytes({"kind": "EOF", "channel": "job", "stream": stream, "offset": offset}))
        status = {**Status("exited", 0, pid=4711).to_json(), **change}
        self._send(self._bytes({"kind": "EXIT", "channel": "job", "stream": "life", "json": status}))

    def step_frame(self, fields: dict[str, Any]) -> None:
        self._send(self._bytes(fields))

    def step_flood(self, *frames_and_count: Any) -> None:
        *frames, count = frames_and_count
        size = sum(len(self._bytes(fields)) for fields in frames)
        each = max(1, BLOCK // size)
        block = b""
        for turn in range(0, count, each):
            if not block or any(isinstance(value, list) for fields in frames for value in fields.values()):
                turns = range(turn, turn + each)
                block = b"".join(self._bytes(fields, turn) for turn in turns for fields in frames)
            self._send(block)

    def step_drip(self, text: str, seconds: float) -> None:
        for byte in bytes.fromhex(text):
            self._send(bytes([byte]))
            time.sleep(seconds)

    def step_deaf(self) -> None:
        self._deaf = True

    def step_once(self) -> None:
        if os.path.exists(f"{self._plan}.done"):
            self.step_hold()
            raise BrokenPipeError

    def step_until(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    def step_ask(self, name: str, body: str | list[tuple[str, int]]) -> None:
        """The answer is noted as JSON: [error, reply]."""
        asked = {"name": name, "job": self._job, "capability": self._spawns[self._turn].capability}
        with self._opening:  # numbers rise
            number = next(self._numbers)
            if name not in STREAMING:
                self._plain.add(number)
            self._send(encode(Frame(Kind.REQUEST, number, payload=pack(asked))))
        at = self._pass_on(number, 0, [(body, 1)] if isinstance(body, str) else body)
        self._send(encode(Frame(Kind.EOF, number, 0, at)))
        self._wait(lambda: number in self._replies)
        answer = b"".join(self._answers.pop(number, []))
        error = self._replies.pop(number).body()["error"]
        self._note("said", json.dumps([error, answer.decode("latin-1")]))
        self._send(encode(Frame(Kind.ACK, number, LIFE)))

    def step_crowd(self, count: int, name: str, body: str | list[tuple[str, int]]) -> None:
        asking = [threading.Thread(target=self.step_ask, args=(name, body)) for _ in range(count)]
        for each in asking:
            each.start()
        for each in asking:
            each.join()

    def _pass_on(self, number: int, stream: int, parts: Iterable[tuple[str, int]]) -> int:
        """Send so many times each text as the bytes of a stream; return how many there were."""
        tree, at = self._spawns[self._turn].tree, 0
        for text, times in parts:
            block = text.replace("TREE", tree).encode("latin-1")
            many = max(1, min(times, BLOCK // len(block)))
            whole, rest = divmod(times, many)
            for turn in range(whole + (rest > 0)):
                data = block * (many if turn < whole else rest)
                while data:
                    with self._news:
                        self._news.wait_for(
                            lambda at=at: self._unread(number) or self._credit(number, stream, at)
                        )
                    if self._unread(number):
                        return at
                    piece = data[: min(CHUNK, self._credit(number, stream, at))]
                    self._send(encode(Frame(Kind.DATA, number, stream, at, piece)))
                    at += len(piece)
                    data = data[len(piece) :]
        return at

    def _unread(self, number: int) -> bool:
        return self._gone or number in self._stopped or number in self._replies

    def _credit(self, number: int, stream: int, at: int) -> int:
        window = INITIAL_WINDOW if number in self._plain else QUICK_WINDOW
        return self._acked.get((number, stream), 0) + window - at

    def step_seen(self) -> None:
        """Tell the origin that all bytes it has sent were seen."""
        self._send(HEADER.pack(0, Kind.SEEN, 0, 0, self._bytes_heard))

    def step_hold(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._gone)


if __name__ == "__main__":
    Double(Path(sys.argv[1])).run()

"""A hostile node: a program that stands where a host keeps the quine binary, and misbehaves by plan.

The origin's dial runs it in place of `quine node --dial`: its stdin and stdout are the link. The plan is a file of JSON
lines, each a step, a list of a word and its arguments:

    ["say", HEX]              bytes as they are
    ["greet", {CHANGE}]       read the origin's hello and answer it, with these fields otherwise; null leaves one out
    ["await", KIND, COUNT]    until so many frames of that kind have come; the channel of the last spawn is then "job"
    ["frame", {FIELDS}]       kind, channel, stream, offset; payload (text) or json; length, where it lies about it
    ["flood", {FIELDS}…, N]   N times these frames, as fast as the pipe takes them; [first, step] is counted on
    ["drip", HEX, SECONDS]    byte by byte, so far apart
    ["until", PATH]           until there is such a file
    ["once"]                  when it is run again, hold from here
    ["deaf"]                  read nothing more
    ["seen"]                  lawfully, what the origin has sent so far
    ["attach"]                a lawful answer to the spawn
    ["ask", NAME, BODY]       a lawful request of the job: a body (TREE is its tree), and its answer, to PLAN.said
    ["exit", {CHANGE}]        a lawful end of the job, with these fields otherwise
    ["hold"]                  nothing more, until the origin hangs up

Laws
1. It is a process of its own and uses the product's own encoder: it breaks a rule of the wire only by intent.
2. It answers pings, and reads what comes unless it is told to be deaf, so that nothing but its plan ends the link.
3. A line for each step that it has done goes to PLAN.done, so that a test can wait for it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from transport import this_build
from transport.status import Status
from transport.wire.flow import INITIAL_WINDOW
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


class Double:
    def __init__(self, plan: Path) -> None:
        self._steps = [json.loads(line) for line in plan.read_text().splitlines() if line.strip()]
        self._plan = plan
        self._news = threading.Condition()
        self._frames: list[Frame] = []
        self._hello: dict[str, Any] = {}
        self._deaf = False
        self._gone = False
        self._write_lock = threading.Lock()
        self._job = 1
        self._capability = ""
        self._tree = ""
        self._asked = 0

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
        while not self._deaf:
            data = os.read(0, BLOCK)
            if not data:
                break
            for frame in decoder.feed(data):
                if frame.kind == Kind.PING and frame.stream == 0:
                    self._send(encode(Frame(Kind.PING, 0, 1, frame.offset)))
                with self._news:
                    if frame.kind == Kind.HELLO:
                        self._hello = frame.body()
                    elif frame.kind == Kind.SPAWN:
                        self._job, self._tree = frame.channel, frame.body()["tree"]
                        self._capability = frame.body()["capability"]
                    self._frames.append(frame)
                    self._news.notify_all()
        with self._news:
            self._gone = not self._deaf
            self._news.notify_all()

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
        def come() -> bool:
            return sum(frame.kind == getattr(Kind, kind) for frame in self._frames) >= count

        with self._news:
            self._news.wait_for(lambda: come() or self._gone)
        if not come():
            raise BrokenPipeError

    def step_attach(self) -> None:
        self._send(self._bytes({"kind": "ATTACH", "channel": "job", "stream": "life", "json": {"pid": 4711}}))

    def step_exit(self, change: dict[str, Any]) -> None:
        for stream in (1, 2):
            self._send(self._bytes({"kind": "EOF", "channel": "job", "stream": stream}))
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

    def step_ask(self, name: str, text: str) -> None:
        """The answer is noted as JSON: [error, reply]."""
        self._asked += 2
        number, body, at = self._asked, text.replace("TREE", self._tree).encode(), 0
        asked = {"name": name, "job": self._job, "capability": self._capability}
        self._send(encode(Frame(Kind.REQUEST, number, payload=pack(asked))))
        while at < len(body):
            piece = body[at : at + CHUNK]
            self._send(encode(Frame(Kind.DATA, number, 0, at, piece)))
            at += len(piece)
            with self._news:
                self._news.wait_for(partial(self._takes, number, at))
        self._send(encode(Frame(Kind.EOF, number, 0, at)))
        with self._news:
            self._news.wait_for(lambda: self._of(Kind.REPLY, number) or self._gone)
        (reply,) = self._of(Kind.REPLY, number)
        answer = b"".join(frame.payload for frame in self._of(Kind.DATA, number))
        self._note("said", json.dumps([reply.body()["error"], answer.decode()]))
        self._send(encode(Frame(Kind.ACK, number, LIFE)))

    def _of(self, kind: int, number: int) -> list[Frame]:
        return [frame for frame in self._frames if (frame.kind, frame.channel) == (kind, number)]

    def _takes(self, number: int, at: int) -> bool:
        """Whether there is room for more; also True where the reader has gone: a hostile node sends on."""
        acked = max((frame.offset for frame in self._of(Kind.ACK, number)), default=0)
        return self._gone or at - acked < INITIAL_WINDOW or bool(self._of(Kind.STOP, number))

    def step_seen(self) -> None:
        """Tell the origin that all bytes it has sent were seen."""
        with self._news:
            sent = sum(len(encode(frame)) for frame in self._frames if frame.kind not in BESIDE)
        self._send(HEADER.pack(0, Kind.SEEN, 0, 0, sent))

    def step_hold(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._gone)


if __name__ == "__main__":
    Double(Path(sys.argv[1])).run()

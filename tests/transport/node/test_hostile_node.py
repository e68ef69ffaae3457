"""A node that breaks the rules: its link ends with a line in the log, its clients are told, nobody else notices."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutate import MEGABYTE
from tests.lab import Host, Lab
from tests.transport.node.hostile_hosts import Ended, Plan, Stage
from transport.wire.frames import BULK_PAYLOAD, GREETING, HEADER, MAX_PAYLOAD, VERSION, Frame, Kind, encode

BOUND = 48 * MEGABYTE  # by which the node here may grow, whatever one hostile node does
GREET: list[Any] = ["greet", {}]
HOLD: list[Any] = ["hold"]
BEGIN: Plan = [GREET, ["await", "SPAWN"], ["attach"]]


@pytest.fixture
def bad(odd_host: Callable[..., Host]) -> Host:
    return odd_host("bad")


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    made = Stage(lab)
    yield made
    made.close()
    assert "Traceback" not in made.log(), made.log()
    assert made.grown() < BOUND, f"{made.grown() >> 20} MB"


def served(stage: Stage, ended: Ended) -> None:
    """The good node was as quick as before, on a machine that the flood and others have to share with it."""
    print(f"beat {stage.usual * 1e3:.2f} ms -> {ended.median * 1e3:.2f} ms ({len(ended.beats)})")
    assert ended.median < 10 * stage.usual + 1, (stage.usual, ended.median)


def hello(payload: str) -> Plan:
    """A hello that says this."""
    return [["say", (GREETING + encode(Frame(Kind.HELLO, payload=payload.encode("latin-1")))).hex()], HOLD]


NAME = "ab" * 16
HALF = "\\ud800"
FIRST_WORDS: dict[str, tuple[Plan, str]] = {
    "noise": ([["say", "6e" * 70_000], HOLD], "not a quine node"),
    "no hello": ([["say", (GREETING + encode(Frame(Kind.PING))).hex()], HOLD], "first frame is not a hello"),
    "a spawn at once": ([["say", (GREETING + encode(Frame(Kind.SPAWN, 2, payload=b"{}"))).hex()], HOLD],
                        "first frame is not a hello"),
    "gigantic": ([["say", (GREETING + HEADER.pack(0xFFFFFFFF, 1, 0, 0, 0)).hex()], HOLD], "frame of 4294967295"),
    "unknown kind": ([["say", (GREETING + HEADER.pack(0, 99, 0, 0, 0)).hex()], HOLD], "unknown kind 99"),
    "version": ([["greet", {"version": 99}], HOLD], f"protocol version 99, this is {VERSION}"),
    "version of a thousand digits": (hello('{"version": ' + "9" * 4000 + "}"), "protocol version 9999"),
    "build": ([["greet", {"build": "0" * 64}], HOLD], "another build"),
    "no build": ([["greet", {"build": None}], HOLD], "another build"),
    "an origin that is none": ([["greet", {"origin": 1, "began": 1}], HOLD], "hello with a bad origin"),
    "an origin without a beginning": ([["greet", {"origin": "x"}], HOLD], "hello with a bad origin"),
    "no link": ([["greet", {"link": None}], HOLD], "hello without a link"),
    "another link": ([["greet", {"link": NAME}], HOLD], "another link"),
    "seen backwards": ([["greet", {"seen": -1}], HOLD], "bad count"),
    "seen no number": ([["greet", {"seen": "0"}], HOLD], "bad count"),
    "no attempt": ([["greet", {"attempt": None}], HOLD], "without the number of its attempt"),
    "attempt no number": ([["greet", {"attempt": True}], HOLD], "without the number of its attempt"),
    "seen beyond": ([["greet", {"seen": 10**9}], HOLD], "1000000000 bytes seen, outside 0..0"),
    "no JSON": (hello("{"), "without a JSON object"),
    "a list": (hello("[]"), "without a JSON object"),
    "deep": (hello("[" * 60_000), "without a JSON object"),
    "NaN": (hello('{"version": NaN}'), "without a JSON object"),
    "infinite": (hello('{"version": 1e999}'), "without a JSON object"),
    "twice": (hello(f'{{"version": {VERSION}, "version": 3}}'), "protocol version 3"),
    "half a character": (hello(f'{{"version": {VERSION}, "link": "{HALF * 32}"}}'), "hello without a link"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", FIRST_WORDS)
def test_first_words(stage: Stage, bad: Host, case: str) -> None:
    """Nothing was started: 69, and why."""
    plan, rule = FIRST_WORDS[case]
    stage.give(bad, plan)
    ended = stage.against(bad)
    assert (ended.status, ended.out) == (69, b"")
    assert "quine: bad: error: " in ended.err and rule in ended.err, ended.err
    assert re.search(f"bad: .*{re.escape(rule)}", stage.log()), stage.log()
    assert stage.log().count("connect to bad") == 1  # it was no break that another dial would mend
    served(stage, ended)


def frame(
    kind: str | int, stream: int | str = "life", channel: int | str = "job", offset: int = 0, **more: Any
) -> list[Any]:
    return ["frame", {"kind": kind, "stream": stream, "channel": channel, "offset": offset, **more}]


def spent(seconds: str) -> Plan:
    """An end that took so long."""
    return [frame("EXIT", payload=f'{{"state":"exited","code":0,"rusage":{{"utime":{seconds}}}}}')]


EXIT = {"state": "exited", "code": 0}
PART = {"kind": "REQUEST", "channel": 2, "stream": 1, "payload": "x", "times": 60_000}
ACK = {"kind": "ACK", "channel": 1, "stream": 0}
LATER: dict[str, tuple[Plan, str]] = {
    "data beyond a hole": ([frame("DATA", 1, offset=5, payload="x")], "data at offset 5, expected 0"),
    "data sent again": ([frame("DATA", 1, payload="x"), frame("DATA", 1, payload="x")], "data at offset 0, expected 1"),
    "data after its end": ([frame("EOF", 1), frame("DATA", 1, payload="x")], "data after the end"),
    "data of the origin's stream": ([frame("DATA", 0, payload="x")], "data from the server on stream 0"),
    "data of no stream": ([frame("DATA", 3, payload="x")], "data from the server on stream 3"),
    "data for the link": ([frame("DATA", 1, 0, payload="x")], "data for channel 0"),
    "end twice": ([frame("EOF", 1), frame("EOF", 1)], "second end"),
    "end elsewhere": ([frame("EOF", 1, offset=9)], "end of stream at offset 9"),
    "ack beyond sent": ([frame("ACK", 0, offset=10**9)], "acknowledgement of 1000000000"),
    "last word of a server": ([frame("ACK")], "ack from the server on stream 255"),
    "seen beyond sent": ([frame("SEEN", 0, 0, 10**9)], "1000000000 bytes seen"),
    "seen inside a frame": ([frame("SEEN", 0, 0, 7)], "in the middle of a frame"),
    "attach twice": ([frame("ATTACH", json={"pid": 1})], "attach from the server"),
    "exit twice": ([frame("EXIT", json=EXIT)] * 2, "exit from the server on stream 255 while ended"),
    "stop twice": ([frame("STOP", 0)] * 2, "second stop"),
    "data without bytes": ([frame("DATA", 1)], "data without bytes"),
    "a note": ([frame("NOTE", json={"up": False, "seconds": 9, "why": "because"})], "note from another node"),
    "request without a name": ([frame("REQUEST", 0, 2, json={"name": [], "job": 1})], "request without a name"),
    "request of a long name": ([frame("REQUEST", 0, 2, json={"name": "x" * 65, "job": 1})], "request without a name"),
    "exit that is none": ([frame("EXIT", json={"state": "great"})], "exit frame without a status"),
    "exit of depth": (spent("[" * 600 + "]" * 600), "exit frame without a status"),
    "exit of infinity": (spent("1e999"), "exit frame without a JSON object"),
    "exit of NaN": (spent("NaN"), "exit frame without a JSON object"),
    "pid no number": ([["exit", {"pid": "1"}]], "exit frame without a status"),
    "reply to nothing": ([frame("REPLY", "life", 7, json={"error": None})], "reply for channel 7"),
    "reply to a spawn": ([frame("REPLY", json={"error": None})], "reply from the server"),
    "request under a number of ours": ([frame("REQUEST", 0, 3, json={"name": "life", "job": 1})], "not a new one"),
    "request that is none": ([frame("REQUEST", 0, 2, payload="x")], "request frame without a JSON object"),
    "second hello": ([frame("HELLO", 0, 0, json={"version": VERSION})], "second hello"),
    "signal to us": ([frame("SIGNAL", json={"signal": "KILL"})], "signal from the server"),
    "unknown kind": ([frame(99, 0, 0)], "unknown kind 99"),
    "gigantic": ([frame("DATA", 1, length=BULK_PAYLOAD + 1)], f"frame of {BULK_PAYLOAD + 1} bytes"),
    "large, and no output": ([frame("DATA", 0, length=MAX_PAYLOAD + 1)], f"frame of {MAX_PAYLOAD + 1} bytes"),
    "an opening without end": ([["flood", PART, 99]], "request of more than"),
    "acks of nothing new": ([["flood", ACK, 9999]], "a flood of acknowledgements"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", LATER)
def test_later(stage: Stage, bad: Host, case: str) -> None:
    """The job was started, so its outcome is not known: 74, and such a node is not dialled again."""
    plan, rule = LATER[case]
    stage.give(bad, [*BEGIN, *plan, HOLD])
    ended = stage.against(bad)
    assert ended.status == 74, ended.err
    assert "quine: bad: error: connection lost: protocol error: " in ended.err and rule in ended.err, (
        ended.err
    )
    assert re.search(f"bad: link ended: protocol error: .*{re.escape(rule)}", stage.log()), stage.log()
    served(stage, ended)


def test_what_no_node_may_do(stage: Stage, bad: Host, tmp_path: Path) -> None:
    """One after the other on one host, each by a link of its own.

    A spawn: a dialled node serves and is not served, otherwise the owner of a host could run commands at the origin.
    Bytes that were seen cannot be unseen: the origin has dropped them. And the origin cannot check the work of a host,
    but it never reports a started job as never started.
    """
    mark = tmp_path / "it-ran"
    spawn = {"id": "a", "tree": "t", "argv": ["touch", str(mark)]}
    refused = "spawn from a node that was dialled"
    plans: list[tuple[Plan, str]] = [
        ([frame("SPAWN", 0, 2, json=spawn)], refused),
        ([frame("SPAWN", 0, 2, json={**spawn, "where": "local"})], refused),
        ([["seen"], frame("SEEN", 0, 0, 0)], "0 bytes seen, outside"),
        ([["exit", {"state": "unreachable", "code": 69, "detail": "never started"}]], "exit frame"),
        ([["exit", {"state": "lost", "detail": "gone"}]], "exit frame"),
        ([["exit", {"state": "signaled", "code": 147, "signal": "STOP"}]], "exit frame"),
    ]
    for plan, rule in plans:
        stage.give(bad, [*BEGIN, *plan, HOLD])
        ended = stage.against(bad)
        assert ended.status == 74 and rule in ended.err, (plan, ended.err)
    assert "bad: link ended: protocol error: spawn from" in stage.log()
    stage.give(bad, [GREET, ["await", "SPAWN"], ["exit", {}], HOLD])
    ended = stage.against(bad)
    assert ended.status == 74 and "that was never started" in ended.err
    # On another host it could be for a job that has just ended: refused, and no more than that.
    other = {"id": "b", "tree": "t", "argv": ["x"], "where": "h1"}
    jobs = ((2, 99), (4, None), (6, "1"))
    spawns = [frame("SPAWN", 0, number, json={**other, "context": {"job": job}}) for number, job in jobs]
    stage.give(bad, [*BEGIN, *spawns, ["exit", {}], HOLD])
    assert stage.against(bad).status == 0
    assert stage.log().count("bad: asks for a job on 'h1' and may not") == 3
    assert not mark.exists()


def flood(count: int, *frames: dict[str, Any]) -> list[Any]:
    return ["flood", *frames, count]


REQUEST = {"kind": "REQUEST", "channel": [2, 2], "json": {"name": "life", "job": "JOB"}}
BODY = [
    {"kind": "DATA", "channel": [2, 2], "offset": 60_000 * n, "payload": "x", "times": 60_000}
    for n in range(4)
]
LARGE = {
    "kind": "REQUEST",
    "channel": [2, 2],
    "json": {"name": "life", "job": "JOB", "capability": "x" * 60_000},
}
STRAY = {"kind": "REQUEST", "channel": [2, 2], "json": {"name": "life", "job": 99}}
FLOODS: dict[str, tuple[Plan, str]] = {
    "pings": ([flood(3_000_000, {"kind": "PING", "stream": 0})], "a flood of words"),
    "pings unread": ([["deaf"], flood(3_000_000, {"kind": "PING", "stream": 0})], "a flood of words"),
    "seen": ([flood(3_000_000, {"kind": "SEEN"})], "a flood of words"),
    "requests": ([flood(100_000, REQUEST)], "more than 1024 requests of one job"),
    "requests with large bodies": ([flood(900, REQUEST, *BODY)], "bytes of requests at one time"),
    "requests with a large capability": ([flood(900, LARGE)], "request with a bad capability"),
    "requests of no job": ([flood(100_000, STRAY)], "too many channels"),
    "requests, taken back, unread": (
        [["deaf"], flood(200_000, STRAY, {"kind": "STOP", "stream": "life", "channel": [2, 2]})],
        "asks but does not read",
    ),
    "small data to who does not read": (
        [
            flood(
                700_000,
                {
                    "kind": "DATA",
                    "stream": 1,
                    "channel": "job",
                    "offset": [0, 20],
                    "payload": "x",
                    "times": 20,
                },
            )
        ],
        "more data than the window allows",
    ),
    "large data to who does not read": (
        [
            flood(
                1000,
                {
                    "kind": "DATA",
                    "stream": 1,
                    "channel": "job",
                    "offset": [0, 60_000],
                    "payload": "x",
                    "times": 60_000,
                },
            )
        ],
        "more data than the window allows",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", FLOODS)
def test_flood(stage: Stage, bad: Host, case: str) -> None:
    plan, rule = FLOODS[case]
    stage.give(bad, [*BEGIN, *plan, HOLD])
    client = stage.lab.popen(
        ["run", "--on", "bad", "--", "cat"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        stage.wait_log(rf"bad: link ended: protocol error: .*{re.escape(rule)}", 60)
    finally:
        ended = stage.finish(client)
    print(f"grown {stage.grown() >> 20} MB")
    assert ended.status == 74 and rule in ended.err, ended.err
    served(stage, ended)


@pytest.mark.long
@pytest.mark.parametrize("case", ["small data", "requests", "large bodies", "large capabilities"])
def test_flood_of_a_client_that_is_stopped(stage: Stage, bad: Host, case: str, tmp_path: Path) -> None:
    """Frames that the client does not take wait in the local node, which has a bound for them too."""
    go = tmp_path / "go"
    small = {"kind": "DATA", "stream": 1, "channel": "job", "offset": [0, 20], "payload": "x", "times": 20}
    taken_back = {"kind": "STOP", "stream": "life", "channel": [2, 2]}
    floods = {
        "small data": flood(700_000, small),
        "requests": flood(30_000, REQUEST, taken_back),
        "large bodies": flood(900, REQUEST, *BODY),
        "large capabilities": flood(900, LARGE),
    }
    stage.give(bad, [*BEGIN, ["until", str(go)], floods[case], HOLD])
    client = stage.lab.popen(
        ["run", "-v", "--on", "bad", "--", "cat"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert client.stderr and b"started" in client.stderr.readline()
        client.send_signal(signal.SIGSTOP)
        go.touch()
        rules = {
            "small data": "more data than the window allows",
            "large bodies": "bytes of requests at one",
            "large capabilities": "request with a bad capability",
        }
        if case in rules:
            stage.wait_log(f"bad: link ended: protocol error: .*{rules[case]}", 60)
        else:
            stage.wait(lambda: "flood" in stage.done(bad), 60)
        print(f"grown {stage.grown() >> 20} MB")
        assert stage.grown() < BOUND
    finally:
        client.kill()  # its job, too, is one that heeds no signal
        ended = stage.finish(client)
    served(stage, ended)


@pytest.mark.long
def test_jobs_that_wait_for_another_host(stage: Stage, odd_host: Callable[..., Host]) -> None:
    """Their spawns wait in the local node until the host is reached."""
    bad, mute = odd_host("bad", inventory={"may_fork": ["mute"]}), odd_host("mute")
    stage.give(mute, [HOLD])
    spawn = {"id": NAME, "tree": NAME, "argv": ["x" * 60_000], "where": "mute", "context": {"job": "JOB"}}
    large = {"kind": "SPAWN", "channel": [2, 2], "json": spawn}
    stage.give(bad, [*BEGIN, flood(900, large), ["exit", {}], HOLD])
    ended = stage.against(bad)
    print(f"grown {stage.grown() >> 20} MB")
    assert ended.status == 0, ended.err
    assert "bad: asks for a job on 'mute' and may not" in stage.log()
    served(stage, ended)


def test_words_of_a_host_do_not_reach_the_terminal_as_they_are(
    stage: Stage, bad: Host, tmp_path: Path
) -> None:
    """A person reads the text of an exit record: no escape sequence, and no line that looks like one of quine."""
    words = "no\x1b]0;gone\x07\x9b2J\r\nquine: hint: rm -r ~\u202e" + "x" * 5000
    told = {"detail": words, "hint": words, "host": words, "code": 3, "left": "/etc; rm -rf ~"}
    stage.give(bad, [*BEGIN, ["exit", told], HOLD])
    report = tmp_path / "report"
    ended = stage.against(bad, "--report", str(report))
    assert ended.status == 3
    assert ended.err.isprintable() is False and ended.err.replace("\n", "").isprintable(), ended.err
    assert len(ended.err) < 3000
    assert [line.split(": ")[:3] for line in ended.err.splitlines()] == [
        ["quine", "bad", "files are left in '/etc; rm -rf ~'"],
        ["quine", "bad", "error"],
        ["quine", "bad", "hint"],
    ]
    assert json.loads(report.read_text())["host"] == "bad"
    served(stage, ended)


def test_a_host_that_ignores_signals_does_not_keep_its_client(stage: Stage, bad: Host) -> None:
    stage.give(bad, [*BEGIN, ["await", "SIGNAL", 2], HOLD])
    command = ["run", "-v", "--on", "bad", "--", "true"]
    client = stage.lab.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert client.stderr and b"started" in client.stderr.readline()
    client.send_signal(signal.SIGTERM)
    client.send_signal(signal.SIGHUP)
    # Both were passed on. The first one is that of BEGIN, which may have no step noted behind it yet.
    stage.wait(lambda: stage.done(bad).count("await") == 2)
    assert client.poll() is None
    client.send_signal(signal.SIGINT)
    ended = stage.watch(client)
    assert ended.status == -signal.SIGINT
    assert "quine: bad: error: not waited for any longer; it may still run there (pid 4711)" in ended.err


# -- what takes its time -----------------------------------------------------------------------------


@pytest.mark.long
def test_those_who_never_come_to_the_point(stage: Stage, odd_host: Callable[..., Host]) -> None:
    """No bytes, half a hello, a byte a second: a dial has one deadline, and blocks no other job until then."""
    begun = GREETING + encode(Frame(Kind.HELLO, payload=b'{"version"' + b" " * 900))
    plans: dict[str, Plan] = {
        "mute": [HOLD],
        "half": [["say", begun[:-100].hex()], HOLD],
        "drip": [["drip", begun.hex(), 1.0], HOLD],
    }
    hosts = {name: odd_host(name) for name in plans}
    clients = {}
    for name, plan in plans.items():
        stage.give(hosts[name], plan)
        command = ["run", "--on", name, "--", "cat"]
        clients[name] = stage.lab.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for name, client in clients.items():
        ended = stage.watch(client, 100)
        assert ended.status == 69, ended.err
        assert f"quine: {name}: error: " in ended.err and "no " in ended.err, ended.err
        assert re.search(rf"{name}: not reached: ", stage.log())
        served(stage, ended)


@pytest.mark.long
def test_half_a_frame_for_ever(stage: Stage, bad: Host) -> None:
    """A connection on which nothing comes any more is dead; the job's lease is over before it gets better."""
    half = HEADER.pack(1000, Kind.DATA, 1, 1, 0) + b"x" * 500
    stage.give(bad, [["once"], *BEGIN, ["deaf"], ["say", half.hex()], HOLD])
    ended = stage.against(bad)
    assert ended.status == 74 and "nothing heard for 12 seconds" in ended.err, ended.err
    assert "outcome is not known" in ended.err
    assert "bad: link is down: nothing heard" in stage.log()
    served(stage, ended)


@pytest.mark.long
def test_a_deadline_holds_without_the_help_of_the_host(stage: Stage, odd_host: Callable[..., Host]) -> None:
    """It is that of a command, of an agent, and of an agent's child; a guest that waits for it gets its answer."""
    hosts = [odd_host(name) for name in ("bad1", "bad2", "bad3")]
    for host in hosts:
        stage.give(host, [*BEGIN, HOLD])
    child = {"intent": "errand", "host": "bad3", "wait": True, "deadline": 1}
    calls = [("fork", child), ("exit", {"status": "success"})]
    env = stage.lab.script(
        {"reply": {"tool_calls": [{"name": name, "arguments": words}]}} for name, words in calls
    )
    commands = [
        ["run", "--deadline", "1", "--on", "bad1", "--", "true"],
        ["--deadline", "1", "--on", "bad2", "errand"],
        ["errand"],
    ]
    clients = [
        stage.lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) for words in commands
    ]
    for client, host, status in zip(clients, hosts, (74, 74, 0), strict=True):
        ended = stage.watch(client, 300)
        assert ended.status == status, ended.err
        if status:
            said = f"quine: {host.name}: error: it was to end, and did not; not waited for any longer; "
            assert said + "it may still run there (pid 4711)" in ended.err


# -- what its agents may not have --------------------------------------------------------------------

OURS, OTHER = "0192aaaa-bbbb-7ccc-8ddd-eeeeffff0000", "0192aaaa-bbbb-7ccc-8ddd-eeeeffff0001"


def line(session: str, root: str, seq: int = 0, kind: str = "meta") -> str:
    data = {"session_id": session, "root_session_id": root}
    return json.dumps({"type": kind, "data": data, "seq": seq, "ts": 1.5, "prev": ""})


def tape(session: str, *lines: str) -> str:
    return json.dumps({"session": session, "lines": list(lines)})


def infer(**change: Any) -> str:
    messages = [{"role": "user", "content": "x"}]
    return json.dumps(
        {"session": OURS, "mission": "m", "ordinal": 0, "wisdom": {}, "messages": messages, **change}
    )


ASKED: dict[str, tuple[str, str, str]] = {
    "a path": ("tape", tape("../../../x", line("../../../x", "TREE")), "the session is not a UUID"),
    "an absolute path": (
        "tape",
        tape("/etc/cron.d/x", line("/etc/cron.d/x", "TREE")),
        "the session is not a UUID",
    ),
    "another tree": ("tape", tape(OURS, line(OURS, OTHER)), "belongs to another tree"),
    "another's head": ("tape", tape(OURS, line(OTHER, "TREE")), "must be the session's own meta"),
    "a tape that is there": ("tape", tape(OTHER, line(OTHER, "TREE")), "parent or depth is not true"),
    "no head": ("tape", tape(OURS, line(OURS, "TREE", kind="message")), "must be the session's own meta"),
    "two lines in one": (
        "tape",
        tape(OURS, line(OURS, "TREE") + "\n" + line(OURS, "TREE", 1)),
        "newline in it",
    ),
    "a number too far": ("tape", tape(OURS, line(OURS, "TREE", 7)), "parent or depth is not true"),
    "no JSON": ("tape", "{", "tape: "),
    "depth": ("infer", "[" * 100_000, "it nests too deep"),
    "no conversation": ("infer", infer(messages=[{"role": "boss"}]), "not a conversation"),
    "more fields": ("infer", infer(key="please"), "extra inputs are not permitted"),
    "a depth in it": ("infer", infer(messages=[{"role": "user", "content": "x", "raw": "DEEP"}]), "not"),
    "the ledger of nobody": ("ledger", '{"ledger": "x", "back": 0}', "ledger: ledger: not of the form"),
    "a debt": ("ledger", json.dumps({"ledger": "0" * 32, "back": -9}), "ledger: back: "),
    "no such service": ("exec", "{}", "no service named 'exec'"),
    "a giant": ("infer", "x" * (18 << 20), "a request of more than 16777216 bytes"),
}


@pytest.mark.long
def test_what_its_agents_may_not_have(stage: Stage, bad: Host, tmp_path: Path) -> None:
    """Other trees, files outside of the tapes, more than a body may hold: each is refused, and the job goes on."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / f"{OTHER}.jsonl").write_text("the tape of somebody else\n")
    asked = {
        case: (name, body.replace('"DEEP"', "[" * 900 + "]" * 900)) for case, (name, body, _) in ASKED.items()
    }
    stage.give(bad, [*BEGIN, *(["ask", *what] for what in asked.values()), ["exit", {}], HOLD])
    env = {**stage.lab.script([{"reply": {"text": "hi"}}]), "QUINE_DATA_DIR": str(data)}
    client = stage.lab.popen(
        ["--on", "bad", "errand"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    ended = stage.watch(client, 100)
    assert (ended.status, ended.err) == (0, "")
    for (case, (_, _, rule)), (error, reply) in zip(ASKED.items(), stage.said(bad), strict=True):
        assert error and rule in error and not reply, (case, error, reply)
    assert (data / f"{OTHER}.jsonl").read_text() == "the tape of somebody else\n"
    ours = (".mark", ".gitignore")
    made = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ours]
    log = next(path for path in made if path.suffix == ".log").read_text()
    assert {path.suffix for path in made} == {".jsonl", ".log"} and len(made) == 2, made
    assert all(
        rule in log for case, (_, _, rule) in ASKED.items() if case not in ("no such service", "a giant")
    ), log
    served(stage, ended)


def test_more_than_the_budget(stage: Stage, bad: Host, tmp_path: Path) -> None:
    """A job that asks for a hundred inferences gets those that the tree may spend."""
    stage.give(
        bad,
        [
            *BEGIN,
            *(["ask", "infer", infer(session="TREE", ordinal=n)] for n in range(100)),
            ["exit", {}],
            HOLD,
        ],
    )
    reply = {"reply": {"text": "hi"}, "usage": {"input": 900, "output": 100}, "repeat": True}
    env = {**stage.lab.script([reply]), "QUINE_DATA_DIR": str(tmp_path), "QUINE_MAX_TOKENS": "10000"}
    client = stage.lab.popen(
        ["--on", "bad", "errand"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    ended = stage.watch(client, 100)
    assert ended.status == 0
    answers = [json.loads(reply) for error, reply in stage.said(bad) if not error]
    given = [answer for answer in answers if "message" in answer]
    assert 1 <= len(given) <= 10 and len(answers) == 100
    assert {answer["error"] for answer in answers[len(given) :]} == {"spent"}

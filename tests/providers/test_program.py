"""Any executable as the guest: its request, its replies, its faults, and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quine.agent.tools import TOOLS
from quine.base.errors import Misconfigured
from quine.base.messages import GuestError, Message, Overflow, Refused, Request, Unavailable, Usage
from quine.providers import program
from quine.providers.program import ProgramGuest
from tests.support.agents import Agents, left, running, until

ASKED = Request([Message("system", "s"), Message("user", "u")], TOOLS, "id", "mission", 3, {"k": "v"}, 77)
Make = Callable[..., ProgramGuest]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(code: str, **more: Any) -> ProgramGuest:
        path = tmp_path / "guest"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
        path.chmod(0o755)
        return ProgramGuest(str(path), "model", more.pop("key", ""), pause=lambda seconds: None)

    return make


def test_what_it_is_asked_and_what_it_says(make: Make, tmp_path: Path) -> None:
    reply = make(
        f"asked = json.load(sys.stdin); json.dump(asked, open({str(tmp_path / 'asked')!r}, 'w'))\n"
        "print(json.dumps({'text': 'grüß', 'tool_calls': [{'name': 'sh', 'arguments': {'command': 'ls'}},"
        " {'name': 'sh', 'arguments': '{broken', 'id': 'mine'}], 'usage': {'input': 5, 'output': 2, 'cost': 0.5}}))"
    ).infer(ASKED)
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked == {
        "model": "model", "session": "id", "mission": "mission", "ordinal": 3, "wisdom": {"k": "v"}, "output": 77,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "tools": json.loads(json.dumps([tool._asdict() for tool in TOOLS])),
    }  # fmt: skip
    assert (reply.message.text, reply.stop, reply.usage) == ("grüß", "tool", Usage(5, 2, cost=0.5))
    first, second = reply.message.tool_calls
    assert (first.name, first.args) == ("sh", {"command": "ls"})
    assert (second.id, second.raw) == ("mine", "{broken")
    assert "not JSON" in second.fault


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "kind", "words", "tries"),
    [
        ("print('{}'); sys.exit(3)", Refused, "exited with status 3", 1),
        ("print('no such model', file=sys.stderr); sys.exit(1)", Refused, "status 1: no such model", 1),
        ("os.kill(os.getpid(), 9)", Refused, "died of signal 9", 1),
        ("sys.exit(75)", Unavailable, "exited with status 75", program.ATTEMPTS),
        ("print('{\"error\": \"unavailable\", \"detail\": \"busy\"}')", Unavailable, "busy", program.ATTEMPTS),
        ("print('{\"error\": \"overflow\", \"detail\": \"too long\"}')", Overflow, "too long", 1),
        ("print('{\"error\": \"refused\", \"detail\": \"no\"}')", Refused, "no", 1),
        ("", Unavailable, "cannot be read", program.ATTEMPTS),
        ("print('[]')", Unavailable, "it is no object", program.ATTEMPTS),
        ("print('{\"tool_calls\": [{\"name\": \"sh\"}]}')", Unavailable, "no 'arguments'", program.ATTEMPTS),
        ("print('{\"tool_calls\": [{\"name\": 1, \"arguments\": {}}]}')", Unavailable, "no text", program.ATTEMPTS),
        ("print('{\"tool_calls\": 7}')", Unavailable, "cannot be read", program.ATTEMPTS),
        ("print('{\"usage\": {\"input\": -1}}')", Unavailable, "no count", program.ATTEMPTS),
        ("print('{\"usage\": {\"input\": 1e999}}')", Unavailable, "cannot be read", program.ATTEMPTS),
        ("print('{\"usage\": {\"input\": ' + '9' * 30 + '}}')", Unavailable, "no count", program.ATTEMPTS),
        ("print('{\"error\": \"unavailable\", \"after\": -1}')", Unavailable, "no reason", program.ATTEMPTS),
        ("print('{\"usage\": {\"bytes\": 1}}')", Unavailable, "unknown key 'bytes'", program.ATTEMPTS),
        ("print('{\"stop\": \"now\"}')", Unavailable, "stop is none of", program.ATTEMPTS),
        ("print('{\"text\": 5}')", Unavailable, "text is no text", program.ATTEMPTS),
        ("sys.stdout.buffer.write(b'\\xff')", Unavailable, "cannot be read", program.ATTEMPTS),
    ],
)  # fmt: skip
def test_faults_of_a_program_are_told_apart(
    make: Make, tmp_path: Path, code: str, kind: type, words: str, tries: int
) -> None:
    log = tmp_path / "log"
    guest = make(f"sys.stdin.read(); open({str(log)!r}, 'a').write('x')\n{code}")
    notes: list[str] = []
    guest.note = notes.append
    with pytest.raises(kind, match=words.replace("[", r"\[")) as raised:
        guest.infer(ASKED)
    assert raised.type is kind
    assert len(log.read_text()) == tries
    assert len(notes) == tries - 1


def test_a_program_that_reads_nothing_and_one_that_talks_first(make: Make) -> None:
    """Neither a full pipe on the one side nor on the other stops them both."""
    asked = ASKED._replace(messages=[Message("user", "x" * 300_000)])
    assert make('print(\'{"text": "unread"}\')').infer(asked).message.text == "unread"
    long = "print(json.dumps({'text': 'y' * 200_000})); sys.stdout.flush(); sys.stdin.read()"
    assert len(make(long).infer(asked).message.text) == 200_000


def test_a_reply_without_end_is_cut(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LONGEST", 100_000)
    with pytest.raises(GuestError, match="more than 100000 bytes"):
        make("while True: print('x' * 1000)").infer(ASKED)


def test_a_reply_that_does_not_come(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TIMEOUT", 0.2)
    monkeypatch.setattr(program, "ATTEMPTS", 1)
    with pytest.raises(Unavailable, match=r"no reply after 0\.2 s"):
        make("import time; time.sleep(72097)").infer(ASKED)


def test_what_it_started_ends_with_it(make: Make) -> None:
    make("import subprocess; subprocess.Popen(['sleep', '72098'], stdout=2)\nprint('{}')").infer(ASKED)
    until(lambda: not running("sleep", "72098"))  # killed, and perhaps not dead yet


def test_a_program_has_the_key_and_not_its_descriptor(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINE_CREDENTIALS_FD", "20")
    code = "print(json.dumps({'text': repr([os.environ.get(n) for n in ('QUINE_API_KEY', 'QUINE_CREDENTIALS_FD')])}))"
    assert make(code, key="canary").infer(ASKED).message.text == "['canary', None]"


def test_no_program_is_no_guest(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    for path in (tmp_path / "none", tmp_path / "text", tmp_path):
        with pytest.raises(Misconfigured, match="is no program"):
            ProgramGuest(str(path))


def test_an_agent_of_it(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    path = tmp_path / "guest"
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\nasked = json.load(sys.stdin)\n"
        "calls = [{'name': 'sh', 'arguments': {'command': 'sort <&3 >&4'}}] if asked['ordinal'] == 0 else "
        "[{'name': 'exit', 'arguments': {'status': 0}}]\nprint(json.dumps({'tool_calls': calls}))\n"
    )
    path.chmod(0o755)
    env = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": "./guest"}
    done = agents.run(input=b"b\na\n", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\nb\n", b"")


def test_rubbish_of_a_program_is_no_verdict_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1 is the agent's own judgement, and nothing was judged."""
    agents = Agents(tmp_path)
    path = tmp_path / "guest"
    path.write_text("#!/bin/sh\ncat >&2\necho rubbish\n")
    path.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text("import quine.providers.program as p\np.FIRST_PAUSE = 0.0\n")
    env = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(path), "PYTHONPATH": str(tmp_path)}
    done = agents.run(env=env)
    assert (done.returncode, done.stdout) == (75, b"")
    assert (
        done.stderr.startswith(b"quine: error: no reply from the guest: ")
        and b"cannot be read" in done.stderr
    )


def test_a_signal_takes_the_program_with_it(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    path = tmp_path / "guest"
    os.mkfifo(tmp_path / "up")
    path.write_text("#!/bin/sh\nsleep 72099 &\necho > up\nwait\n")
    path.chmod(0o755)
    env = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(path)}
    with agents.start("work", env=env) as process:
        (tmp_path / "up").read_bytes()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert not left("sleep", "72099")
    assert agents.outcome()["termination_mode"] == "signal"


# TERM comes when the program has been made and who made it has not heard of it yet
MADE = """
import os, signal, subprocess
made = subprocess.Popen._execute_child

def making(self, *words):
    made(self, *words)
    os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen._execute_child = making
"""


def test_a_signal_while_it_is_made_takes_the_program_with_it(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(MADE)
    path = tmp_path / "guest"
    path.write_text("#!/bin/sh\nexec sleep 72089\n")
    path.chmod(0o755)
    env = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(path), "PYTHONPATH": str(tmp_path)}
    done = agents.run(env=env)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")
    assert not left("sleep", "72089")

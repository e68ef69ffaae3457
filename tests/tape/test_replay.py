"""The requests to a guest, rebuilt from the tape; and sessions that are lived again from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quine.base.errors import Misconfigured
from quine.base.messages import Message, Refused, Request, ToolResult
from quine.base.sessions import new_session
from quine.providers.replay import ReplayGuest
from quine.tape import requests, verify
from quine.tape.lines import digest
from quine.tape.reader import find
from quine.tape.writer import FileSink, Tape
from tests.support.agents import OK, QUINE, UNTIL_ENDED, Agents, call, left, says, sh

RECORDER = f"""#!{sys.executable} -IS
import json, os, re, sys
request = json.load(sys.stdin)
here = os.path.dirname(os.path.abspath(__file__))
session, ordinal = request["session"], request["ordinal"]
name = f"{{here}}/sent/{{session}}.{{ordinal:03}}"
first = not os.path.exists(name)
with open(name, "w") as file:
    json.dump(request["messages"], file)
wisdom = json.dumps(request["wisdom"], separators=(",", ":"))
with open(here + "/script.jsonl") as file:
    lines = [json.loads(line) for line in file]
fit = [line for line in lines if re.search(line.get("match", ""), request["mission"])
       and re.search(line.get("wisdom", ""), wisdom)]
reply = fit[ordinal]["reply"]
print(json.dumps(reply.get("first", reply) if first else reply))
"""


def record(agents: Agents, *lines: dict[str, Any], **more: Any) -> dict[str, list[list[Message]]]:
    """Run one agent with a guest that keeps its requests; return the requests by session."""
    (agents.directory / "sent").mkdir()
    program = agents.directory / "guest"
    program.write_text(RECORDER)
    program.chmod(0o755)
    agents.script(*lines)
    agents.env |= {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(program)}
    done = agents.run(**more)
    sent: dict[str, list[list[Message]]] = {}
    for path in sorted((agents.directory / "sent").iterdir()):
        messages = [Message.from_json(message) for message in json.loads(path.read_text())]
        sent.setdefault(path.name.partition(".")[0], []).append(messages)
    assert sent, done
    return sent


def rebuilt(agents: Agents) -> dict[str, list[list[Message]]]:
    return {
        path.stem: [list(sent.messages) for sent in requests.requests(path) if sent.line]
        for path in agents.data.glob("*.jsonl")
    }


def replay(agents: Agents, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUINE, "tape", "replay", *words],
        cwd=agents.directory,
        env=agents.env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def fork(intent: str, **more: Any) -> dict[str, Any]:
    return call("fork", intent=intent, **more)


TREE = (
    says(sh("echo begun; echo wrong >&2; exit 3"), fork("one", wait=True), fork("two", wait=True, context="none"),
         match="^work$", wisdom="^{}$"),
    says(sh("cd /; pwd", timeout=9), call("nothing"), match="^work$", wisdom="^{}$"),
    says(call("exec", wisdom={"done": 'a "quoted"\nline'}), match="^work$", wisdom="^{}$", text="on"),
    says(sh("echo again"), match="^work$", wisdom="done"),
    says(OK, match="^work$", wisdom="done"),
    says(sh("echo first child"), match="^one$"), says(fork("deep", wait=True), match="^one$"), says(OK, match="^one$"),
    says(sh("echo second child"), match="^two$"), says(call("exit", status=4, stderr="no"), match="^two$"),
    says(OK, match="^deep$"),
)  # fmt: skip


def test_what_was_sent_is_on_the_tapes(agents: Agents) -> None:
    sent = record(agents, *TREE)
    assert len(sent) == 5
    assert rebuilt(agents) == sent
    assert {verify.verify(path).state for path in agents.data.glob("*.jsonl")} == {verify.OK}
    cloned = [messages for messages in sent.values() if "You are the child" in str(messages[0])]
    assert len(cloned) == 2 and max(len(messages[0]) for messages in cloned) > 5


def test_reminders_refusals_and_the_last_reply(agents: Agents) -> None:
    raw = {"name": "sh", "arguments": '{"command": '}
    sent = record(
        agents, says(text="hm"), says(sh("echo 1")), says(raw), says(sh("echo 2"), sh("echo 3")), says(sh("echo 4")),
        options=("--max-turns", "2"),
    )  # fmt: skip
    assert rebuilt(agents) == sent
    ((*_, last),) = sent.values()
    assert "[LAST REPLY]" in str(last) and "[REMINDER]" in str(last) and "not JSON" in str(last)


def test_what_was_taken_out_of_a_full_context(agents: Agents) -> None:
    """An overflow has the long results sent again, shortened; the same request is then asked once more."""
    full = {"error": "overflow", "detail": "too long"}
    sent = record(
        agents, says(sh("seq 1000")), says(sh("seq 2000"), sh("echo short")),
        {"reply": {"first": full, "tool_calls": [OK]}},
    )  # fmt: skip
    assert rebuilt(agents) == sent
    (tape,) = agents.tapes()
    assert [entry for entry in tape if entry["data"].get("again")], (
        "nothing was dropped: this test shows nothing"
    )


def test_a_result_that_is_sent_again_has_its_place(tmp_path: Path) -> None:
    """Some servers give every reply's first call the same id: then the tape must tell which result is meant."""
    tape = Tape(FileSink(str(tmp_path / "a.jsonl")))
    tape.add("meta", {"session_id": "a"})
    results = [Message("tool", result=ToolResult("same", "sh", text)) for text in ("one", "two", "cut")]
    for message in (Message("user", "u"), results[0], results[1]):
        tape.message(message)
    tape.message(results[2], again=1)
    tape.message(results[2], again=True)
    tape.sync()
    tape.close()
    (sent,) = requests.requests(tmp_path / "a.jsonl")
    assert [m.result.text for m in sent.messages if m.result] == ["cut", "cut"]
    messages = [sent.messages[0], *results[:2]]
    requests.take(messages, list(requests.steps(tmp_path / "a.jsonl"))[3])
    assert messages[1:] == [results[2], results[1]]


@pytest.mark.long
def test_a_tree_is_lived_again(agents: Agents) -> None:
    agents.run(*TREE)
    done = replay(agents)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 lives replayed, none departed\n", "")
    assert list((agents.data / "replays").iterdir()) == []
    record(agents, *TREE)  # the same from a program; the latest root is the one
    assert replay(agents).stdout == "5 lives replayed, none departed\n"


@pytest.mark.long
def test_where_it_departs(agents: Agents) -> None:
    note = agents.directory / "note"
    note.write_text("then")
    agents.run(
        says(sh("echo same"), fork("one", wait=True)), says(OK), says(sh("cat note"), match="one"), says(OK)
    )
    agents.script()
    agents.run(
        says(sh("echo same"), fork("one", wait=True), match="work"), says(OK, match="work"),
        says(sh("cat note"), match="one"), says(OK, match="one"),
    )  # fmt: skip
    assert replay(agents).returncode == 0
    note.write_text("now")
    done = replay(agents)
    assert (done.returncode, done.stderr) == (1, "")
    child = next(path for path in agents.data.glob("*.jsonl") if path.stem in done.stdout)
    lines = child.read_text().splitlines()
    assert done.stdout.startswith(f"{child.stem} line {len(lines) - 2} departs:\n")
    assert "  -then\n  +now\n" in done.stdout
    assert "1 of 2 lives departed" in done.stdout
    kept = Path(done.stdout.split("the new tapes are in ")[1].strip())
    assert len(list(kept.glob("*.jsonl"))) == 2


def test_a_child_in_the_background_has_other_names(agents: Agents) -> None:
    """Sessions, pids and paths differ; a path in a recorded call is replaced by that of the replay."""
    wait = f"{UNTIL_ENDED}; echo there"
    lines = [
        says(fork("one"), match="work"), says(sh(wait), match="work"), says(OK, match="work"),
        says(sh("echo out >&4"), match="one"), says(OK, match="one"),
    ]  # fmt: skip
    agents.run(*lines)
    assert replay(agents).returncode == 0
    # A guest names the job by the id that it was told; here it is put into the tape as if it had.
    (root,) = [path for path in agents.data.glob("*.jsonl") if '"mission":"work"' in path.read_text()]
    session = next(
        e["data"]["session"] for e in map(json.loads, root.read_text().splitlines()) if e["type"] == "fork"
    )
    command = f"cat {agents.data}/jobs/{session}/stdout"
    told = Tape(FileSink(str(root) + ".new"))
    for entry in map(json.loads, root.read_text().splitlines()):
        text = (
            json.dumps(entry["data"])
            .replace("echo there", f"echo there; {command}")
            .replace("there\\n", "there\\nout\\n")
        )
        told.add(entry["type"], json.loads(text))
    told.sync()
    told.close()
    Path(str(root) + ".new").rename(root)
    shutil.rmtree(agents.data / "jobs")
    done = replay(agents)
    assert done.stdout == "2 lives replayed, none departed\n"


@pytest.mark.long
def test_a_nested_quine_is_lived_again(agents: Agents) -> None:
    nested = "quine 'inner mission' && quine 'inner mission'"
    agents.run(
        says(sh(nested), match="work"), says(OK, match="work"),
        says(sh("echo deep"), match="inner"), says(OK, match="inner"),
    )  # fmt: skip
    assert len(agents.tapes()) == 3
    assert replay(agents).stdout == "3 lives replayed, none departed\n"


def test_an_end_that_differs_departs(agents: Agents) -> None:
    agents.run(says(sh("echo x")), says(OK))
    (path,) = agents.data.glob("*.jsonl")
    text = path.read_text()
    path.write_text(text.replace('"termination_mode":"exit"', '"termination_mode":"budget"'))
    done = replay(agents)
    assert done.returncode == 1 and "-outcome 0 budget\n  +outcome 0 exit" in done.stdout
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    assert replay(agents).returncode == 0, "cut off where it was: it goes on"


@pytest.mark.long
def test_material_and_wisdom_are_as_they_were(agents: Agents) -> None:
    agents.run(
        says(sh("cat $QUINE_DATA_DIR/stdin-* | wc -c")), says(OK),
        options=("-b",), input=b"12345", env={"QUINE_WISDOM_KEY": "value"},
    )  # fmt: skip
    with open(agents.directory / "in", "wb+") as file:
        file.write(b"12345")
        file.seek(0)
        done = subprocess.run(
            [*QUINE, "tape", "replay"],
            cwd=agents.directory,
            env=agents.env,
            stdin=file,
            capture_output=True,
            check=False,
        )
    assert done.stdout == b"1 life replayed, none departed\n"
    assert replay(agents).returncode == 1, "without its material it departs"


def test_who_ends_the_replay_ends_all_of_it(agents: Agents) -> None:
    """The agent and its commands end with the replay; the tape up to then stays."""
    agents.run(says(sh("[ ! -p gate ] || { echo x > gate; exec sleep 1000.25; }")), says(OK))
    os.mkfifo(agents.directory / "gate")
    env = agents.env
    with subprocess.Popen(
        [*QUINE, "tape", "replay"], cwd=agents.directory, env=env, stdin=subprocess.DEVNULL
    ) as process:
        assert (agents.directory / "gate").read_text() == "x\n"
        process.terminate()
        assert process.wait(120) == 143
    assert not left("sleep", "1000.25")
    (tape,) = (agents.data / "replays").glob("*/*.jsonl")
    assert '"termination_mode":"signal"' in tape.read_text()


def test_tapes_that_were_there_before_the_mark_are_not_run_without_force(
    agents: Agents, tmp_path: Path
) -> None:
    """An archive brings a tape that is whole, in a `.quine` that git does not track."""
    ran = tmp_path / "ran"
    agents.run(says(sh(f"echo x >> {ran}")), says(OK))
    (tape,) = agents.data.glob("*.jsonl")
    place = agents.directory / "unpacked"
    (place / ".quine").mkdir(parents=True)
    shutil.copy2(tape, place / ".quine")
    os.utime(place / ".quine" / tape.name, (2**31, 2**31))  # an archive sets these two
    env = {name: value for name, value in agents.env.items() if name != "QUINE_DATA_DIR"}

    def again(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*QUINE, "tape", "replay", *words], cwd=place, env=env | more, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip

    for _ in range(2):  # the first one marks it
        done = again()
        assert (
            done.returncode == 2 and "1 of 1 sessions were in .quine before it was marked" in done.stderr
        ), done
        assert f"quine tape replay --force {tape.stem}" in done.stderr
    unmarked = agents.directory / "unmarked"
    unmarked.mkdir()
    shutil.copy2(tape, unmarked)
    done = again(QUINE_DATA_DIR=str(unmarked))
    assert done.returncode == 2 and "without a mark of yours there" in done.stderr, done
    assert ran.read_text() == "x\n"
    again("--force")  # it departs: the directory has another name
    assert replay(agents).returncode == 0
    assert ran.read_text() == "x\n" * 3


def test_without_a_session_it_is_the_latest_that_its_user_began(agents: Agents, tmp_path: Path) -> None:
    """A tape that was brought behind the mark says that it is from the future."""
    ran = tmp_path / "ran"
    agents.run(says(sh(f"echo x >> {ran}")), says(OK))
    (tape,) = agents.data.glob("*.jsonl")
    first, _, rest = tape.read_text().partition("\n")
    brought = agents.data / f"{new_session()}.jsonl"
    lines, prev = [], ""
    for line in [first, *rest.splitlines()]:
        entry = json.loads(
            line.replace(tape.stem, brought.stem).replace(f"echo x >> {ran}", f"echo y >> {ran}")
        )
        entry |= {"ts": entry["ts"] + 10**8, "prev": prev}
        if entry["type"] == "outcome":
            entry["data"].pop("seal")
        lines.append(json.dumps(entry, separators=(",", ":")))
        prev = digest(lines[-1].encode())
    brought.write_text("".join(f"{line}\n" for line in lines))
    assert find(agents.data, "").id == brought.stem
    done = replay(agents)
    assert (done.returncode, ran.read_text()) == (0, "x\n" * 2), done


def test_only_a_root_is_lived_again(agents: Agents) -> None:
    agents.run(says(fork("one", wait=True), match="work"), says(OK, match="work"), says(OK, match="one"))
    child = next(p.stem for p in agents.data.glob("*.jsonl") if '"mission":"one"' in p.read_text())
    done = replay(agents, child)
    assert done.returncode == 2 and "not the root of its tree" in done.stderr
    dry = replay(agents, child, "--dry")
    assert dry.returncode == 0
    (request,) = map(json.loads, dry.stdout.splitlines())
    assert request["ordinal"] == 0 and "You are the child" in request["messages"][-1]["result"][2]
    assert not (agents.data / "replays").exists()


def test_a_plain_agent_can_have_the_guest(agents: Agents) -> None:
    agents.run(says(sh("echo said >&4")), says(OK))
    (path,) = agents.data.glob("*.jsonl")
    shutil.copy(path, agents.directory / "tape.jsonl")
    env = {"QUINE_API_TYPE": "replay", "QUINE_API_BASE": "tape.jsonl"}
    done = agents.run(mission="something else", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"said\n", b"")


def test_the_guest_by_itself(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none", "no such file"), (tmp_path, "directory")):
        with pytest.raises(Misconfigured, match=said):
            ReplayGuest(str(path))
    path = tmp_path / f"{new_session()}.jsonl"
    path.write_text("{}\n")
    with pytest.raises(Misconfigured, match="not a tape"):
        ReplayGuest(str(path))
    path.unlink()
    tape = Tape(FileSink(str(path)))
    tape.add("meta", {"session_id": path.stem})
    reply = Message("assistant", "hm", raw={"chat": {"content": "hm"}})
    tape.message(reply, usage={"input": 7, "output": 2}, stop="length")
    tape.sync()
    tape.close()
    guest = ReplayGuest(str(path), str(tmp_path))
    notes: list[str] = []
    guest.note = notes.append
    got = guest.infer(Request([], [], new_session()))
    assert notes == []
    guest.infer(Request([Message("user", "never said")], [], new_session()))
    assert notes == [f"message 1 is not what was sent in {path.stem}"]
    assert (got.message, got.usage.input, got.stop) == (reply, 7, "length")
    with pytest.raises(Refused, match="the tape has no reply left for this life"):
        guest.infer(Request([], [], new_session(), ordinal=1))


def test_a_tape_that_git_tracks_is_not_run_without_force(agents: Agents, tmp_path: Path) -> None:
    """`git pull` brought one into a directory that was marked long ago."""
    ran = tmp_path / "ran"
    agents.run(says(sh(f"echo x >> {ran}")), says(OK))
    (tape,) = agents.data.glob("*.jsonl")
    for words in (["init", "-q"], ["add", "-f", str(tape)]):
        subprocess.run(["git", *words], cwd=agents.data.parent, check=True)
    done = replay(agents)
    assert done.returncode == 2 and "1 of 1 sessions are tracked by git" in done.stderr, done
    (agents.data.parent / ".git" / "index").write_text("junk")
    done = replay(agents)
    assert done.returncode == 2 and "git may track it" in done.stderr and "--force" in done.stderr, done
    assert ran.read_text() == "x\n"
    assert replay(agents, "--force").returncode == 0
    assert ran.read_text() == "x\n" * 2

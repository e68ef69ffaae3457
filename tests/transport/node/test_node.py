"""The node against peers that break the rules: their own link ends, everybody else is served."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, clear_peak, peak_rss
from tests.support.agents import PATIENCE, until
from tests.support.clients import output
from tests.support.machine import node_file, only_node
from tests.support.waiting import read_until
from transport.node import rendezvous
from transport.this_build import build_hash
from transport.wire.frames import (
    GREETING,
    HEADER,
    LIFE,
    MAX_PAYLOAD,
    NAMES,
    VERSION,
    Frame,
    Kind,
    encode,
    pack,
)

MiB = 1 << 20


@pytest.fixture
def call(lab: Lab) -> Iterator[Callable[[], socket.socket]]:
    """Open connections to the origin's node, as a client or as whatever one pretends to be."""
    try:
        assert alive(lab)
    except OSError:  # no node runs
        lab.run(["run", "--on", "h1", "--", "true"], check=True)
    path = node_file(lab, "sock")
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        made.append(connection)
        return connection

    yield connect
    for connection in made:
        connection.close()


def hello(**change: object) -> bytes:
    body = {"version": VERSION, "build": build_hash(), **change}
    return b"C" + GREETING + encode(Frame(Kind.HELLO, 0, 0, 0, pack(body)))


def ended(connection: socket.socket) -> bool:
    """The node closed it, in an orderly way and within the timeout."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def alive(lab: Lab) -> bool:
    """Whether the node that runs serves others, over its link."""
    return output(lab, "h1", "echo", "alive") == b"alive\n"


def follows(lab: Lab, idle: str = "300") -> bool:
    """Whether the next command is served, be it by the next node."""
    done = lab.run(["run", "--on", "local", "--", "echo", "alive"], env={"QUINE_NODE_IDLE": idle})
    return done.stdout == b"alive\n" and done.stderr == b""


SPAWN = {"id": "a1", "argv": ["true"], "tree": "t"}


@pytest.mark.parametrize(
    "data",
    [
        b"X",
        b"D",  # a dial without its descriptors
        b"C" + b"\xff" * 100_000,
        b"C" + GREETING + HEADER.pack(MAX_PAYLOAD + 1, Kind.HELLO, 0, 0, 0),
        b"C" + GREETING + encode(Frame(Kind.PING)),
        b"C" + GREETING + encode(Frame(Kind.HELLO, payload=b"[]")),
        b"C" + GREETING + encode(Frame(Kind.HELLO, payload=pack({"version": 99}))),
    ],
    ids=["unknown", "dial", "noise", "huge", "no hello", "no object", "version"],
)
def test_a_bad_beginning(lab: Lab, call: Callable[[], socket.socket], data: bytes) -> None:
    connection = call()
    connection.sendall(data)
    assert ended(connection)
    assert alive(lab)


@pytest.mark.parametrize(
    "frames",
    [
        [Frame(Kind.SPAWN, 1, 0, 0, b"nonsense")],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": []}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": [1]}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": ["a\0b"]}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "tree": "../../etc"}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "env": {"A=B": "c"}}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "lease": -1}))],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "surprise": 1}))],
        [Frame(Kind.SPAWN, 2, 0, 0, pack(SPAWN))],
        [Frame(Kind.DATA, 7, 0, 0, b"x")],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": ["cat"]})), Frame(Kind.DATA, 1, 0, 5, b"hole")],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": ["cat"]})), Frame(Kind.ACK, 1, 1, 99)],
        [Frame(Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "argv": ["cat"]})), Frame(Kind.DATA, 1, 1, 0, b"mine")],
        [Frame(Kind.SPAWN, 1, 1, 0, b"x" * MAX_PAYLOAD)] * 70,
        [Frame(Kind.EXIT, 2, LIFE, 0, pack({}))],
    ],
)
def test_bad_frames_end_their_link_and_its_jobs(
    lab: Lab, call: Callable[[], socket.socket], frames: list[Frame]
) -> None:
    connection = call()
    try:
        connection.sendall(hello() + b"".join(map(encode, frames)))
    except BrokenPipeError:
        pass  # it did not wait for the rest
    assert ended(connection)
    assert lab.wait_idle() == []
    assert alive(lab)


@pytest.mark.long
@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff" * 70_000, GREETING + b"\xff" * 100, GREETING + encode(Frame(Kind.SPAWN, 1, 0, 0, b"{}"))],
    ids=["nothing", "noise", "frames", "no hello"],
)
def test_garbage_on_the_line_of_a_dial(lab: Lab, garbage: bytes) -> None:
    """The far node meets it over a real ssh, beside its real origin."""
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    program = next((lab["h1"].home / ".cache" / "quine").glob("*/quine"))
    dial = subprocess.run(
        [*lab.ssh("h1"), f"{program} node --dial"],
        input=garbage,
        capture_output=True,
        env=lab.env,
        timeout=120,
        check=False,
    )
    assert dial.stdout.startswith(GREETING) and b"Traceback" not in dial.stderr
    assert alive(lab)


def test_another_build_is_not_served(lab: Lab, call: Callable[[], socket.socket]) -> None:
    connection = call()
    connection.sendall(hello(build="0" * 64) + encode(Frame(Kind.SPAWN, 1, 0, 0, pack(SPAWN))))
    assert ended(connection)


def test_a_request_without_a_token_is_refused(lab: Lab, call: Callable[[], socket.socket]) -> None:
    connection = call()
    body = pack({"name": "infer", "token": "0" * 32})
    connection.sendall(hello() + encode(Frame(Kind.REQUEST, 1, 0, 0, body)))
    read_until(connection.fileno(), b"origin is gone")


def test_a_flood_beyond_the_window_is_cut_off(lab: Lab, call: Callable[[], socket.socket]) -> None:
    """A client that ignores its credit, to a command that does not read, cannot fill the node."""
    connection = call()
    body = pack({**SPAWN, "id": "floods", "argv": ["sleep", "60"]})
    connection.sendall(hello() + encode(Frame(Kind.SPAWN, 1, 0, 0, body)))
    before = clear_peak(only_node(lab).pid)  # other tests have used it
    payload, offset = b"x" * MAX_PAYLOAD, 0
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while offset < 100 * MiB:
            connection.sendall(encode(Frame(Kind.DATA, 1, 0, offset, payload)))
            offset += len(payload)
    assert offset < 20 * MiB
    assert peak_rss(only_node(lab).pid) - before < 100 * MiB
    assert lab.wait_idle() == []


def test_half_a_frame_for_ever_disturbs_nobody(lab: Lab, call: Callable[[], socket.socket]) -> None:
    connection = call()
    connection.sendall((hello() + encode(Frame(Kind.SPAWN, 1, 0, 0, pack(SPAWN))))[:-5])
    assert alive(lab)


def test_fuzz(lab: Lab, call: Callable[[], socket.socket]) -> None:
    """Two hundred connections of random frames, lawful headers and unlawful ones, while a stream goes through."""
    rng = random.Random(20261121)
    start = hello()
    stream = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", "head -c 10000000 /dev/zero"], stdout=subprocess.PIPE
    )
    for _ in range(200):
        connection = call()
        data = bytearray(start) if rng.random() < 0.8 else bytearray(rng.randbytes(rng.randint(1, 200)))
        for _ in range(rng.randint(0, 12)):
            frame = Frame(
                rng.choice(sorted(NAMES)),
                rng.choice([0, 1, 1, 2, 3, 5, 2**32 - 1]),
                rng.choice([0, 0, 1, 2, 3, LIFE]),
                rng.choice([0, 0, 1, 7, 2**64 - 1]),
                rng.choice([b"", b"{}", rng.randbytes(20), pack(SPAWN), pack({"signal": "TERM"})]),
            )
            data += encode(frame)
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        connection.close()
    assert stream.stdout
    assert len(stream.stdout.read()) == 10_000_000
    assert stream.wait(120) == 0
    stream.stdout.close()
    assert lab.wait_idle() == []
    log = node_file(lab, "log").read_text()
    assert "Traceback" not in log, log[-3000:]


def test_the_runtime_directory_must_be_ours_alone(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trap = tmp_path / "run" / f"quine-{os.getuid()}"
    trap.mkdir(mode=0o755)
    trap.chmod(0o755)
    done = lab.run(["run", "--on", "h1", "--", "true"], env={"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert done.returncode == 69 and b"is not a directory of yours alone" in done.stderr


def test_the_socket_is_the_users_alone(lab: Lab, call: Callable[[], socket.socket]) -> None:
    path = node_file(lab, "sock")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_status_and_stop(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"])
    assert lab.run(["node", "--status"]).returncode != 0
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    done = lab.run(["node", "--status", "--json"], check=True)
    facts = json.loads(done.stdout)
    (line,) = facts["lines"]
    assert facts["hosts"]["h1"] == {"up": True, "running": 0, "queued": 0}
    assert line["name"] == "h1" and line["up"] and line["reconnects"] == 0 and len(line["link"]) == 32
    assert line["bytes_in"] > 0 < line["bytes_out"] and line["frames_in"] > 0
    job = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", "echo up; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout
    read_until(job.stdout.fileno(), b"up\n")
    lab["h1"].kill_sessions()
    over_there = json.loads(
        lab.run(["run", "--on", "h1", "--", "quine", "node", "--status", "--json"]).stdout
    )
    (line,) = over_there["lines"]
    assert over_there["jobs"] == 2 and line["name"] == "origin" and line["reconnects"] == 1
    assert "sh -c echo up; read line" in [each["command"] for each in over_there["running"]]
    (line,) = json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)["lines"]
    assert line["up"] and line["reconnects"] == 1
    job.communicate(b"\n", timeout=120)
    lab.run(["node", "--stop"], check=True)
    assert not [process for process in lab.processes() if process.daemon]
    assert follows(lab)


def test_a_node_whose_directory_is_removed_goes_on_and_is_found_again(own_lab: Callable[..., Lab]) -> None:
    """As a logout does it."""
    lab = own_lab(["h1"])
    job = lab.popen(
        ["run", "--on", "local", "--", "sh", "-c", "echo up; read line; echo $line"],
        env={"QUINE_NODE_IDLE": "0.2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout
    read_until(job.stdout.fileno(), b"up\n")
    nodes = {process.pid for process in lab.processes() if process.daemon}
    sock, away = node_file(lab, "sock"), Path(lab.env["XDG_RUNTIME_DIR"])
    sock.parent.rename(away / "away")
    until(sock.exists)
    assert b"read line" in lab.run(["ps", "--json"], check=True).stdout, "by the same node"
    sock.unlink()
    until(sock.exists)
    log = away / "away" / sock.with_suffix(".log").name
    assert "nobody can reach" not in log.read_text()
    sock.parent.rename(away / "away too")
    sock.parent.write_bytes(b"")  # nothing can be made there
    until(lambda: "nobody can reach this node" in log.read_text())
    assert job.communicate(b"on\n", timeout=120)[0] == b"on\n" and job.returncode == 0
    until(lambda: not nodes & {process.pid for process in lab.processes()})
    sock.parent.unlink()


def test_a_node_that_has_gone_does_not_block_the_next(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"])
    lab.run(
        ["run", "--on", "h1", "--", "true"], env={"QUINE_NODE_IDLE": "0.2"}, check=True
    )  # it has a link, too
    until(lambda: not any(process.daemon for process in lab.processes()))
    assert follows(lab, idle="8"), "after one that was idle"
    node_file(lab, "sock").unlink()
    assert follows(lab), "one whose socket was removed"
    assert "the socket was removed" in node_file(lab, "log").read_text()
    for process in lab.processes():
        if process.daemon:
            os.kill(process.pid, signal.SIGKILL)
    assert follows(lab), "at the socket of one that was killed"


@pytest.mark.long
def test_a_node_that_ends_slowly_does_not_block_the_next(own_lab: Callable[..., Lab]) -> None:
    """It gives its jobs their pause; meanwhile the next command starts its successor and waits for it."""
    lab = own_lab([])
    job = lab.popen(
        ["run", "--on", "local", "--", "sh", "-c", "trap '' TERM; echo up; sleep 60"], stdout=subprocess.PIPE
    )
    assert job.stdout and job.stdout.readline() == b"up\n"
    os.kill(only_node(lab).pid, 15)
    assert job.wait(120) == 74
    job.stdout.close()
    assert follows(lab)
    assert lab.wait_idle() == []


def test_a_lock_has_one_name_and_its_holders_an_order(tmp_path: Path) -> None:
    """As long as a file is open nothing else has its inode, so a copy, or what replaces it, is another one."""
    said = []
    for name in ("one", "one", "copy"):
        if name == "copy":
            shutil.copy(tmp_path / "one", tmp_path / "copy")
        fd = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT, 0o600)
        said.append(rendezvous.seat(fd))
        os.close(fd)
    first, second, other = said
    assert first["origin"] == second["origin"] != other["origin"]
    assert first["began"] < second["began"]  # type: ignore[operator]


def test_a_lock_that_cannot_be_marked_has_no_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    assert rendezvous.seat(fd).keys() == {"since"}
    path.write_bytes(b"\xff" * 32)
    assert rendezvous.seat(fd).keys() == {"since"}
    os.close(fd)


def test_a_job_inherits_nothing_of_who_started_the_node(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab([])
    env = {"QUINE_SESSION_ID": "s", "QUINE_MAX_TURNS": "3", "QUINE_API_BASE": "b", "A": "1"}
    starter = f"trap '' QUIT USR1; ulimit -Sf 4; exec {lab.quine} run --on local -- true"
    subprocess.run(["sh", "-c", starter], env=lab.overlaid(env), cwd=lab.work, check=True)
    script = "env; grep SigIgn /proc/self/status; ulimit -f"
    done = lab.run(["run", "--on", "local", "--", "sh", "-c", script], check=True)
    lines = done.stdout.decode().splitlines()
    assert {line.partition("=")[0] for line in lines if line.startswith("QUINE_")} == {
        "QUINE_BROKER_IDLE",  # of the caller, as the next one
        "QUINE_INVENTORY",
        "QUINE_CREDENTIALS_FD",
    }
    libc = 0b11 << 31  # 32 and 33 are the C library's own
    assert int(lines[-2].split()[1], 16) & ~libc == 0 and lines[-1] == "unlimited" and "A=1" not in lines


def test_a_job_here_has_its_callers_environment(lab: Lab, tmp_path: Path) -> None:
    for place in ([], ["--report", tmp_path / "r"], ["--on", "local"]):
        done = lab.run(["run", *place, "--", "sh", "-c", "echo $A; pwd"], env={"A": "1"}, cwd=tmp_path)
        assert done.stdout.decode() == f"1\n{tmp_path}\n", place


def test_a_node_is_not_stopped_under_a_job_unasked(own_lab: Callable[..., Lab]) -> None:
    """Also one that a client here carries to a host: it would be lost."""
    lab = own_lab(["h1"])
    for place in ("local", "h1"):
        with lab.popen(
            ["run", "--on", place, "--", "sh", "-c", "echo up; read x"], stdin=-1, stdout=-1
        ) as job:
            read_until(job.stdout.fileno(), b"up")
            refused = lab.run(["node", "--stop"])
            assert refused.returncode == 1 and b"1 job would end with it: sh -c echo up" in refused.stderr
            job.communicate(b"\n", timeout=120)
            assert job.returncode == 0
    with lab.popen(["run", "--on", "local", "--", "sh", "-c", "echo up; read x"], stdin=-1, stdout=-1) as job:
        read_until(job.stdout.fileno(), b"up")
        assert lab.run(["node", "--stop", "--force"]).returncode == 0
        assert job.wait(120) in (74, -15, 143)
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    assert lab.run(["node", "--stop"]).returncode == 0


def test_a_signal_that_no_machine_has_is_ignored(lab: Lab, call: Callable[[], socket.socket]) -> None:
    connection = call()
    frames = [
        Frame(
            Kind.SPAWN, 1, 0, 0, pack({**SPAWN, "id": "lives", "argv": ["sh", "-c", "read x; echo lives"]})
        ),
        Frame(Kind.SIGNAL, 1, LIFE, 1, pack({"signal": "NOPE"})),
        Frame(Kind.DATA, 1, 0, 0, b"x\n"),
    ]
    connection.sendall(hello() + b"".join(map(encode, frames)))
    read_until(connection.fileno(), b"lives")


def test_the_same_id_twice_is_one_job(lab: Lab, call: Callable[[], socket.socket]) -> None:
    connection = call()
    # The job of a test before this one, with the id of `SPAWN`, may not have ended yet.
    body = pack({**SPAWN, "id": "twice", "argv": ["sh", "-c", "echo started; cat"]})
    connection.sendall(
        hello() + encode(Frame(Kind.SPAWN, 1, 0, 0, body)) + encode(Frame(Kind.SPAWN, 3, 0, 0, body))
    )
    answer = b""
    while b"its id runs already" not in answer or b"started" not in answer:
        data = connection.recv(65536)
        assert data, answer
        answer += data
    assert answer.count(b"started") == 1


@pytest.mark.parametrize("answer", [b'{"pid": 1, "jo', b"SSH-2.0-x\r\n", b"[1]", b""])
def test_an_answer_that_is_none_of_a_node(tmp_path: Path, answer: bytes) -> None:
    """It was killed in mid-answer, or a stranger is there."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(64)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert rendezvous.status(str(tmp_path / "sock")) is None
        thread.join()


def test_a_jobs_end_is_the_end_of_all_it_held(lab: Lab, call: Callable[[], socket.socket]) -> None:
    """Clients that are killed, commands that cannot be started: the node is left as it was."""

    def facts() -> tuple[int, int]:
        status = rendezvous.status(str(node_file(lab, "sock")))
        assert status
        return status["jobs"], len(os.listdir(f"/proc/{only_node(lab).pid}/fd"))

    lab.run(["run", "--on", "local", "--", "true"], check=True)
    until(lambda: facts()[0] == 0)  # not even a job of the test before
    before = facts()
    for _ in range(2):
        process = lab.popen(
            ["run", "--on", "local", "--", "sh", "-c", "echo up; sleep 60"], stdout=subprocess.PIPE
        )
        assert process.stdout and process.stdout.readline() == b"up\n"
        process.kill()
        process.communicate()
        lab.run(["run", "--on", "local", "--", "x" * 70_000])
    assert lab.wait_idle() == []
    until(lambda: facts() <= before)

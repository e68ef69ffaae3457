"""Agents on other machines that fork further: bytes by way of the origin, hosts as its inventory allows. Real sshd."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.host import Host
from deploy.inventory import Inventory
from quine.remote.placement import Placer
from tests.lab import Lab
from tests.support.agents import LOOK, OK, PATIENCE, call, says, sh, until
from tests.support.loads import idle
from tests.support.remote_agents import environment, results, tapes, warm, with_rights
from tests.support.waiting import read_until
from transport import node_socket, this_build
from transport.errors import Denied, NoSuchHost
from transport.node.daemon import Node
from transport.node.link import Link
from transport.spawn import Spawn
from transport.wire.frames import GREETING, Kind
from transport.wire.resume import Handshake, Line, hello


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def reach(lab: Lab) -> Lab:
    return with_rights(lab)


def lived(process: subprocess.Popen[bytes], data: Path, entries: int, *missions: str) -> None:
    """Wait until each of these has so many entries on its tape."""
    while min(len(tapes(data).get(mission, ())) for mission in missions) < entries:
        assert process.poll() is None
        time.sleep(LOOK)


# -- agents ----------------------------------------------------------------------------------------


def test_three_levels_on_three_hosts(reach: Lab, data: Path) -> None:
    """At first the root forks beside itself: `local` is the host that it is on, and so is the name of that."""
    beside = [{"intent": "beside 1", "host": "local"}, {"intent": "beside 2", "host": "b1"}]
    env = environment(
        reach,
        data,
        says(call("fork", children=beside, wait=True), match="^root"),
        says(sh("echo $QUINE_NODE_NAME >&4"), OK, match="^beside"),
        says(call("fork", intent="child", host="b2", wait=True, stdin="inherit"), match="^root"),
        says(sh("echo $QUINE_NODE_NAME >&4"), OK, match="^root"),
        says(call("fork", intent="grandchild", host="@c", wait=True, stdin="inherit"), match="^child"),
        says(sh("echo $QUINE_NODE_NAME >&4"), call("exit", status=4, stderr="four\n"), match="^child"),
        says(sh("{ echo $QUINE_NODE_NAME; cat <&3; } >&4; echo note >&5"), OK, match="^grandchild"),
    )
    done = reach.run(["--on", "b1", "root"], env=env, input="material\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b1\n", b"")
    grandchild = results(data, "child")[1]  # the first one told it who it is
    assert grandchild.startswith("[EXIT CODE] 0\n[STDOUT]\nb3\nmaterial\n\n[STDERR]\nnote\n")
    first, second, _ = results(data, "root")
    assert first.count("[STDOUT]\nb1\n") == 2
    assert second.startswith("[EXIT CODE] 4\n[STDOUT]\nb2\n\n[STDERR]\nfour\n")
    found = tapes(data)
    metas = [found[mission][0]["data"] for mission in ("root", "child", "grandchild")]
    assert [(meta["node"], meta["depth"]) for meta in metas] == [("b1", 0), ("b2", 1), ("b3", 2)]
    assert [meta["parent_session_id"] for meta in metas[1:]] == [meta["session_id"] for meta in metas[:-1]]
    assert {tape[-1]["type"] for tape in found.values()} == {"outcome"}
    assert reach.run(["tape", "verify"], env=env).returncode == 0
    for host in reach.hosts.values():
        assert not list(host.home.rglob("*.jsonl"))


def test_what_may_not_be_forked_to_is_denied_and_not_even_named(reach: Lab, data: Path) -> None:
    """Every way to ask is denied, and the agent goes on."""
    inside = (
        "quine --on b3 x; echo $?; quine run --on b3 -- true; echo $?; quine run --on '!b4' -- true; echo $?"
    )
    env = environment(
        reach,
        data,
        says(call("fork", intent="child", host="b3", wait=True), match="^root"),
        says(call("fork", intent="child", host="nowhere", wait=True), match="^root"),
        says(sh(inside), match="^root"),
        says(sh("echo alive >&4"), OK, match="^root"),
    )
    done = reach.run(["--on", "b4", "root"], env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"alive\n", b"")
    one, two, three = results(data, "root")[:3]
    for result, host in ((one, "b3"), (two, "nowhere")):
        assert result.startswith("[EXIT CODE] 77\n")
        assert f"[STATE] denied: may_fork does not allow '{host}' from here; allowed: b4" in result
        assert "quine: b4: hint: see may_fork of [hosts.b4]" in result
    assert three.split("[STDERR]")[0].split() == ["[EXIT", "CODE]", "0", "[STDOUT]", "77", "77", "77"]
    assert set(tapes(data)) == {"root"}
    for result in (one, two, three):
        assert not any(name in result for name in ("b1", "b2", "h1", "h2", "h3"))


def test_the_whole_command_line_works_over_there(reach: Lab, data: Path) -> None:
    inside = (
        "echo material | quine --on b2 child | tr a-z A-Z; "
        "quine run --on b2 -- sh -c 'echo $QUINE_NODE_NAME; pwd; exit 7'; echo $?; pwd; "
        "quine run --on b2 -- yes | head -1; quine run --on b2 -- sh -c 'kill -9 $$'; echo $?"
    )
    env = environment(
        reach,
        data,
        says(sh(inside), OK, match="^root"),
        says(sh("{ cat <&3; echo $QUINE_NODE_NAME; } >&4"), OK, match="^child"),
    )
    done = reach.run(["--on", "b1", "root"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = results(data, "root")[0].splitlines()
    root = tapes(data)["root"][0]["data"]["session_id"]
    assert lines[2:5] == ["MATERIAL", "B2", "b2"]
    assert lines[5] == f"{reach['h2'].home}/quine/{root}" and lines[6] == "7"
    assert lines[7] == f"{reach['h1'].home}/quine/{root}"
    assert lines[8:10] == ["y", "137"]
    assert tapes(data)["child"][0]["data"]["parent_session_id"] == root
    assert reach.wait_idle() == []


def test_a_plain_job_may_ask_too(reach: Lab) -> None:
    """A job that is no agent uses the inventory of its origin too, and the rights it gives."""
    command = "quine run --on b2 -- sh -c 'cat; echo $QUINE_NODE_NAME'; quine run --on b3 -- true; echo $?"
    done = reach.run(["run", "--on", "b1", "--", "sh", "-c", command], input="x\n")
    assert done.stdout == b"x\nb2\n77\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("whom", ["root", "child"])
def test_a_signal_ends_all_of_it(reach: Lab, data: Path, whom: str) -> None:
    env = environment(
        reach,
        data,
        says(call("fork", intent="child", host="b2", wait=True), OK, match="^root"),
        says(sh("echo up >&5; sleep 60"), OK, match="^child"),
    )
    process = reach.popen(["--on", "b1", "root"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lived(process, data, 4, "child")
    if whom == "root":
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    else:
        reach["h2"].kill_processes()  # node and all
        assert process.wait(PATIENCE) == 0
        assert "[STATE] lost" in results(data, "root")[0] and "b2" in results(data, "root")[0]
    process.communicate()
    assert reach.wait_idle() == []


def test_who_has_asked_is_gone_and_so_is_what_it_asked_for(reach: Lab) -> None:
    """A job that has ended has no rights any more: the jobs that it started elsewhere end with it."""
    inside = "setsid quine run --on b2 -- sh -c 'echo up >&2; exec sleep 60' >/dev/null & "
    process = reach.popen(
        ["run", "--on", "b1", "--", "sh", "-c", inside + "read x"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr and process.stdin
    read_until(process.stderr.fileno(), b"up\n")
    process.stdin.close()
    process.stderr.close()
    assert process.wait(PATIENCE) == 1  # of `read` at an end of file
    assert reach.wait_idle() == []


@pytest.mark.long
@pytest.mark.timeout(400)  # each link is made anew eight times
def test_a_break_of_either_link_is_not_noticed(reach: Lab, data: Path) -> None:
    """b1's and b2's connections are cut again and again while 20 MB go from b2 by way of the origin to b1.

    Cuts come after a number of bytes, not seconds: on a busy machine the seconds are over before the next connection.
    The bytes wait for the plan of cuts, which is made when all has been started: a failed start is not tried again.
    """
    reach.alias("b2", "h2", reach["h2"].proxy, lease=60)
    reach.alias("b1", "h1", reach["h1"].proxy, may_fork=["b2"], lease=60)
    size, begun, go = 20_000_000, data.parent / "begun", data.parent / "go"
    os.mkfifo(go)
    command = "quine run --on b2 -- true; quine child & "
    command += f"quine run --on b2 -- sh -c 'touch {begun}; read x <{go}; head -c {size} /dev/zero' | md5sum >&4; wait"
    again = "until quine run --on b2 -- echo {} 2>/dev/null; do :; done"  # a job that never started may be retried
    env = environment(
        reach,
        data,
        says(sh(command), OK, match="^root"),
        *(says(sh(again.format(n)), match="^child") for n in range(12)),
        says(OK, match="^child"),
    )
    proxies = [reach[host].proxy for host in ("h1", "h2")]
    before = [proxy.cuts() for proxy in proxies]
    process = reach.popen(["--on", "b1", "root"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lived(process, data, 1, "child")
    until(begun.exists)
    for proxy, first in zip(proxies, (1_000_000, 2_000_000), strict=True):
        proxy.cut_after(first, *[2_000_000] * 7)
    with open(go, "w") as line:
        line.write("\n")
    out, err = process.communicate(timeout=300)
    assert [proxy.cuts() - some for proxy, some in zip(proxies, before, strict=True)] == [8, 8]
    expected = subprocess.run(
        f"head -c {size} /dev/zero | md5sum", shell=True, capture_output=True, check=True
    )
    assert (process.returncode, out, err) == (0, expected.stdout, b"")
    assert reach.run(["tape", "verify"], env=env).returncode == 0
    assert [result.splitlines()[2] for result in results(data, "child")] == [str(n) for n in range(12)]


@pytest.mark.long
def test_when_the_origin_is_gone_for_good_all_of_it_ends_in_peace(reach: Lab, data: Path) -> None:
    """The agent gets an error that its origin does not answer, and has time to end its commands; so has its child."""
    reach.alias("b1", "h1", reach["h1"].proxy, may_fork=["b2"])
    warm(reach, "b1")
    ended = data.parent / "ended"
    ready = f"{data.parent}/ready.$$"
    patient = f"(trap 'echo ended >>{ended}; exit' TERM; : >{ready}; while :; do sleep 0.1; done) & "
    patient += f"while ! [ -e {ready} ]; do sleep 0.01; done; echo up >&4"
    env = environment(
        reach,
        data,
        says(sh("quine --on b2 child & " + patient), match="^root"),
        {**says(sh("sleep 0.2"), match="^root"), "repeat": True},
        says(sh(patient), match="^child"),
        {**says(sh("sleep 0.2"), match="^child"), "repeat": True},
    )
    options = ["--max-turns", "0", "--on", "b1"]
    process = reach.popen([*options, "root"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lived(process, data, 9, "root", "child")
    reach["h1"].proxy.refuse()
    reach["h1"].proxy.cut()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 74 and b"longer than the lease" in err
    assert reach.wait_idle(90) == []
    assert ended.read_text() == "ended\n" * 2


# -- the rule ---------------------------------------------------------------------------------------

HOSTS = {
    name: Host(name=name, tags=tags, may_fork=may)
    for name, tags, may in (
        ("a", ("x",), ()),
        ("b", ("x",), ("@x",)),
        ("c", (), ("any", "local")),
        ("d", (), ("a,c!c", "!a")),
    )
}


@pytest.mark.parametrize(
    ("name", "reach"), [("a", "a"), ("b", "ab"), ("c", "abcd"), ("d", "abcd"), ("e", "")]
)
def test_what_may_fork_means(name: str, reach: str) -> None:
    inventory = Inventory(HOSTS)
    for each in (*HOSTS, "nowhere", "@nothing"):
        if each in reach:
            assert inventory.select(each, idle, asking=name).name == each
        else:
            with pytest.raises(Denied) as caught:
                inventory.select(each, idle, asking=name)
            assert caught.value.status == 77
    if reach:
        assert inventory.select("any", idle, asking=name).name == reach[0]


def test_only_our_own_node_says_where_a_job_comes_from(tmp_path: Path) -> None:
    """A context of a client that names a host makes its own choice narrower, never wider."""
    path = tmp_path / "inventory.toml"
    path.write_text("[hosts.a]\n[hosts.b]\n")
    place = Placer()
    context = {"inventory": str(path)}
    assert place(Spawn(["x"], where="b", context=context), idle).name == "b"
    with pytest.raises(Denied):
        place(Spawn(["x"], where="b", context={**context, "from": "a"}), idle)
    with pytest.raises(NoSuchHost):
        place(Spawn(["x"], where="z", context=context), idle)


# -- nodes that ask for what they may not -----------------------------------------------------------


def exit_of(node: Node, name: str, spawn: dict[str, Any], dialled: bool = True) -> dict[str, Any]:
    """Return the exit record with which a node answers a spawn, on a link to a host or of an origin."""
    facts = {"build": this_build.build_hash()}
    ours, theirs = Line(dialled, name), Line(not dialled, name)
    link = Link(ours, "h", node._on_open, node._on_link_lost, None)
    for line in (ours, theirs):
        handshake = Handshake()
        handshake.feed(GREETING + hello(facts, name, 0, resume=False))
        line.join(handshake)
    theirs.open(Kind.SPAWN, spawn)
    link.received(b"".join(theirs.pull(1 << 20)))
    assert not link.dead, link.dead
    frames = list(theirs.receive(b"".join(ours.pull(1 << 20))))
    return next(frame.body() for frame in frames if frame.kind == Kind.EXIT)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Node]]:
    inventory = tmp_path / "inventory.toml"
    inventory.write_text("[hosts.a]\n")
    with tempfile.TemporaryDirectory() as directory:  # a short name
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        path = Path(node_socket.socket_path())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        yield lambda: Node(Placer())
        monkeypatch.undo()


@pytest.mark.parametrize("where", ["a", "any"])
@pytest.mark.parametrize("job", [None, 0, 1, 7, "1", [1], {}, 1.0, True, -1])
def test_a_host_that_was_given_no_job_can_start_none(
    node: Callable[[], Node], tmp_path: Path, where: str, job: object
) -> None:
    """It can start none at the origin, where the keys are, or elsewhere: it is there to serve, and its link ends."""
    context = {"inventory": str(tmp_path / "inventory.toml"), "job": job, "from": "a"}
    argv = ["touch", str(tmp_path / "it ran")]
    spawn = Spawn(argv, where=where, context=context, cwd="/").to_json()

    async def main(spawn: dict[str, Any]) -> dict[str, Any]:
        return exit_of(node(), "0" * 32, spawn)

    for here in ("", "local"):
        with pytest.raises(AssertionError, match="dialled to serve"):
            asyncio.run(main({**spawn, "where": here}))
    record = asyncio.run(main(spawn))
    assert (record["state"], record["code"], record["pid"]) == ("denied", 77, 0)
    assert not (tmp_path / "it ran").exists()

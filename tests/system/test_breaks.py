"""The link is cut at random bytes while bytes, commands and a tree of agents cross it: all of it arrives, once.

CI runs a short form; QUINE_TEST_BREAKS=200 runs a gigabyte, 500 commands and that many cuts of each.
`make test-carriers` runs it by the ssh program and by a command.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quine.tape import verify
from tests.lab import Lab
from tests.support.agents import OK, call, says, sh, until
from tests.support.crowd import Crowd
from tests.system import breaks
from tests.system.breaks import BLOCK, CUTS, LONG, PYTHON, QUIET, MiB, proxy_process

# A tree, twice or three times, takes 100 s on a very busy machine.
pytestmark = pytest.mark.timeout(300 + 15 * CUTS)
SEEDS = (1, 2)


def cat(lab: Lab, host: str, size: int) -> float:
    """`size` bytes there and back through `cat`; the seconds it took."""
    begun = time.monotonic()
    with proxy_process(lab, "run", "--on", host, "--", "cat") as process:
        result = breaks.carried(process, 1, 1, size)
    assert result == ("", 0, b"")
    return time.monotonic() - begun


@pytest.mark.long
def test_bytes_both_ways_at_once(lab: Lab, through: Callable[..., str]) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    size, cuts = (1024 * MiB, CUTS) if LONG else (24 * MiB, 12)
    dial = breaks.dial_seconds(lab, host, proxy)
    before = proxy.carried()
    uncut = cat(lab, host, size)
    carried = proxy.carried() - before
    assert carried > 2 * size
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(1, cuts, carried))
    cut = cat(lab, host, size)
    assert proxy.cuts() - done == cuts
    breaks.in_time(
        cut, uncut, cuts, dial, lambda: (cat(lab, host, size), breaks.dial_seconds(lab, host, proxy))
    )


def commands(lab: Lab, host: str, count: int, directory: Path) -> float:
    """Run so many commands, four at a time; each prints its number, notes it on the host and has its own status.

    It prints more text too, or handshakes after cuts in handshakes would be most of the bytes on the line.
    """
    directory.mkdir()
    ran = directory / "ran"
    far = f"n=%; echo $n >>{ran}; echo $n; seq 3000; echo error $n >&2; exit $((n - n / 7 * 7))"
    near = f"quine run --quiet --on {host} -- sh -c '{far}' >{directory}/out% 2>{directory}/err%; echo % $?"
    begun = time.monotonic()
    done = lab.sh(f"seq {count} | xargs -P 4 -I% sh -c {shlex.quote(near)}", timeout=900)
    took = time.monotonic() - begun
    numbers = range(1, count + 1)
    errors = {n: (directory / f"err{n}").read_text() for n in numbers}
    assert errors == {n: f"error {n}\n" for n in numbers}
    assert Counter(done.stdout.decode().splitlines()) == Counter(f"{n} {n % 7}" for n in numbers)
    rest = "".join(f"{line}\n" for line in range(1, 3001))
    assert [n for n in numbers if (directory / f"out{n}").read_text() != f"{n}\n{rest}"] == []
    assert Counter(breaks.lines(ran)) == Counter(map(str, numbers)), "not each of them once over there"
    return took


@pytest.mark.long
def test_short_commands_run_once(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    count, cuts = (500, CUTS) if LONG else (60, 12)
    dial = breaks.dial_seconds(lab, host, proxy)
    before = proxy.carried()
    uncut = commands(lab, host, count, tmp_path / "uncut")
    carried = proxy.carried() - before
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(2, cuts, carried))
    cut = commands(lab, host, count, tmp_path / "cut")
    assert proxy.cuts() - done == cuts
    breaks.in_time(
        cut, uncut, cuts, dial,
        lambda: (commands(lab, host, count, tmp_path / "again"), breaks.dial_seconds(lab, host, proxy)),
    )  # fmt: skip


# -- agents ----------------------------------------------------------------------------------------

LEAVES = 3  # of each branch, two of them with its neighbour


def note(ran: Path, command: str) -> str:
    """The command, and each time it is run a line that says by whom and where."""
    return f'echo "$QUINE_SESSION_ID $QUINE_NODE_NAME" >>{ran}; {command}'


def tree(crowd: Crowd, hosts: list[str], ran: Path) -> None:
    """The root here, a branch on each host, its leaves there and on the next one; all talk much and say who they are.

    The last word of a mission is where it is.
    """
    much = note(ran, f"seq {40_000 if LONG else 4_000}")
    name = note(ran, "seq 2000; echo leaf $QUINE_NODE_NAME >&4")
    crowd.says(
        "root", says(sh(much)), says(fork({f"branch-{host} {host}": host for host in hosts})), says(OK)
    )
    for host, other in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        leaves = fork(
            {f"leaf {host}.{n} {at}": at.removeprefix(host) for n, at in enumerate((host, other, other))}
        )
        crowd.says(f"branch-{host}", says(sh(much)), says(leaves), says(sh(name)), says(OK))
    crowd.says("leaf", says(sh(much)), says(sh(name)), says(OK))


def fork(children: dict[str, str]) -> dict[str, Any]:
    """Missions, and where."""
    asked = [{"intent": mission} | ({"host": host} if host else {}) for mission, host in children.items()]
    return call("fork", children=asked, wait=True)


def grow(lab: Lab, hosts: list[str], directory: Path) -> float:
    """Run the tree; every agent has done each thing once, and its tape is whole. The seconds it took."""
    directory.mkdir()
    ran = directory / "ran"
    with Crowd(directory) as crowd:
        tree(crowd, hosts, ran)
        begun = time.monotonic()
        keys = ("QUINE_API_TYPE", "QUINE_API_BASE", "QUINE_DATA_DIR", "CROWD")
        done = lab.run(
            ["root"],
            env={
                **{key: crowd.env[key] for key in keys},
                "QUINE_MAX_AGENTS": "0",
                "QUINE_OUTPUT_TRUNCATE": "500000",
                "QUINE_CONTEXT_WINDOW": "10000000",
            },
            timeout=900,
        )
        took = time.monotonic() - begun
        assert (done.returncode, done.stdout) == (0, b""), done.stderr
        tapes = {
            path: [json.loads(line) for line in path.read_text().splitlines()]
            for path in crowd.data.glob("*.jsonl")
        }
        (root,) = [tape for tape in tapes.values() if tape[0]["data"]["mission"] == "root"]
        result = next(e["data"]["content"] for e in reversed(root) if e["type"] == "tool_result")
        assert all(f"leaf {host}\n" in result for host in hosts)
        assert [
            (path.name, state) for path in tapes if (state := verify.verify(path).state) != verify.OK
        ] == []
        # sign, session of the root, whose guest it is, ordinal, mission
        told = [re.sub("^(.) [^ ]+", "\\1", line) for line in crowd.log.read_text().splitlines()]
    metas = [tape[0]["data"] for tape in tapes.values()]
    agents = 1 + len(hosts) * (1 + LEAVES)
    assert len(metas) == agents and all(tape[-1]["data"]["exit_code"] == 0 for tape in tapes.values())
    kinds = {meta["session_id"]: meta["mission"].split()[0].split("-")[0] for meta in metas}
    each = {"root": (3, 1), "branch": (4, 2), "leaf": (3, 2)}  # inferences, commands
    missions = [(meta["mission"], each[kinds[meta["session_id"]]][0]) for meta in metas]
    inferences = Counter(
        f"{sign} {n} {mission}" for mission, count in missions for n in range(count) for sign in "+-"
    )
    assert Counter(told) == inferences, "not each inference once"
    places = {meta["session_id"]: meta["mission"].split()[-1].replace("root", "") for meta in metas}
    wanted = Counter({f"{session} {places[session]}": each[kind][1] for session, kind in kinds.items()})
    assert Counter(breaks.lines(ran)) == wanted, "not each command once"
    return took


@pytest.mark.long
def test_a_tree_on_three_hosts(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    names = ["h1", "h2", "h3"]
    hosts = [through(name, tags=["tree"], may_fork=["@tree"]) for name in names]
    proxies = [lab[name].proxy for name in names]
    cuts = CUTS // 3 if LONG else 5  # of each
    dial = breaks.dial_seconds(lab, hosts[0], proxies[0])
    before = [proxy.carried() for proxy in proxies]
    uncut = grow(lab, hosts, tmp_path / "uncut")
    carried = [proxy.carried() - then for proxy, then in zip(proxies, before, strict=True)]
    done = [proxy.cuts() for proxy in proxies]
    for seed, (proxy, size) in enumerate(zip(proxies, carried, strict=True)):
        proxy.cut_after(*breaks.plan(30 + seed, cuts, size))
    cut = grow(lab, hosts, tmp_path / "cut")
    assert [proxy.cuts() - then for proxy, then in zip(proxies, done, strict=True)] == [cuts] * 3
    breaks.in_time(
        cut, uncut, 3 * cuts, dial,
        lambda: (grow(lab, hosts, tmp_path / "again"), breaks.dial_seconds(lab, hosts[0], proxies[0])),
    )  # fmt: skip


# -- chosen bytes ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 30, 1500, 3000, 4500])
def test_a_first_dial_that_breaks_off_is_dialled_again(
    lab: Lab, through: Callable[..., str], tmp_path: Path, at: int
) -> None:
    """Twice, in the handshake of ssh or between it and the greeting; the host is a new one, its link too."""
    proxy = lab["h1"].proxy
    through("h1")  # the binary is there, for what it costs to send it is not the matter
    host = lab.alias("fresh", "h1", proxy, tags=[str(at)], env={"FRESH": str(at)})
    done = proxy.cuts()
    proxy.cut_after(at, at)
    result = lab.run([*QUIET, "--on", host, "--", "sh", "-c", f"echo $FRESH >>{tmp_path}/ran; exit 3"])
    assert (result.returncode, result.stderr) == (3, b"")
    assert breaks.lines(tmp_path / "ran") == [str(at)] and proxy.cuts() == done + 2


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 20_000, 70_000, 130_000])
def test_a_spawn_that_is_cut_in_the_middle(
    lab: Lab, through: Callable[..., str], tmp_path: Path, at: int
) -> None:
    """Argv and environment fill several frames."""
    host, proxy = through("h1"), lab["h1"].proxy
    ran = tmp_path / "ran"
    done = proxy.cuts()
    proxy.cut_after(at)
    words = [*QUIET, "--on", host, "--", "sh", "-c", f"echo $# >>{ran}; echo $2 | tail -c 9; exit 5", "sh"]
    result = lab.run([*words, "x" * 120_000, "y" * 60_000 + "the end"], timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (5, b"ythe end\n", b"")
    assert breaks.lines(ran) == ["2"] and proxy.cuts() == done + 1


@pytest.mark.long
@pytest.mark.parametrize("at", [1_000, 40_000, 200_000])
def test_a_request_that_is_cut_in_the_middle(
    lab: Lab, through: Callable[..., str], tmp_path: Path, at: int
) -> None:
    """A conversation of 400 kB goes up, and again with the next inference; the guest is asked once for each."""
    host, proxy = through("h1"), lab["h1"].proxy
    with Crowd(tmp_path) as crowd:
        much = says(sh("head -c 400000 /dev/zero | tr '\\0' x"))
        cut = says(sh("echo cut >&4; read go <&3"))
        crowd.says("work", much, cut, says(sh("echo once >>$HOME/once")), says(OK))
        keys = ("QUINE_API_TYPE", "QUINE_API_BASE", "QUINE_DATA_DIR", "CROWD")
        env = {
            **{key: crowd.env[key] for key in keys},
            "QUINE_OUTPUT_TRUNCATE": "500000",
            "QUINE_CONTEXT_WINDOW": "10000000",
        }
        with proxy_process(lab, "--on", host, "work", env=env) as process:
            assert process.stdout and process.stdout.readline() == b"cut\n"
            proxy.cut_after(at, 30_000)
            out, err = process.communicate(b"go\n", timeout=120)
        assert (process.returncode, out, err) == (0, b"", b"")
        asked = [line.split(" ")[2] for line in crowd.log.read_text().splitlines() if line.startswith("+")]
        assert asked == ["0", "1", "2", "3"]
        assert [verify.verify(path).state for path in crowd.data.glob("*.jsonl")] == [verify.OK]
    once = lab["h1"].home / "once"
    assert breaks.lines(once) == ["once"]
    once.unlink()


def test_a_slow_reader_while_the_link_is_cut(lab: Lab, through: Callable[..., str]) -> None:
    """Both ends read slowly while each sends a stream of its own: bytes wait in the windows when the cut comes."""
    host, proxy = through("h1"), lab["h1"].proxy
    size = 256 * BLOCK if LONG else 32 * BLOCK
    far = [PYTHON, Path(breaks.__file__), SEEDS[0], SEEDS[1], size]
    cuts = 0

    def between(number: int) -> None:
        nonlocal cuts
        if number % 8 == 3:
            until(proxy.connections)  # the bytes read meanwhile may all have been here
            cuts += proxy.cut()

    with proxy_process(lab, "run", "--on", host, "--", *far) as process:
        result = breaks.carried(process, SEEDS[0], SEEDS[1], size, between)
    assert result == ("", 0, b"")
    assert cuts >= size // BLOCK // 8


def test_many_jobs_share_what_breaks(lab: Lab, through: Callable[..., str]) -> None:
    """Each waits for its own word when the cut comes, and each gets its own."""
    host, proxy = through("h1"), lab["h1"].proxy
    count = CUTS or 10
    script = "echo up; read word; echo $word $0; exit $0"
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(proxy_process(lab, "run", "--on", host, "--", "sh", "-c", script, n % 60))
            for n in range(count)
        ]
        for job in jobs:
            assert job.stdout and job.stdout.readline() == b"up\n"
        for number, job in enumerate(jobs):
            assert job.stdin
            if number % 3 == 0:
                proxy.cut()
            job.stdin.write(f"word{number}\n".encode())
            job.stdin.flush()
        for number, job in enumerate(jobs):
            out, err = job.communicate(timeout=120)
            assert (out, err) == (f"word{number} {number % 60}\n".encode(), b"")
            assert job.returncode == number % 60


def test_head_ends_the_producer_after_a_cut(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    with proxy_process(
        lab, "run", "--on", host, "--", "sh", "-c", f"yes; kill -l $? >{tmp_path}/died"
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.read(MiB) == b"y\n" * (MiB // 2)
        proxy.cut()
        assert process.stdout.read(MiB) == b"y\n" * (MiB // 2)
        proxy.cut()
        process.stdout.close()
        process.wait(120)
        assert process.stderr.read() == b""
    assert lab.wait_idle() == []
    assert breaks.lines(tmp_path / "died") == ["PIPE"]


def test_an_empty_stdin_ends_where_it_did(lab: Lab, through: Callable[..., str]) -> None:
    """The end of file is sent once, whether it comes before the cut, in it, or after."""
    host, proxy = through("h1"), lab["h1"].proxy
    for at in (1, 200, 400, 800, 1600):
        proxy.cut_after(at)
        done = lab.run([*QUIET, "--on", host, "--", "sh", "-c", "cat; echo end"], input=b"")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")

"""quine xargs --detach --from HOST: a batch that goes on at a host, and is found again from here."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.base.sessions import new_session
from tests.cli.screen import Screen
from tests.fanout.test_xargs import SH, rows
from tests.lab import Lab
from tests.support.agents import PATIENCE
from tests.support.detached import folder, record
from tests.support.waiting import until

WAIT = 'echo "a$0"; until test -e {go}/go; do sleep 0.02; done; echo "b$0"'


@pytest.fixture
def work(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The directory of the caller; at the end the jobs of its batches go on."""
    yield tmp_path
    (tmp_path / "go").touch()
    until(lambda: not lab.jobs(), "all jobs have ended")


def waiting(work: Path) -> str:
    return WAIT.format(go=work)


def away(lab: Lab, work: Path, host: str, *words: str, **more: Any) -> str:
    done = lab.run(["xargs", "--detach", "--from", host, *words], cwd=work, **more)
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = done.stdout.decode().splitlines()
    return line


def ssh(lab: Lab) -> dict[str, str]:
    """An `ssh` for a host, which has a key of its own there."""
    options = f"-F /dev/null -i {lab.identity} -oIdentitiesOnly=yes -oStrictHostKeyChecking=accept-new"
    return {"ssh": f'#!/bin/sh\nexec /usr/bin/ssh {options} -oUserKnownHostsFile="$HOME/known" "$@"\n'}


def test_it_goes_on_at_a_host_by_itself(lab: Lab, work: Path) -> None:
    """The node of this machine is gone meanwhile; every verb finds the batch from here."""
    script = f"{waiting(work)}; echo $QUINE_NODE_NAME; test $0 != 3"
    job = away(lab, work, "h1", "-P3", "-k", "--joblog", "log", *SH, script, input=b"1\n2\n3\n")
    assert record(job, lab["h1"].home)["batch"] is True
    lab.run(["node", "--stop", "--force"])
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 123
    expected = b"".join(b"a%d\nb%d\nh1\n" % (n, n) for n in (1, 2, 3))
    assert lab.run(["logs", job]).stdout == expected
    attached = lab.run(["attach", job])
    assert (attached.returncode, attached.stdout) == (123, expected)
    told = "quine: error: 1 of 3 items are not done: 1 failed\nquine: hint: item 3 (3): status 1\n"
    assert attached.stderr.decode() == told
    log = lab["h1"].home / "log"
    assert [row[12] for row in rows(log)] == ["done", "done", "failed"]
    log.unlink()
    found = [json.loads(line) for line in lab.run(["ps", "-a", "--json", "--on", "h1"]).stdout.splitlines()]
    (fact,) = [fact for fact in found if fact["id"] == job]
    assert (fact["host"], fact["state"], fact["code"]) == ("h1", "exited", 123)
    assert fact["mission"].startswith("quine xargs --detach --from h1 -P3 -k ")


def test_its_inputs_are_sent_and_its_variables(lab: Lab, work: Path) -> None:
    (work / "list").write_text("x\ny\n")
    (work / "other").write_bytes(b"p\nq\xff")
    script = [
        *("xargs", "--detach", "--from", "h1", "-k", "--env", "SECRET", "--env", "B=two", "-a", "list"),
        *(*SH, 'echo "$SECRET $B $1 $2 $3 $4"; pwd', "_", "{1}", "{2}", "{3}", "{4}"),
        *("::::", "-", "::::", "other", ":::", "-é'"),
    ]
    done = lab.run(script, cwd=work, input=b"1\n", env={"SECRET": "s3cret"})
    assert (done.returncode, done.stderr) == (0, b"")
    job = done.stdout.decode().strip()
    assert lab.run(["wait", job]).returncode == 0
    home = str(lab["h1"].home).encode()
    words = [(a, b) for a in (b"x", b"y") for b in (b"p", b"q\xff")]
    expected = b"".join(b"s3cret two %s 1 %s -\xc3\xa9'\n%s\n" % (a, b, home) for a, b in words)
    assert lab.run(["logs", job]).stdout == expected
    kept = folder(job, lab["h1"].home)
    assert not any(b"s3cret" in path.read_bytes() for path in kept.iterdir() if path.name == "job")
    assert not folder(job, lab.home).exists()


def test_blocks_of_a_pipe_are_sent(lab: Lab, work: Path) -> None:
    data = "".join(f"{number}\n" for number in range(100_000)).encode()
    job = away(lab, work, "h1", "-k", "--pipe", "--block", "100K", "--", "cat", input=data)
    assert lab.run(["attach", job]).stdout == data


def test_an_id_starts_one_batch_at_one_host(lab: Lab, work: Path) -> None:
    """Starts of one moment follow each other; another host, this machine and another kind are refused."""
    job, log = new_session(), new_session()
    words = ["--job", job, "--joblog", log, *SH, f"echo $0 >>{work}/ran", ":::", "1"]
    nowhere = lab.by_command("nowhere", "h1", command=["false"])
    assert lab.run(["xargs", "--detach", "--from", nowhere, *words], cwd=work).returncode == 69
    starts = [
        lab.popen(
            ["xargs", "--detach", "--from", "h1", *words],
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    told = [(*start.communicate(timeout=PATIENCE), start.returncode) for start in starts]
    assert told == [(f"{job}\n".encode(), b"", 0)] * 3
    assert lab.run(["wait", job]).returncode == 0
    assert away(lab, work, "h1", *words) == job
    for start in (
        ["xargs", "--detach", "--from", "h2", *words],
        ["xargs", "--detach", *words],
        ["run", "--detach", "--job", job, "--on", "h2", "--", "true"],
        ["--detach", "--job", job, "--on", "h1", "a mission"],
    ):
        done = lab.run(start, cwd=work, env=lab.script([], "none.jsonl"))
        assert (done.returncode, done.stdout) == (2, b""), start
        assert done.stderr.decode().startswith(
            f"quine: error: job {job} was sent to h1, and an id starts one"
        ), done
    done = lab.run(["run", "--detach", "--job", job, "--on", "h1", "--", "true"])
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"h1: error: job {job} was started as a batch, and an id" in done.stderr.decode()
    assert (work / "ran").read_text() == "1\n"
    (lab["h1"].home / log).unlink()


@pytest.mark.long
def test_it_reaches_other_hosts_by_the_ssh_program_of_its_host(lab: Lab, work: Path, odd_host: Any) -> None:
    """Hosts of the inventory here, which that host does not know; one of them is itself."""
    odd_host("far", scripts=ssh(lab))
    lab.alias("g2", "h2", tags=["g"], slots=1, env={"COLOUR": "blue"}, workdir=str(work / "there"))
    lab.alias("g3", "far", tags=["g"], slots=1)
    script = f"echo $QUINE_NODE_NAME $COLOUR >>{work}/ran; until test -e {work}/go; do sleep 0.02; done"
    job = away(lab, work, "far", "--on", "@g", "-P2", "--joblog", "log", *SH, script, ":::", "1", "2")
    until(lambda: (work / "ran").exists() and len((work / "ran").read_text().splitlines()) == 2, "both run")
    (work / "go").touch()
    waited = lab.run(["wait", job])
    assert waited.returncode == 0, lab.run(["logs", "--stderr", job]).stdout
    assert sorted((work / "ran").read_text().splitlines()) == ["g2 blue", "g3"]
    assert sorted(row[9] for row in rows(lab["far"].home / "log")) == ["g2", "g3"]
    text = (folder(job, lab["far"].home) / "inventory.json").read_text()
    assert str(lab.identity) not in text


@pytest.mark.long
@pytest.mark.parametrize("python", ["", pytest.param("pypy3", marks=pytest.mark.whole)])
def test_its_own_host_is_one_of_several(lab: Lab, work: Path, odd_host: Any, python: str) -> None:
    """Also where its Python reads no TOML."""
    if python and not shutil.which(python):
        pytest.skip(f"no {python} here")
    keys: dict[str, Any] = {"python": python} if python else {}
    odd_host("far", scripts=ssh(lab), inventory=keys)
    script = f"echo $QUINE_NODE_NAME >>{work}/ran; until test -e {work}/go; do sleep 0.02; done"
    lab.alias("far", "far", slots=1, **keys)
    lab.alias("h2", "h2", slots=1)
    job = away(lab, work, "far", "--on", "far,h2", "-P2", *SH, script, ":::", "1", "2")
    until(lambda: (work / "ran").exists() and len((work / "ran").read_text().splitlines()) == 2, "both run")
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 0, lab.run(["logs", "--stderr", job]).stdout
    assert sorted((work / "ran").read_text().splitlines()) == ["far", "h2"]


def test_a_host_without_ssh_says_so_and_starts_nothing(lab: Lab, work: Path, odd_host: Any) -> None:
    programs = work / "bin"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name != "ssh":
            (programs / path.name).symlink_to(path)
    odd_host("far", env={"PATH": str(programs)})
    words = ["xargs", "--detach", "--from", "far", "--on", "h2,h3", "--", "echo", ":::", "1"]
    done = lab.run(words, cwd=work)
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.decode() == (
        "quine: far: error: there is no ssh program, by which h2, h3 would be reached from here\n"
        "quine: far: hint: install OpenSSH there, or leave --on out: its jobs then run on that host itself\n"
    )
    assert not list((lab["far"].home / ".local/state/quine/jobs").glob("0*"))


SSH_CONFIG = """\
Host proxied
  ProxyCommand nc %h %p
Host chained
  ProxyJump one,me@two:2200
"""


REFUSED = (
    (["--from", "h1", "--"], 2, "quine: error: --from goes with --detach\n"),
    (["--detach", "--from", "nohost", "--"], 69, "quine: error: no such host: 'nohost'"),
    (["--detach", "--from", "any", "--"], 2, "quine: error: --from any means "),
    (["--detach", "--from", "h1", "--on", "nohost", "--"], 69, "quine: error: no such host: 'nohost'"),
    (["--detach", "--from", "h1"], 2, "quine: error: --from is for commands: agents "),
    (["--detach", "--from", "h1", "--resume", "--"], 2, "quine: error: --resume and --resume-failed need"),
    (
        ["--detach", "--from", "h1", "--on", "proxied", "--"],
        2,
        "quine: proxied: error: it is reached by a Pr",
    ),
    (["--detach", "--from", "h1", "--on", "chained", "--"], 2, "quine: chained: error: it is behind 2 jump "),
    (["--detach", "--from", "h1", "--on", "boxed", "--"], 2, "quine: boxed: error: it is reached by tra"),
    (["--detach", "--from", "h1", "--output-limit", "0", "--"], 2, "quine: error: --output-limit must not"),
    (["--detach", "--on", "nohost", "--"], 69, "quine: error: no such host: 'nohost'"),
)


def test_what_cannot_work_is_refused_before_anything_is_sent(lab: Lab, work: Path) -> None:
    for name in ("proxied", "chained"):
        lab.alias(name, "h2", address=name, port=None)
    lab.by_command("boxed", "h2")
    config = lab.home / ".ssh" / "config"
    before = config.read_text()
    config.write_text(SSH_CONFIG + before)
    try:
        for words, status, error in REFUSED:
            done = lab.run(["xargs", *words, "no-such-program", ":::", "1"], cwd=work)
            assert (done.returncode, done.stdout) == (status, b""), words
            assert done.stderr.decode().startswith(error), words
    finally:
        config.write_text(before)


def test_it_is_killed_from_here_and_resumed_there(lab: Lab, work: Path) -> None:
    """Until it has ended no other batch has its log."""
    words = ["-P2", "--joblog", "log", *SH, f"echo $0 >>{work}/ran; {waiting(work)}", ":::", "1", "2", "3"]
    job = away(lab, work, "h1", *words)
    until(lambda: (work / "ran").exists() and len((work / "ran").read_text().split()) == 2, "two have begun")
    done = lab.run(["xargs", "--detach", "--from", "h1", *words], cwd=work)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: log is in use by another batch\n" in done.stderr
    assert lab.run(["kill", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 128 + signal.SIGTERM
    (work / "go").touch()
    again = away(lab, work, "h1", "--resume", *words)
    assert lab.run(["wait", again]).returncode == 0
    log = lab["h1"].home / "log"
    assert [row[12] for row in rows(log)] == ["done"] * 3
    log.unlink()


def test_attached_on_a_terminal_its_view_is_below_its_output(lab: Lab, work: Path) -> None:
    """The end of attaching leaves the batch, and a clean terminal."""
    job = away(lab, work, "h1", "-P2", "--line-buffer", *SH, waiting(work), ":::", "1", "2", "3")
    with Screen(columns=80) as screen:
        process = screen.start(lab, ["attach", job], env={"TERM": "xterm"})
        screen.wait(b"2 running, 0.0/s\r\n")
        screen.type(b"\x03")
        assert process.wait(PATIENCE) == -signal.SIGINT
        screen.wait(b"\r\x1b[J")
    with Screen(columns=80) as screen:
        process = screen.start(lab, ["attach", job], env={"TERM": "xterm"})
        screen.wait(b"a1\r\n")
        screen.wait(b"0 of 3: 0 done, 2 running, 0.0/s\r\nlocal  2 running")
        (work / "go").touch()
        screen.wait(b"\r\x1b[J")
        screen.wait(b"b3\r\n")
        assert process.wait(PATIENCE) == 0
    lines = lab.run(["attach", job]).stdout.split()
    assert sorted(lines) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]
    with Screen(columns=80) as screen:
        other = {"stderr": subprocess.PIPE}
        process = screen.start(lab, ["attach", job], env={"TERM": "xterm"}, **other)
        assert process.communicate(timeout=PATIENCE) == (None, b"")
        screen.wait(b"b3\r\n")

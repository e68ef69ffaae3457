"""The verbs on jobs where a host cannot be asked: the status says that it may have the job."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.base.sessions import SHORT
from tests.lab import Lab
from tests.support.detached import detach, forget
from tests.support.detached import go as go
from tests.support.waiting import until
from transport.status import NOT_STARTED


@pytest.fixture
def down(lab: Lab) -> Iterator[str]:
    """The name of a host that refuses every connection."""
    yield lab.alias("down", "h2", 1)
    lab.forget_aliases()


@pytest.mark.long
@pytest.mark.parametrize("verb", ["wait", "logs", "attach", "kill"])
def test_a_job_whose_host_is_down_is_not_said_to_be_none(
    own_lab: Callable[..., Lab], tmp_path: Path, verb: str
) -> None:
    """The words "no such job", as a wrong command line ends, would tell a script that there is nothing to wait for."""
    lab = own_lab(["h1"])
    job = detach(lab, "--on", "h1", "--", "sleep", "8635")
    forget(lab)
    lab["h1"].stop()
    lab.run(["node", "--stop", "--force"], check=True)
    done = lab.run([verb, job])
    assert (done.returncode, done.stdout) == (NOT_STARTED, b"")
    assert b"no such job" not in done.stderr and done.stderr.count(b"quine: h1: error: ") == 1
    assert done.stderr.decode().endswith(
        f"quine: error: {job} is on no host that answered; not asked: h1\n"
        f"quine: hint: try again when it can be reached, or name the host: quine {verb} --on HOST {job}\n"
    )


def test_a_job_is_found_and_listed_without_the_hosts_that_are_down(lab: Lab, down: str, go: Path) -> None:
    """A host that lies can guess the part that `ps` shows, and would be given what is meant for another's job."""
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"read x <{go}; exit 7")
    forget(lab)
    done = lab.run(["wait", "--timeout=0", job])
    assert (done.returncode, done.stderr) == (124, b"")
    done = lab.run(["wait", "--timeout=0", job[:SHORT]])
    assert (done.returncode, done.stderr) == (124, b"")
    done = lab.run(["wait", "--timeout=0", job[: SHORT - 1]])
    assert done.returncode == 124 and done.stderr.count(b"quine: down: error: ") == 1, "it may have another"
    for verb in ("attach", "kill"):  # a part of an id is not enough to send something
        done = lab.run([verb, job[:SHORT]])
        assert (done.returncode, done.stdout) == (NOT_STARTED, b""), verb
        assert done.stderr.decode().endswith(
            f"quine: error: {job[:SHORT]} may begin a job of another host, too; not asked: down\n"
            "quine: hint: try again when it can be reached, or name the host: "
            f"quine {verb} --on HOST {job[:SHORT]}\n"
        )
    done = lab.run(["ps", "--on", f"h1,{down}"])  # a list that lacks a host is not success
    assert done.returncode == NOT_STARTED and job[:18].encode() in done.stdout
    assert done.stderr.count(b"quine: down: error: ") == 1
    assert lab.run(["ps", "--on", "h1"]).returncode == 0
    go.write_text("\n")
    assert lab.run(["wait", job]).returncode == 7, "it was not ended"


def test_no_other_host_is_asked_for_a_job_that_was_started_here(lab: Lab, down: str) -> None:
    """Nothing else claims it, so the part of its id that `ps` shows is enough to send something."""
    job = detach(lab, "--on", "h1", "--", "sleep", "8639")
    for words, status in ((["wait", "--timeout=0"], 124), (["kill"], 0), (["wait"], 128 + 15)):
        done = lab.run([*words, job[:SHORT]])
        assert (done.returncode, done.stderr) == (status, b""), words


def test_a_job_that_is_nowhere_is_said_with_the_hosts_that_were_asked(lab: Lab) -> None:
    none = "0" * 31 + "f"
    done = lab.run(["wait", none])
    names = ", ".join(lab.hosts)
    error = f"quine: error: no such job: {none}; all hosts that were asked have answered: {names}\n"
    assert (done.returncode, done.stdout) == (2, b"") and done.stderr.decode().startswith(error)
    for words in (["wait", "--on=local", none], ["wait", "zzz"]):
        done = lab.run(words)
        assert done.returncode == 2 and b"have answered" not in done.stderr
    assert b"; an id has only the digits 0-9 and a-f, so no host was asked" in done.stderr


@pytest.fixture
def mute(lab: Lab) -> Iterator[str]:
    """The name of a host that takes every connection and says nothing; a dial gives up after 30 s."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield lab.alias("mute", "h2", listener.getsockname()[1])
    lab.forget_aliases()


@pytest.mark.clock  # 20 seconds are less than the 30 after which a dial gives up
@pytest.mark.long  # a second for the others to answer, too, and two to let go of the one that does not
@pytest.mark.parametrize(
    ("verb", "length", "status"),
    [("wait", 36, 7), ("wait", 13, 7), ("logs", 36, 0), ("attach", 36, 7), ("kill", 36, 0)],
)
def test_a_job_that_is_found_is_told_without_a_host_that_is_silent(
    lab: Lab, mute: str, verb: str, length: int, status: int
) -> None:
    words = ["sleep", "8638"] if verb == "kill" else ["sh", "-c", "exit 7"]
    job = detach(lab, "--on", "h1", "--", *words)
    forget(lab)
    done = lab.run([verb, job[:length]], timeout=20)
    assert done.returncode == status
    assert done.stderr.count(b"quine: mute: error: no answer within ") == (length < SHORT)
    assert lab.run(["wait", "--on=h1", job]).returncode == (128 + 15 if verb == "kill" else 7)


@pytest.mark.long
def test_a_list_that_follows_tells_once_of_a_host_that_is_down(lab: Lab, down: str, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        follower = lab.popen(["ps", "-f", "--on", f"h1,{down}"], stdout=out, stderr=err)
    try:
        until((tmp_path / "err").read_bytes, "the first list")
        for n in range(2):  # each is a new list, made after the one before
            job = detach(lab, "--on", "h1", "--", "sleep", "8636")
            until(lambda job=job: job[:18].encode() in (tmp_path / "out").read_bytes(), f"list {n}")
            lab.run(["kill", "--on", "h1", job], check=True)
    finally:
        follower.terminate()
        follower.wait()
    assert (tmp_path / "err").read_bytes().count(b"quine: down: error: ") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [["--on", "h1", "-USR1"], ["-USR1", "--on", "h1"], ["--on", "h1", "JOB", "-10"]]
)
def test_the_name_of_a_signal_is_an_option_at_any_place(lab: Lab, words: list[str]) -> None:
    job = detach(lab, "--on", "h1", "--", "sleep", "8637")
    named = [job if word == "JOB" else word for word in words]
    lab.run(["kill", *named, *([] if job in named else [job])], check=True)
    assert lab.run(["wait", "--on", "h1", job]).returncode == 128 + 10

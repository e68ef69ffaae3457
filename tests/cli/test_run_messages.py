"""The messages of `quine run` and its working directory, as users of ssh and rsync expect them."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from quine.base.cli_options import RunOptions
from quine.jobs.client import show
from tests.lab import Lab
from transport.client import client
from transport.errors import Denied, Misconfigured, NoSuchHost, Refused
from transport.spawn import Spawn
from transport.status import Status

needs_rsync = pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync")


def test_a_command_line_for_a_shell_gets_a_hint_at_one(lab: Lab) -> None:
    for on in ([], ["--on", "h1"], ["--on", "local"]):
        done = lab.run(["run", *on, "--", "ls | wc"])
        assert done.returncode == 127
        assert b"command not found: ls | wc" in done.stderr
        assert b"hint: no shell reads the command; to use one: sh -c 'ls | wc'\n" in done.stderr


def test_a_host_in_the_place_of_a_command_gets_a_hint_at_on(lab: Lab) -> None:
    """With `--` behind the host the hint had it twice, and what it named was not found either."""
    for words, cure in (
        (["pwd"], "-- pwd"),
        (["--", "pwd"], "-- pwd"),
        (["--cwd", "/usr", "--", "pwd"], "--cwd /usr -- pwd"),
        (["--"], "-- CMD"),
        ([], "-- CMD"),
    ):
        done = lab.run(["run", "h1", *words])
        assert done.returncode == 127
        first, hint = done.stderr.decode().splitlines()
        assert first == "quine: error: command not found: h1"
        assert hint == f"quine: hint: to run it on that host: quine run --on h1 {cure}"
    assert b"hint" not in lab.run(["run", "nosuch"]).stderr


def test_a_job_that_was_not_run_is_named(lab: Lab) -> None:
    """It may be one of many, as of xargs."""
    lab["h3"].stop()
    done = lab.run(["run", "--on", "h3", "--", "convert", "an item"])
    assert done.returncode == 69 and b"; not run: convert 'an item'\n" in done.stderr
    done = lab.run(["run", "--on", "h3", "--", "sh", "-c", "one\ntwo"])
    assert b"; not run: sh -c 'one\\ntwo'\n" in done.stderr  # a message is a line
    lab["h3"].start()


@pytest.mark.parametrize(
    ("refused", "state", "code"),
    [
        (Denied("why"), "denied", 77),
        (NoSuchHost("why"), "unreachable", 69),
        (Misconfigured("why"), "unreachable", 2),
    ],
    ids=["denied", "unreachable", "misconfigured"],
)
def test_a_refusal_is_reported_with_the_state_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, state: str, code: int
) -> None:
    """Before anything was sent, as where the node of this machine cannot be had."""

    def refuse(*_: object, **__: object) -> Status:
        raise refused

    monkeypatch.setattr(client, "run", refuse)
    assert show(Spawn(["true"]), RunOptions(report=str(tmp_path / "r"))) == code
    report = json.loads((tmp_path / "r").read_text())
    assert (report["state"], report["code"], report["detail"]) == (state, code, "why")


def test_pwd_is_the_directory_that_the_job_is_in(lab: Lab, tmp_path: Path) -> None:
    script = "import os; print(os.environ['PWD'] == os.getcwd(), 'OLDPWD' in os.environ)"
    real = os.path.realpath(tmp_path)
    for words in (
        ["--on", "h1"],
        ["--on", "h1", "--cwd", real],
        ["--cwd", real],
        ["--on", "local", "--cwd", real],
    ):
        done = lab.run(["run", *words, "--", "python3", "-c", script], env={"OLDPWD": None})
        assert done.stdout == b"True False\n", words


def rsync(lab: Lab, target: str) -> subprocess.CompletedProcess[bytes]:
    (lab.work / "src").write_bytes(b"data")
    return subprocess.run(
        ["rsync", "-e", f"{lab.quine} run --on", "src", target],
        env=lab.env, cwd=lab.work, capture_output=True, check=False, timeout=120,
    )  # fmt: skip


@needs_rsync
def test_rsync_by_quine_run_puts_files_where_a_login_would(lab: Lab) -> None:
    target = lab["h1"].home / "rel"
    target.unlink(missing_ok=True)
    done = rsync(lab, "h1:rel")
    assert (done.returncode, done.stderr) == (0, b"")
    assert target.read_bytes() == b"data"
    target.unlink()


@needs_rsync
def test_rsync_to_a_user_of_a_host_is_told_where_users_stand(lab: Lab) -> None:
    """The inventory gives the user of a host that it has. The exit status of rsync is its own."""
    target = lab["h1"].home / "rel"
    for where, why, cure in (
        (
            "me@h1",
            "error: no such host: 'me@h1'; known: h1",
            f'hint: name the host h1, with user = "me" in the table [hosts.h1] of {lab.inventory}',
        ),
        ("me@new", "me@new: error: unknown host name: new; ", "me@new: hint: "),
    ):
        done = rsync(lab, f"{where}:rel")
        error, hint, *_ = done.stderr.decode().splitlines()
        assert error.startswith(f"quine: {why}") and hint.startswith(f"quine: {cure}")
        assert done.returncode and not target.exists()


def test_a_user_and_a_port_in_where_get_their_places_named(lab: Lab) -> None:
    done = lab.run(["run", "--on", "me@h1:2222", "--", "true"])
    keys = f'user = "me" and port = 2222 in the table [hosts.h1] of {lab.inventory}'
    assert done.returncode == 69 and f"quine: hint: name the host h1, with {keys}\n".encode() in done.stderr


def test_a_terminal_elsewhere_starts_at_home(lab: Lab) -> None:
    """And no directory is made for it, nor named at its end."""
    home = lab["h1"].home
    before = set((home / "quine").iterdir()) if (home / "quine").exists() else set()
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [lab.quine, "run", "-t", "--on", "h1", "--", "sh", "-c", "pwd; echo $PWD; touch left-by-t"],
        env=lab.env, cwd=lab.work, stdin=theirs, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split() == [str(home).encode()] * 2
    (home / "left-by-t").unlink()
    assert before >= (set((home / "quine").iterdir()) if (home / "quine").exists() else set())

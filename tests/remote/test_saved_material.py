"""-b with --on: all of stdin becomes a file on the other machine before the session begins there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.agents import OK, call, says, sh
from tests.support.remote_agents import environment, results, tapes

FILE = "$(ls $QUINE_DATA_DIR/stdin-*.bin)"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def saved(lab: Lab) -> list[Path]:
    """The files of material that are left on the host."""
    return [
        Path(top, name)
        for top, _, names in os.walk(lab["h1"].home)
        for name in names
        if name.startswith("stdin-")
    ]


def show(*more: dict[str, Any]) -> list[dict[str, Any]]:
    return [says(sh(f"md5sum <{FILE} >&4; wc -c <&3 >&4; echo {FILE}"), *more), says(OK)]


def test_material_is_a_file_over_there_and_is_removed_at_the_end(lab: Lab, data: Path) -> None:
    content = bytes(range(256)) * 400
    done = lab.run(["--on", "h1", "-b", "m"], env=environment(lab, data, *show()), input=content)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split() == [hashlib.md5(content).hexdigest().encode(), b"-", b"0"]
    (path,) = (line for line in results(data, "m")[0].splitlines() if "stdin-" in line)
    first = next(e["data"]["content"] for e in tapes(data)["m"] if e["data"].get("role") == "user")
    assert f"Material was saved to the file {path}." in first
    assert not os.path.exists(path) and not saved(lab)
    assert not list(data.glob("stdin-*")), "nothing of it is kept here"


def test_it_stays_for_the_next_life_and_goes_after_a_signal(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data,
        says(call("exec", wisdom={"n": "1"}), wisdom="^{}$"),
        says(sh(f"cat {FILE} >&4; kill -TERM $PPID; sleep 60"), wisdom="1"),
    )  # fmt: skip
    done = lab.run(["--on", "h1", "-b", "m"], env=env, input="material")
    assert (done.returncode, done.stdout) == (-15, b"material")
    assert not saved(lab)


def test_no_material_is_no_file(lab: Lab, data: Path) -> None:
    env = environment(lab, data, says(sh("ls $QUINE_DATA_DIR >&4")), says(OK))
    done = lab.run(["--on", "h1", "-b", "m"], env=env, input="")
    assert (done.returncode, b"stdin-" in done.stdout) == (0, False), done.stderr
    first = next(e["data"]["content"] for e in tapes(data)["m"] if e["data"].get("role") == "user")
    assert "There is no material" in first


def test_a_detached_agent_over_there(lab: Lab, data: Path) -> None:
    env = environment(lab, data, *show())
    started = lab.run(["--detach", "--on", "h1", "-b", "m"], env=env, input="material", check=True)
    job = started.stdout.decode().strip()
    assert lab.run(["wait", job], env=env).returncode == 0
    logs = lab.run(["logs", job], env=env)
    assert logs.stdout.split()[0] == hashlib.md5(b"material").hexdigest().encode()
    assert not saved(lab)


def test_material_survives_a_cut(lab: Lab, data: Path, through: Callable[..., str]) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    content, cuts = os.urandom(1 << 20), proxy.cuts()
    proxy.cut_after(1 << 18, 1 << 18)
    done = lab.run(["--on", host, "-b", "m"], env=environment(lab, data, *show()), input=content)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0] == hashlib.md5(content).hexdigest().encode()
    assert proxy.cuts() == cuts + 2
    assert not saved(lab)

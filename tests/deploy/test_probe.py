"""The one command and its answers: every login shell passes it on, everything around the answers is skipped."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import probe
from deploy.build import Binary

MARKER = "0123456789abcdef0123456789abcdef"
SHELLS = ["sh", "bash", "dash", "busybox", "ksh", "mksh", "zsh", "csh", "tcsh", "fish"]


@pytest.fixture
def binary(tmp_path: Path) -> Binary:
    path = tmp_path / "quine.pex"
    path.write_bytes(b"x" * 1000)
    return Binary(path, "ab" * 32, 1000, sys.version_info[:2], "Linux", platform.machine())


def installed(home: Path, binary: Binary, *, size: int = 1000, python: str = "exit 0") -> Path:
    """Make the files of an installation, with a shell script for its Python."""
    folder = home / ".cache" / "quine" / binary.sha256
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "quine.pex").write_bytes(b"x" * size)
    os.utime(folder / "quine.pex", (1, 1))
    (folder / "quine").touch()
    (folder / "venv" / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (folder / "venv" / "bin" / "python").chmod(0o755)
    return folder


def run(shell: str, command: str, cwd: Path, data: bytes = b"", home: Path | None = None) -> str:
    """Run a command as sshd does: the login shell with -c."""
    argv = ["busybox", "sh"] if shell == "busybox" else [shell]
    env = {
        "HOME": str(home or cwd),
        "PATH": "/usr/bin:/bin",
        "XDG_CONFIG_HOME": str(cwd),
        "XDG_DATA_HOME": str(cwd),
    }
    done = subprocess.run(
        [*argv, "-c", command], input=data, capture_output=True, env=env, cwd=cwd, check=False
    )
    return done.stdout.decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_passes_it_on(shell: str, binary: Binary, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    home = tmp_path / "a home"
    home.mkdir()
    command = probe.command(binary, MARKER, "check")
    answer = run(shell, command, home)
    assert answer.startswith(f"{MARKER} need Linux ")
    facts = probe.facts(answer.removeprefix(MARKER).strip())
    assert (facts.have, facts.system, facts.machine) == (False, "Linux", platform.machine())
    assert facts.version[0] == "3" and facts.free > 0 and Path(facts.python).is_absolute()

    installed(home, binary, python='echo started "$@" with "$PATH"')
    assert run(shell, command, home).startswith(f"{MARKER} have Linux ")
    answer = run(shell, probe.command(binary, MARKER), home)
    folder = home / ".cache" / "quine" / binary.sha256
    assert answer == f"{MARKER} have\nstarted -I -m quine node --dial with {folder}:/usr/bin:/bin\n"
    assert run(shell, probe.command(binary, MARKER, "deploy"), home) == f"{MARKER} have\n"


def test_what_a_crash_or_a_hand_did_to_it_is_seen(binary: Binary, tmp_path: Path) -> None:
    command = probe.command(binary, MARKER, "check")

    def state() -> str:
        return run("sh", command, tmp_path).split()[1]

    folder = installed(tmp_path, binary)
    assert state() == "have"
    for damage in (
        lambda: (folder / "quine.pex").write_bytes(b"x" * 999),
        lambda: (folder / "quine.pex").write_bytes(b"y" * 1000),
        lambda: (folder / "quine.pex").unlink(),
        lambda: (folder / "quine").unlink(),
        lambda: (folder / "venv" / "bin" / "python").unlink(),
        lambda: (folder / "venv" / "bin" / "python").chmod(0),
    ):
        shutil.rmtree(folder)
        installed(tmp_path, binary)
        assert state() == "have"
        damage()
        assert state() == "need"
    shutil.rmtree(folder)
    installed(tmp_path, binary)
    assert run("sh", probe.command(binary, MARKER, "check", trust=False), tmp_path).split()[1] == "need"


def told(home: Path, binary: Binary, cwd: Path) -> probe.Facts:
    answer = run("sh", probe.command(binary, MARKER, "check"), cwd, home=home)
    return probe.facts(answer.removeprefix(MARKER).strip())


def test_a_home_that_is_missing_is_no_lack_of_python(binary: Binary, tmp_path: Path) -> None:
    assert told(tmp_path / "none", binary, tmp_path).version[0] == "3"


def test_a_home_that_cannot_be_written(binary: Binary, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    tmp_path.chmod(0o500)
    assert told(tmp_path, binary, Path("/")).shut
    tmp_path.chmod(0o700)
    assert not told(tmp_path, binary, Path("/")).shut


def test_the_room_is_that_of_the_cache(binary: Binary, tmp_path: Path) -> None:
    assert told(tmp_path, binary, tmp_path).free > 0
    (tmp_path / ".cache").symlink_to("/proc")
    assert told(tmp_path, binary, tmp_path).free == 0


def test_without_python_it_says_so(binary: Binary, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "uname", "wc"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": str(tools)}
    done = subprocess.run(
        ["sh", "-c", probe.command(binary, MARKER)], env=env, capture_output=True, check=False
    )
    facts = probe.facts(done.stdout.decode().removeprefix(MARKER).strip())
    assert (facts.version, facts.python) == ("none", "")
    assert done.returncode == 69


def test_answers_are_found_in_what_a_noisy_shell_prints() -> None:
    answers = probe.Answers(MARKER)
    for byte in f"Welcome!\nno newline here{MARKER} need a b\n{MARKER} have\nfirst bytes".encode():
        answers.feed(bytes([byte]))
    assert answers.next() == "need a b"
    assert answers.banner == b"Welcome!\nno newline here"
    assert answers.next() == "have"
    assert answers.next() is None
    assert answers.rest() == b"first bytes"


def test_an_endless_banner_or_line_is_not_waited_for() -> None:
    answers = probe.Answers(MARKER)
    answers.feed(b"x" * (probe.BANNER_LIMIT + 1))
    with pytest.raises(ValueError, match="before the first answer"):
        answers.next()
    answers = probe.Answers(MARKER)
    answers.feed(f"{MARKER} ".encode() + b"x" * (probe.LINE_LIMIT + 1))
    with pytest.raises(ValueError, match="without an end"):
        answers.next()


@given(st.text())
def test_any_answer_is_facts_or_an_error(text: str) -> None:
    try:
        probe.facts(text)
    except ValueError:
        return
    assert text.startswith(("need ", "have "))

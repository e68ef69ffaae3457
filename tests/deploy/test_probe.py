"""The one command and its answers: every login shell passes it on, everything around the answers is skipped."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy import probe
from deploy.build import Binary
from deploy.probe import Place

MARKER = "0123456789abcdef0123456789abcdef"
USUAL = Place()
SHELLS = ["sh", "bash", "dash", "busybox", "ksh", "mksh", "zsh", "csh", "tcsh", "fish"]


@pytest.fixture
def binary(tmp_path: Path) -> Binary:
    path = tmp_path / "quine.pyz"
    path.write_bytes(b"x" * 1000)
    return Binary(path, "ab" * 32, 1000)


def installed(home: Path, binary: Binary, *, script: str = "exit 0", place: Place = USUAL) -> Path:
    """Make the files of an installation, with a script for its launcher."""
    folder = home / place.cache.removeprefix("~/") / place.name(binary)
    folder.mkdir(parents=True)
    (folder / "quine.pyz").write_bytes(b"x" * 1000)
    os.utime(folder / "quine.pyz", (1, 1))
    (folder / "quine").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "quine").chmod(0o755)
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
    command = probe.command(binary, USUAL, MARKER, "check")
    answer = run(shell, command, home)
    assert answer.startswith(f"{MARKER} need Linux ")
    facts = probe.facts(answer.removeprefix(MARKER).strip())
    assert (facts.have, facts.system, facts.machine) == (False, "Linux", platform.machine())
    assert facts.version >= (3, 9) and facts.free > 0 and Path(facts.python).is_absolute()
    assert facts.kept == 0

    installed(home, binary, script='echo started "$@" with "$PATH"')
    assert run(shell, command, home).startswith(f"{MARKER} have Linux ")
    answer = run(shell, probe.command(binary, USUAL, MARKER), home)
    folder = home / ".cache" / "quine" / binary.sha256
    assert answer == f"{MARKER} have\nstarted node --dial with {folder}:/usr/bin:/bin\n"
    assert run(shell, probe.command(binary, USUAL, MARKER, "deploy"), home) == f"{MARKER} have\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_look_tells_each_thing_and_then_dials(shell: str, binary: Binary, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    command = probe.command(binary, USUAL, MARKER, "look")
    installed(tmp_path, binary, script='echo started "$@"')
    first, *pythons, last, dialled = run(shell, command, tmp_path).splitlines()
    assert re.fullmatch(rf"{MARKER} shell \d{{10,}} ?.*", first), first
    assert pythons and all(re.fullmatch(rf"{MARKER} python 3\d\d /.+", line) for line in pythons), pythons
    facts = probe.facts(last.removeprefix(MARKER).strip())
    assert facts.have and facts.text.endswith("free, this build is there")
    assert f"python {facts.version[0] * 100 + facts.version[1]} {facts.python}" in " ".join(pythons)
    assert dialled == "started node --dial"
    again = probe.command(binary, USUAL, MARKER, "look", trust=False)
    program = b"print('received')\n"
    *_, last, received = run(shell, again, tmp_path, f"{len(program)}\n".encode() + program).splitlines()
    assert last.startswith(f"{MARKER} dead ") and received == "received"


def test_a_shell_with_a_wrong_clock_and_a_banner() -> None:
    now = round(time.time())
    assert probe.of_shell(f"{now} /bin/bash", b"") == "/bin/bash"
    assert probe.of_shell("/bin/bash", b"") == "/bin/bash", "without a program `date`"
    assert probe.of_shell(f"{now}", b"") == "a shell without a name"
    assert re.fullmatch(
        r"/bin/sh; its clock is (359\d|36\d\d) s slow", probe.of_shell(f"{now - 3600} /bin/sh", b"")
    )
    assert re.fullmatch(
        r"/bin/sh; its clock is (359\d|36\d\d) s fast", probe.of_shell(f"{now + 3600} /bin/sh", b"")
    )
    said = probe.of_shell(f"{now} /bin/sh", b"You have\n\033[1mmail\n" + b"x" * 200)
    assert said.startswith("/bin/sh; prints before the command: You have [1mmail xxx") and len(said) < 130


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "1" * 13, "-1", ""])
def test_numbers_of_a_look_that_are_none(number: str) -> None:
    text = f"{number} /bin/sh"
    assert probe.of_shell(text, b"") == text, "a shell of that name, without a clock"
    assert probe.of_python(text) == "Python ? at /bin/sh"


def test_what_a_crash_or_a_hand_did_to_it_is_seen(binary: Binary, tmp_path: Path) -> None:
    command = probe.command(binary, USUAL, MARKER, "check")

    def state() -> str:
        return run("sh", command, tmp_path).split()[1]

    folder = installed(tmp_path, binary)
    assert state() == "have"
    for damage in (
        lambda: (folder / "quine.pyz").write_bytes(b"x" * 999),
        lambda: (folder / "quine.pyz").write_bytes(b"y" * 1000),
        lambda: (folder / "quine.pyz").unlink(),
        lambda: (folder / "quine").unlink(),
        lambda: (folder / "quine").chmod(0),
    ):
        shutil.rmtree(folder)
        installed(tmp_path, binary)
        assert state() == "have"
        damage()
        assert state() == "need"
    shutil.rmtree(folder)
    installed(tmp_path, binary, script="exec /none/python3")
    assert state() == "dead", "its Python has gone"
    shutil.rmtree(folder)
    installed(tmp_path, binary)
    assert (
        run("sh", probe.command(binary, USUAL, MARKER, "check", trust=False), tmp_path).split()[1] == "dead"
    )


@pytest.mark.parametrize("cache", ["{}/link/quine", "~/link/quine"], ids=["elsewhere", "below the home"])
@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_nothing_is_started_that_others_can_put_into_its_place(
    shell: str, cache: str, binary: Binary, tmp_path: Path
) -> None:
    """The directories and links on the way to a cache are judged each time, if there is a link or no home in it."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    argv = ["busybox", "sh"] if shell == "busybox" else [shell]
    home = tmp_path / "home"
    scratch = home / "scratch"
    (scratch / "me").mkdir(parents=True, mode=0o700)
    (home / "link").symlink_to("scratch/up")
    tmp_path.chmod(0o777 if cache.startswith("~") else 0o755)  # directories above a home are not judged
    (scratch / "up").symlink_to(scratch / "me")
    place = Place(cache=cache.format(home))
    folder = scratch / "me" / "quine" / place.name(binary)
    folder.parent.mkdir()
    shutil.copytree(installed(tmp_path / "made", binary), folder)
    os.utime(folder / "quine.pyz", (1, 1))
    command = probe.command(binary, place, MARKER, "look").removeprefix("exec /bin/sh -c ").strip("'")

    def state() -> str:
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([*argv, "-c", command], env=env, capture_output=True, check=False, input=b"0")
        answers = done.stdout.decode().split(MARKER)
        return next(answer.split()[0] for answer in answers if answer.split()[:1] in (["have"], ["need"]))

    for mode, expected in ((0o755, "have"), (0o777, "need"), (0o1777, "have"), (0o757, "need")):
        scratch.chmod(mode)
        assert state() == expected, oct(mode)
    scratch.chmod(0o755)
    for path in (scratch / "up", scratch / "me") if os.geteuid() == 0 else ():
        os.lchown(path, 65534, -1)
        assert state() == "need", path
        os.lchown(path, 0, -1)
    assert state() == "have"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_nothing_of_another_user_in_the_cache_is_started(binary: Binary, tmp_path: Path) -> None:
    folder = installed(tmp_path, binary, script="touch ran")
    tools = tmp_path / "bin"  # without a Python
    tools.mkdir()
    for name in ("sh", "uname", "wc", "touch", "ls", "id"):
        (tools / name).symlink_to(str(shutil.which(name)))
    stub(folder.parent / f"{probe.BROUGHT}1" / "python" / "bin" / "python3", 399)
    env = {"HOME": str(tmp_path), "PATH": str(tools)}

    def answer(mode: str) -> probe.Facts:
        argv = ["sh", "-c", probe.command(binary, USUAL, MARKER, mode)]
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, check=False)
        return probe.facts(done.stdout.decode().removeprefix(MARKER).strip())

    there = answer("check")
    assert there.have and "/.cache/quine/" in there.python and (tmp_path / "ran").exists()
    for path in (folder, folder.parent):
        os.chown(path, 65534, -1)
    (tmp_path / "ran").unlink()
    for mode in ("check", "dial"):
        there = answer(mode)
        assert not (there.have or there.dead) and "/.cache/quine/" not in there.python
        assert not (tmp_path / "ran").exists()


def told(home: Path, binary: Binary, cwd: Path, place: Place = USUAL) -> probe.Facts:
    answer = run("sh", probe.command(binary, place, MARKER, "check"), cwd, home=home)
    return probe.facts(answer.removeprefix(MARKER).strip())


def test_a_home_that_is_missing_is_no_lack_of_python(binary: Binary, tmp_path: Path) -> None:
    assert told(tmp_path / "none", binary, tmp_path).version >= (3, 9)


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
    there = told(tmp_path, binary, tmp_path)
    assert there.shut and there.free == 0, "it keeps no files, also where root may write"


def test_without_python_it_says_so(binary: Binary, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "uname", "wc"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": str(tools)}
    done = subprocess.run(
        ["sh", "-c", probe.command(binary, USUAL, MARKER)], env=env, capture_output=True, check=False
    )
    facts = probe.facts(done.stdout.decode().removeprefix(MARKER).strip())
    assert (facts.version, facts.python) == ((0, 0), "")
    assert done.returncode == 69


def stub(path: Path, version: int) -> None:
    """A Python of a version, which starts nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version} 99999\n")
    path.chmod(0o755)


def found(home: Path, binary: Binary, place: Place = USUAL) -> tuple[tuple[int, int], str]:
    env = {"HOME": str(home), "PATH": f"{home}/bin"}
    for name in ("sh", "uname", "wc"):
        (home / "bin").mkdir(exist_ok=True)
        if not (home / "bin" / name).exists():
            (home / "bin" / name).symlink_to(str(shutil.which(name)))
    command = ["sh", "-c", probe.command(binary, place, MARKER, "check")]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    facts = probe.facts(done.stdout.decode().removeprefix(MARKER).strip())
    return facts.version, facts.python


def test_the_newest_python_of_those_with_a_name(binary: Binary, tmp_path: Path) -> None:
    for name, version in (("python3", 308), ("python3.9", 309), ("python3.12", 312), ("python3.11", 311)):
        stub(tmp_path / "bin" / name, version)
    assert found(tmp_path, binary) == ((3, 12), f"{tmp_path}/bin/python3.12")


def test_a_second_name_of_the_best_python_is_not_started_again(binary: Binary, tmp_path: Path) -> None:
    stub(tmp_path / "bin" / "python3.11", 311)
    with open(tmp_path / "bin" / "python3.11", "a") as file:
        file.write(f"echo asked >> {tmp_path}/asked\n")
    (tmp_path / "bin" / "python3").symlink_to("python3.11")
    (tmp_path / "bin" / "python3.13").mkdir()
    assert found(tmp_path, binary) == ((3, 11), f"{tmp_path}/bin/python3")
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_second_name_of_an_old_python_is_started_too(binary: Binary, tmp_path: Path) -> None:
    """One program may stand for many versions, and ask its own name which."""
    path = tmp_path / "bin" / "chooser"
    stub(path, 308)
    path.write_text("#!/bin/sh\ncase $0 in *3.12) echo 312 99999;; *) echo 308 99999;; esac\n")
    for name in ("python3", "python3.12"):
        (tmp_path / "bin" / name).symlink_to("chooser")
    assert found(tmp_path, binary) == ((3, 12), f"{tmp_path}/bin/python3.12")


@pytest.mark.clock  # the other one has a second to answer
def test_a_python_that_hangs_is_passed_over(
    binary: Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: another name of it is not started. The bytes of the channel are not for it."""
    monkeypatch.setattr(probe, "PYTHON_SECONDS", 1)
    stub(tmp_path / "bin" / "python3", 308)
    (tmp_path / "bin" / "python3").write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\ncat\nexec sleep 1000\n"
    )
    (tmp_path / "bin" / "python3.12").symlink_to("python3")
    stub(tmp_path / "bin" / "python3.11", 311)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin"}
    for name in ("sh", "uname", "wc", "cat", "sleep", "timeout", "true"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    command = ["sh", "-c", probe.command(binary, USUAL, MARKER, "check")]
    done = subprocess.run(command, env=env, capture_output=True, input=b"bytes\n", timeout=60, check=True)
    hung, last = done.stdout.decode().splitlines()
    assert hung == f"{MARKER} hung {tmp_path}/bin/python3"
    assert probe.facts(last.removeprefix(MARKER).strip()).python == f"{tmp_path}/bin/python3.11"
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize(
    "place", [".pyenv/versions/3.13.1/bin", "miniconda3/bin", ".local/share/uv/python/cpython-3.13/bin"]
)
def test_a_python_of_the_user_where_the_system_has_only_an_old_one(
    binary: Binary, tmp_path: Path, place: str
) -> None:
    stub(tmp_path / "bin" / "python3", 306)
    stub(tmp_path / place / "python3", 313)
    assert found(tmp_path, binary) == ((3, 13), f"{tmp_path}/{place}/python3")


def test_the_python_that_the_inventory_names(binary: Binary, tmp_path: Path) -> None:
    stub(tmp_path / "bin" / "python3", 314)
    stub(tmp_path / "mine" / "py", 310)
    place = Place(python="~/mine/py")
    assert found(tmp_path, binary, place) == ((3, 10), f"{tmp_path}/mine/py")
    assert place.name(binary) != USUAL.name(binary), "an installation of its own"
    (tmp_path / "mine" / "py").unlink()
    assert found(tmp_path, binary, place) == ((0, 0), "")


def test_the_directory_that_the_inventory_names(binary: Binary, tmp_path: Path) -> None:
    place = Place(cache=f"{tmp_path}/scratch/me")
    assert not told(tmp_path, binary, tmp_path, place).have
    installed(Path("/"), binary, place=place)
    assert told(tmp_path, binary, tmp_path, place).have
    assert not told(tmp_path, binary, tmp_path).have


def test_bytes_that_were_kept_are_told(binary: Binary, tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "quine"
    cache.mkdir(parents=True)
    (cache / f".part-{binary.sha256}").write_bytes(b"x" * 123)
    assert told(tmp_path, binary, tmp_path).kept == 123


def test_modules_are_loaded_before_python_is_looked_for(binary: Binary, tmp_path: Path) -> None:
    """The function `module` comes with the profile of the machine."""
    place = Place(modules=("python/3.11", "gcc"))
    assert ". /etc/profile; module load python/3.11 gcc;" in probe.command(binary, place, MARKER)
    assert place.setup.endswith("\n") and place.name(binary) != USUAL.name(binary)
    assert told(tmp_path, binary, tmp_path, place).version >= (3, 9), "where there are none it goes on"


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


@settings(max_examples=30)
@given(st.sampled_from(["", "have ", "need Linux x86_64 311 "]), st.text())
def test_any_answer_is_facts_or_an_error(head: str, rest: str) -> None:
    try:
        facts = probe.facts(head + rest)
    except ValueError:
        return
    assert head
    assert f"{facts.system} {facts.machine}".isprintable() and len(facts.system) <= probe.WORD


@pytest.mark.parametrize(
    "answer",
    [
        "need Lin\x1b[1mux x86_64 311 1 0 /usr/bin/python3",
        f"need {'L' * 65} x86_64 311 1 0 /usr/bin/python3",
        "need Linux x86_64 311 1 0 /usr/bin/\x1b]0;owned\x07python3",
        f"need Linux x86_64 311 {'9' * 19} 0 /usr/bin/python3",
    ],
)
def test_an_answer_that_is_shown_has_words_of_a_length_and_no_control_characters(answer: str) -> None:
    with pytest.raises(ValueError, match="not an answer"):
        probe.facts(answer)

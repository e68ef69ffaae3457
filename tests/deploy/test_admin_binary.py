"""`binary` in the inventory: an installation of an admin is used if it is of this build, and nothing is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import host_requirements, probe
from deploy.build import Binary
from deploy.host_requirements import Unfit
from deploy.probe import Place
from tests.lab import Lab
from tests.lab.host import Host
from transport import this_build

OURS = this_build.build_hash()[:12]
OLD = '#!/bin/sh\necho "quine 0.0.9 (build 0123456789ab)"; [ "$1" = --version ] || touch "$HOME/started"\n'


def installation(kind: str, lab: Lab, folder: Path) -> Path:
    """Return the path that the inventory names."""
    if kind == "executable":
        lab.run(["deploy", "build", "-o", folder / "quine"], check=True)
        return folder / "quine"
    return Path(sys.prefix) if kind == "environment" else Path(sys.prefix, "bin", "quine")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["executable", "environment", "program of an environment"])
def test_an_installation_of_this_build_is_used(
    kind: str, lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    path = installation(kind, lab, tmp_path)
    host = odd_host("opt", inventory={"binary": str(path)})
    assert lab.run(["deploy", "--plan", "opt"], check=True).stdout == b"opt: already there\n"
    assert lab.run(["deploy", "opt"], check=True).stdout.startswith(b"opt: already there, ")
    done = lab.run(
        ["run", "--on", "opt", "--", "sh", "-c", "quine --version; command -v python3"], check=True
    )
    version, python = done.stdout.decode().splitlines()
    assert f"(build {OURS})" in version
    assert not python.startswith(sys.prefix), "the python of a job is not that of quine"
    checked = lab.run(["hosts", "check", "opt"], check=True).stdout.decode().splitlines()[1].split()
    assert (checked[1], checked[5]) == ("ok", "same")
    lab.run(["doctor", "opt"], check=True)
    cache = host.path_of(".cache/quine")
    assert not [path for path in cache.glob("*") if len(path.name) == 64], "nothing is deployed"


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_another_build_is_named_and_never_started(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    path = script(tmp_path / "quine", OLD)
    host = odd_host("opt", inventory={"binary": str(path)})
    ran = lab.run(["run", "--on", "opt", "--", "true"])
    for done in (lab.run(["deploy", "opt"]), ran, lab.run(["hosts", "check", "opt"])):
        error, hint = done.stderr.decode().splitlines()
        assert done.returncode == 69
        assert f"its binary {path} is quine 0.0.9 (build 0123456789ab), and this is build {OURS}" in error
        assert hint.startswith("quine: opt: hint: ") and "quine deploy build" in hint
    assert not (host.home / "started").exists() and not (host.home / ".cache").exists()


def test_a_binary_that_does_not_start_is_named(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    """It is not there, it ends at once, or it is not executable: as a program, or in a tree that is named."""
    host = odd_host("opt", shell="/bin/sh", banner="Welcome!\n", inventory={"binary": f"{tmp_path}/none"})
    broken = script(tmp_path / "broken", "#!/bin/sh\necho broken >&2; exit 1\n")
    for name in ("plain", "tree/quine", "bush/bin/quine"):
        script(tmp_path / name, "#!/bin/sh\nexit 0\n", 0o644)
    not_executable = "it is not executable"
    for name, why in (
        ("none", "there is no program by that name"),
        (broken.name, "broken"),
        ("plain", not_executable),
        ("tree", not_executable),
        ("bush", not_executable),
    ):
        path = tmp_path / name
        done = lab.run(["deploy", lab.alias("opt", "opt", binary=str(path))])
        said = done.stderr.decode()
        assert done.returncode == 69, name
        assert f"its binary {path}" in said and "does not start: " in said and why in said, said
        assert (f"hint: chmod +x {path}" in said) == (why == not_executable), said
    assert not (host.home / ".cache").exists()


def answer(text: str, folder: Path) -> str:
    """Return what a host says of a binary with this text."""
    path = folder / "quine"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    binary = Binary(path, "ab" * 32, 1000)
    words = ["sh", "-c", probe.command(binary, Place(binary=str(path)), "marker", "check")]
    done = subprocess.run(words, input=b"bytes of the channel", capture_output=True, timeout=60, check=True)
    return done.stdout.decode().removeprefix("marker ").strip()


@pytest.mark.parametrize(
    "text", ["sleep 1000", "sleep 1000 & wait", "trap '' TERM; while :; do sleep 0.1; done"]
)
def test_a_binary_that_hangs_is_waited_for_a_short_time(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ADMIN_SECONDS", 1)
    said = answer(text, tmp_path)
    with pytest.raises(Unfit, match="does not start: no answer to --version within 1 s") as caught:
        host_requirements.check_build("opt", "/opt/quine", said)
    assert "take `binary` from its table" in caught.value.hint


def test_a_binary_that_never_stops_talking_or_reads_is_of_no_build(tmp_path: Path) -> None:
    assert answer("exec yes", tmp_path) == "other y"
    assert answer("exec cat", tmp_path) == "other", "the bytes of the channel are not for it"


def test_a_node_that_does_not_start_is_not_replaced(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    only_its_build = f'[ "$1" != --version ] || exec echo "quine 9 (build {OURS})"'
    path = script(tmp_path / "quine", f"#!/bin/sh\n{only_its_build}\necho no >&2; exit 1\n")
    host = odd_host("opt", inventory={"binary": str(path)})
    done = lab.run(["run", "--on", "opt", "--", "true"])
    assert done.returncode == 69 and f"opt: error: {path} does not start there: no" in done.stderr.decode()
    assert not (host.home / ".cache").exists()

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


@pytest.mark.parametrize(
    "words", [["deploy", "opt"], ["run", "--on", "opt", "--", "true"], ["hosts", "check", "opt"]]
)
def test_another_build_is_named_and_never_started(
    words: list[str], lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    (tmp_path / "quine").write_text(OLD)
    (tmp_path / "quine").chmod(0o755)
    host = odd_host("opt", inventory={"binary": str(tmp_path / "quine")})
    done = lab.run(words)
    error, hint = done.stderr.decode().splitlines()
    assert done.returncode == 69
    assert (
        f"its binary {tmp_path}/quine is quine 0.0.9 (build 0123456789ab), and this is build {OURS}" in error
    )
    assert hint.startswith("quine: opt: hint: ") and "quine deploy build" in hint
    assert not (host.home / "started").exists() and not (host.home / ".cache").exists()


@pytest.mark.parametrize("text", [None, "#!/bin/sh\necho broken >&2; exit 1\n"])
def test_a_binary_that_does_not_start_is_named(
    text: str | None, lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    if text:
        (tmp_path / "quine").write_text(text)
        (tmp_path / "quine").chmod(0o755)
    host = odd_host(
        "opt", shell="/bin/sh", banner="Welcome!\n", inventory={"binary": str(tmp_path / "quine")}
    )
    done = lab.run(["deploy", "opt"])
    assert done.returncode == 69
    assert f"its binary {tmp_path}/quine does not start: " in done.stderr.decode()
    assert ("broken" if text else "there is no program by that name") in done.stderr.decode()
    assert not (host.home / ".cache").exists()


@pytest.mark.parametrize("name", ["quine", "tree/quine", "tree/bin/quine"])
def test_a_binary_that_is_not_executable_is_named_so(
    name: str, lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 0\n")
    odd_host("opt", inventory={"binary": str(tmp_path / name.split("/")[0])})
    done = lab.run(["hosts", "check", "opt"])
    assert done.returncode == 69
    assert "does not start: it is not executable" in done.stderr.decode()
    assert f"hint: chmod +x {tmp_path / name.split('/')[0]}" in done.stderr.decode()


def answer(text: str, folder: Path) -> str:
    """Return what a host says of a binary with this text."""
    path = folder / "quine"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    binary = Binary(path, "ab" * 32, 1000)
    words = ["sh", "-c", probe.command(binary, Place(binary=str(path)), "marker", "check")]
    done = subprocess.run(words, input=b"bytes of the channel", capture_output=True, timeout=60, check=True)
    return done.stdout.decode().removeprefix("marker ").strip()


@pytest.mark.parametrize("text", ["sleep 1000", "sleep 1000 & wait", "trap '' TERM; while :; do :; done"])
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
    path = tmp_path / "quine"
    path.write_text(
        f'#!/bin/sh\n[ "$1" != --version ] || exec echo "quine 9 (build {OURS})"\necho no >&2; exit 1\n'
    )
    path.chmod(0o755)
    host = odd_host("opt", inventory={"binary": str(path)})
    done = lab.run(["run", "--on", "opt", "--", "true"])
    assert done.returncode == 69 and f"opt: error: {path} does not start there: no" in done.stderr.decode()
    assert not (host.home / ".cache").exists()

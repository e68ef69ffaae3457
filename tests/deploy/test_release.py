"""`make release`: the same commit gives the same bytes, and the wheel is all that an installed quine needs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab import Lab
from transport import this_build

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".lab-cache"  # tools and requirements are fetched once
COMMIT = {
    **{f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in
       (("NAME", "lab"), ("EMAIL", "lab@example"), ("DATE", "1700000000 +0000"))},
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip
pytestmark = [
    pytest.mark.long,
    pytest.mark.whole,
    pytest.mark.timeout(900),  # two releases are built
    pytest.mark.skipif(
        not (shutil.which("git") and (ROOT / ".git").exists()), reason="no git here, or no clone"
    ),
]


def run(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    merged = {**os.environ, **(env or {})}
    return subprocess.run(
        words, cwd=cwd, env=merged, umask=umask, capture_output=True, text=True, check=False
    )


def git(*words: str | Path, cwd: Path) -> str:
    done = run("git", *words, cwd=cwd, env=COMMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def tools() -> Iterator[Path]:
    """The tools of a release, and `wheels`, which the wheel requires; from an index the first time."""
    CACHE.mkdir(exist_ok=True)
    lock = os.open(CACHE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pins = ROOT / "scripts" / "release.txt"
        wanted = "\n".join([sys.version, pins.read_text(), *requirements()])
        place = CACHE / f"release-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
        ready = run("make", f"TOOLS={place}", place / ".ready", cwd=ROOT)
        if ready.returncode == 0 and not (place / "wheels").exists():
            # the requirements of the wheel, for pip to find without an index
            pip = (
                place / "bin" / "python",
                "-m",
                "pip",
                "download",
                "--quiet",
                "--constraint",
                pins,
                "--dest",
                place / "wheels.new",
            )
            ready = run(*pip, *requirements(), cwd=ROOT)
            if ready.returncode == 0:
                (place / "wheels.new").rename(place / "wheels")
        if ready.returncode:
            pytest.skip(f"the tools of a release are not to be had: {ready.stderr[-300:]}")
        yield place
    finally:
        os.close(lock)


def requirements() -> list[str]:
    """Of the wheel."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


@pytest.fixture(scope="module")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files as they stand here, committed."""
    place = tmp_path_factory.mktemp("commit")
    git("init", "--quiet", cwd=place)
    names = git("ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    git("add", "--all", cwd=place)
    git("commit", "--quiet", "-m", "all", cwd=place)
    return place


def released(clone: Path, tools: Path, **how: object) -> dict[str, bytes]:
    (tools / ".ready").touch()  # the clone's list of tools is younger, and the same
    done = run("make", "release", f"TOOLS={tools}", cwd=clone, **how)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in (clone / "dist").iterdir()}


@pytest.fixture(scope="module")
def first(commit: Path, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with its release."""
    clone = tmp_path_factory.mktemp("first") / "clone"
    git("clone", "--quiet", commit, clone, cwd=commit)
    released(clone, tools)
    return clone


def test_the_same_commit_gives_the_same_bytes(commit: Path, first: Path, tools: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in (first / "dist").iterdir()}
    assert released(first, tools) == before, "again in the same clone"
    other = tmp_path / "another" / "place"
    elsewhere = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(tmp_path), "PYTHONHASHSEED": "1"}
    done = run("git", "clone", "--quiet", commit, other, cwd=tmp_path, env=COMMIT, umask=0o077)
    assert done.returncode == 0, done.stderr
    (other / "build").mkdir()
    (other / "build" / "quine.py").write_text("not committed, and ignored")
    assert released(other, tools, env=elsewhere, umask=0o077) == before, "in another clone"
    assert sorted(before) == [
        "SHA256SUMS", "quine-0.1.0-man.tar.gz", "quine-0.1.0.cdx.json", "quine-0.1.0.pyz",
        "quine_agent-0.1.0-py3-none-any.whl",
    ]  # fmt: skip


def test_what_is_not_committed_is_not_released(commit: Path, tools: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "--quiet", commit, clone, cwd=tmp_path)
    (clone / "quine" / "new.py").touch()
    (tools / ".ready").touch()
    done = run("make", "release", f"TOOLS={tools}", cwd=clone)
    assert done.returncode != 0 and not (clone / "dist").exists()
    assert "release: error: not committed: quine/new.py" in done.stderr


def test_checksums_man_pages_and_bill_of_materials(first: Path) -> None:
    dist = first / "dist"
    done = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist)
    assert done.returncode == 0 and done.stdout.count(": OK\n") == 4, done
    with tarfile.open(dist / "quine-0.1.0-man.tar.gz") as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [
        f"share/man/man1/{page.name}" for page in sorted((first / "man").iterdir())
    ]
    assert {(member.mode, member.uid, member.gid) for member in members} == {(0o644, 0, 0)}

    bill = json.loads((dist / "quine-0.1.0.cdx.json").read_text())
    parts = {part["bom-ref"]: part for part in bill["components"]}
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert {ref for refs in needs.values() for ref in refs} <= parts.keys()
    names = {ref: {parts[part]["name"] for part in refs} for ref, refs in needs.items()}
    assert names["file:quine-0.1.0.pyz"] == {"quine", "transport", "deploy", "fsspec"}
    required = {"asyncssh", "httpx", "pydantic", "fsspec", "typer"}
    wheel = names["file:quine_agent-0.1.0-py3-none-any.whl"]
    assert required <= wheel and not wheel & {"pytest", "mkdocs-material"}
    assert parts["requirement:s3fs"]["scope"] == "optional"
    assert parts["package:quine"]["properties"][0]["value"] == this_build.build_hash(), (
        "the sources as they are here"
    )


def test_an_installation_of_the_wheel_is_whole(first: Path, tools: Path, tmp_path: Path) -> None:
    """From the wheel alone, outside of the repository: it says its version, runs a mission, and deploys itself."""
    (wheel,) = (first / "dist").glob("*.whl")
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", venv, cwd=tmp_path).returncode == 0
    pip = (
        venv / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        tools / "wheels",
    )
    done = run(*pip, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (venv / "share" / "man" / "man1" / "quine.1").is_file()
    (stamp,) = venv.glob(f"lib/*/site-packages/transport/{this_build.STAMP}")
    assert stamp.read_text() == this_build.build_hash()

    quine = str(venv / "bin" / "quine")
    with Lab(["h1"]) as lab:
        own = {
            **lab.env,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }  # so that it makes its own file for hosts

        def here(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [quine, *words], cwd=lab.work, env={**own, **env}, input=b"material\n",
                capture_output=True, timeout=120, check=False,
            )  # fmt: skip

        said = here("--version")
        assert said.stdout == f"quine 0.1.0 (build {this_build.build_hash()[:12]})\n".encode(), said
        doctor = here("doctor", "--inventory", str(lab.inventory))
        assert b"fail" not in doctor.stdout, doctor
        leave = {"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}}
        copy = {"reply": {"tool_calls": [{"name": "sh", "arguments": {"command": "tr a-z A-Z <&3 >&4"}}]}}
        guest = lab.script([copy, leave])
        mission = here("shout", **guest)
        assert (mission.returncode, mission.stdout) == (0, b"MATERIAL\n"), mission
        there = here("run", "--on", "h1", "--", "sh", "-c", "cat; quine --version; exit 7")
        assert (there.returncode, there.stdout) == (7, b"material\n" + said.stdout), there
        agent = here("--on", "h1", "shout", **guest)
        assert (agent.returncode, agent.stdout) == (0, b"MATERIAL\n"), agent
        (installed,) = (lab["h1"].home / ".cache" / "quine").glob("*/quine.pyz")
        assert installed.read_bytes() == (first / "dist" / "quine-0.1.0.pyz").read_bytes()

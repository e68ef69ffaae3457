"""An inventory of the current directory is read only if the user has trusted it as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import paths, trust
from deploy.inventory import opened
from tests.lab import Lab
from transport.errors import Misconfigured

HOSTILE = """
[hosts.a]
transport = "command"
command = ["sh", "-c", "echo ran >>{ran}; exit 1"]
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    place = tmp_path / "clone"
    place.mkdir()
    (place / "inventory.toml").write_text(HOSTILE.format(ran=tmp_path / "ran"))
    return place


def test_no_verb_obeys_it(lab: Lab, clone: Path, tmp_path: Path) -> None:
    id = "01a2095f-e397-79a8-b878-b5f246be26d7"
    for words in (
        "run --on a -- true", "run --on any -- true", "--on a mission", "each a -- true", "each any -- true",
        "rsh a true", "xargs --on a -- echo ::: 1", "hosts a", "hosts check a", "doctor a", "deploy a --plan",
        "deploy a", "ps --on a", "top --json --on a", f"wait --on a {id}", f"kill --on a {id}", f"logs --on a {id}",
    ):  # fmt: skip
        done = lab.run(words.split(), cwd=clone, env={"QUINE_INVENTORY": None})
        said = done.stderr.decode()
        assert done.returncode == 2, (words, said)
        assert f"{clone}/inventory.toml is not read: you have not trusted it" in said, (words, said)
        assert "quine: hint: look at it, then: quine hosts trust; or name it with --inventory" in said, words
        assert not (tmp_path / "ran").exists(), words
    for words in (
        f"wait {id}",
        f"kill {id}",
        f"logs {id}",
        f"attach {id}",
        "ps",
        "hosts check",
        "doctor",
        "run -- true",
    ):
        lab.run(words.split(), cwd=clone, env={"QUINE_INVENTORY": None})
        assert not (tmp_path / "ran").exists(), words


def test_it_is_said_once_and_ones_own_is_used(lab: Lab, clone: Path) -> None:
    own = lab.home / ".config" / "quine" / "inventory.toml"
    own.parent.mkdir(parents=True)
    own.symlink_to(lab.inventory)  # as in a home that a tool of dotfiles keeps
    try:
        done = lab.run(["run", "--on", "h1", "--", "echo", "x"], cwd=clone, env={"QUINE_INVENTORY": None})
        assert (done.returncode, done.stdout) == (0, b"x\n"), done.stderr
        assert done.stderr.count(b"is not read") == 1
        done = lab.run(["run", "--on", "a", "--", "echo", "x"], cwd=clone, env={"QUINE_INVENTORY": None})
        assert done.returncode == 2
        named = ["hosts", "--inventory", str(lab.inventory), "a"]
        done = lab.run(named, cwd=clone, env={"QUINE_INVENTORY": None})
        assert done.returncode == 69 and b"is not read" not in done.stderr
    finally:
        own.unlink()


def test_trust_is_for_what_it_is_now(lab: Lab, clone: Path, tmp_path: Path) -> None:
    def quine(*words: str) -> tuple[int, str]:
        done = lab.run(words, cwd=clone, env={"QUINE_INVENTORY": None})
        return done.returncode, (done.stdout + done.stderr).decode()

    path = clone / "inventory.toml"
    status, said = quine("hosts", "trust")
    assert status == 0 and path.read_text().strip() in said
    assert said.endswith(f"trusted: {path}: 1 host\n")
    assert quine("run", "--on", "a", "--", "true")[0] == 69 and (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()

    path.write_text(path.read_text() + "# \u202e\n[hosts.b]\n")
    status, said = quine("run", "--on", "a", "--", "true")
    assert status == 2 and "it has changed since you trusted it" in said and not (tmp_path / "ran").exists()
    status, said = quine("hosts", "trust", "inventory.toml")
    assert status == 0 and "\n+[hosts.b]\n" in said and "\n+# \\u202e\n" in said
    assert quine("hosts", "b")[0] == 0
    path.rename(clone / "elsewhere.toml")
    assert quine("hosts", "trust")[0] == 2
    path.write_text("[hosts.b]\nprot = 1\n")
    status, said = quine("hosts", "trust")
    assert status == 2 and "prot" in said


def test_what_cannot_be_trusted(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    path, text = clone / "inventory.toml", (clone / "inventory.toml").read_text()

    def pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    def link() -> None:
        path.unlink()
        path.symlink_to("other")

    def again() -> None:
        path.unlink()
        path.write_text(text)

    trust.trust(str(path), trust.read(str(path)), environ)
    assert paths.find(environ) == (str(path), path.read_bytes(), None)
    (clone / "other").write_text(text)
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: path.chmod(0o666), "bad permissions"), (pipe, "no regular file"), (link, "symlink"),
    ]  # fmt: skip
    for step, why in steps:
        step()
        assert paths.find(environ).path is None and why in str(paths.find(environ).unread), why
        again()
        assert paths.find(environ).path == str(path)
    (clone.parent / "copy").mkdir()
    monkeypatch.chdir(clone.parent / "copy")
    Path("inventory.toml").write_text(text)
    found = paths.find(environ)
    assert found.path is None and "not trusted" in str(found.unread)


def test_a_trusted_inventory_is_opened_once(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables come from the content that was compared with the trusted one, not from a second look at the file."""
    monkeypatch.chdir(clone)
    path = clone / "inventory.toml"
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    trust.trust(str(path), trust.read(str(path)), environ)
    found = paths.find(environ)
    path.write_text("[hosts.b]\n")
    assert list(opened(found).hosts) == ["a"]
    assert opened(paths.find(environ)).unread == (str(path), "it has changed since you trusted it")


def test_the_cure_of_one_that_others_can_write_comes_first(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quine hosts trust` would refuse it."""
    monkeypatch.chdir(clone)
    path = clone / "inventory.toml"
    assert trust.unread(str(path), "why") == (f"{path} is not read: why", trust.CURE)
    path.chmod(0o666)
    with pytest.raises(Misconfigured) as wrong:
        opened(paths.find({"XDG_STATE_HOME": str(clone / "state")})).matching("a")
    assert wrong.value.hint == f"see what is in it, then: chmod go-w {path}"

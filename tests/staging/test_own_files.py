"""Files that the caller itself writes, its log or the file that its stdout goes to: neither sent nor replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from quine.base.errors import Misconfigured
from quine.staging import scan, spec
from quine.staging.caller_side import Staging
from tests.lab import Lab
from tests.staging.wired import bring, cache, here, stage, there

__all__ = ["cache", "here", "there"]


@pytest.mark.parametrize("patterns", [["."], ["*", "**/log"], ["d", "l?g", "*.c"], ["*/*", "*"]])
def test_own_files_stay_as_they_are_on_both_sides(here: Path, there: Path, patterns: list[str]) -> None:
    own = [here / "log", here / "d" / "log", here / "table"]
    (here / "d").mkdir()
    for path in [*own, here / "a.c", here / "d" / "b"]:
        path.write_text("here")
    stage(here, there, ".", own=own)
    assert sorted(str(path.relative_to(there)) for path in there.rglob("*")) == ["a.c", "d", "d/b"]
    for name in ("log", "d/log", "d/b", "a.c"):
        (there / name).write_text("made there")
    assert bring(here, there, *patterns, own=own, written=["d/log", "log"]) == ("", [])
    assert [path.read_text() for path in own] == ["here"] * 3
    assert [(here / name).read_text() for name in ("a.c", "d/b")] == ["made there"] * 2


def test_a_result_under_the_name_of_an_own_file_is_refused(
    here: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the job if it is asked for, and from a host that sends it nevertheless."""
    own = [os.fsencode(here / "results"), os.fsencode(here / "log?")]
    for pattern in ("results", "results/1/x", spec.literal("log?"), "./results/*"):
        with pytest.raises(Misconfigured, match="this command writes there itself"):
            Staging([], spec.returns([pattern]), str(here), own=own).moving()
    Staging([], ["result", "*", ".", "results2"], str(here), own=own).moving()
    (there / "log").write_text("made there")
    original = spec.matching
    monkeypatch.setattr(spec, "matching", lambda patterns, folder, places: original(patterns, folder))
    monkeypatch.setattr(scan, "_by_directory", lambda places: {})
    assert "log is written by this command" in bring(here, there, "*", own=[here / "log"])[0]
    assert list(here.iterdir()) == []


def test_an_own_file_is_not_replaced_under_another_spelling(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where case is ignored `LOG` is there already, and is not listed."""
    own = [here / "log"]
    (here / "log").touch()
    for content in ("a file of its own", "and a newer one"):
        (there / "LOG").write_text(content)
        assert bring(here, there, "*", own=own) == ("", [])
        assert (here / "LOG").read_text() == content
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [b"log"] if path == os.fsencode(here) else listdir(path))
    (there / "LOG").write_text("it is that of the batch")
    assert "LOG is written by this command" in bring(here, there, "*", own=own)[0]


def test_the_files_that_a_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "results").symlink_to("target")
    fd = os.open(tmp_path / "report", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        found = spec.written(["", "log", "results", str(fd), str(1 << 70)])
    finally:
        os.close(fd)
    names = {os.fsencode(tmp_path / name) for name in ("log", "results", "target", "report")}
    assert names <= set(found)


def test_what_quine_obeys_here_is_sent_and_not_replaced(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that replaces an inventory, or the program of a guest, has its own command run here."""
    monkeypatch.chdir(here)
    (here / "conf").mkdir()
    (here / "linked").symlink_to("conf")
    (here / "price").symlink_to("conf/p.toml")
    files = {"QUINE_INVENTORY": "linked/c.toml", "QUINE_PRICES": "price", "QUINE_API_KEY_FILE": "key"}
    files |= {"QUINE_API_TYPE": "program", "QUINE_API_BASE": "./guest.py", "QUINE_SHELL": "./shell"}
    files |= {"QUINE_API_KEY_COMMAND": "./print 'conf/k'", "XDG_CONFIG_HOME": str(here / ".config")}
    for name, value in files.items():
        monkeypatch.setenv(name, value)
    real = {
        "conf/c.toml",
        "conf/p.toml",
        "conf/k",
        "key",
        "guest.py",
        "shell",
        "print",
        ".config/quine/prices.toml",
    }
    for name in {*real, "conf/more", "m.md"}:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("here")
    stage(here, there, ".")
    for name in {*real, "conf/more"}:
        assert (there / name).read_text() == "here"
        (there / name).write_text("of the host")
    (there / "linked").unlink()
    (there / "price").unlink()
    (there / "linked").mkdir()
    for name in ("linked/c.toml", "price"):
        (there / name).write_text("of the host")
    kept = ["conf/c.toml", "conf/k", "conf/p.toml", "guest.py", "key", "linked", "price", "print", "shell"]
    for patterns in (["."], ["*", "conf"], ["conf/*", "[lpgks]*", "**/prices.toml"]):
        taken = bring(
            here, there, *patterns, obeyed=kept if "." not in patterns else [".config/quine", *kept]
        )
        assert taken == ("", ["**/prices.toml"] if len(patterns) == 3 else [])
    assert {(here / name).read_text() for name in real} == {"here"}
    assert ((here / "conf/more").read_text(), (here / "linked").is_symlink()) == ("of the host", True)
    for pattern in ("conf/c.toml", "price", "./guest.py", ".config/quine/*"):
        with pytest.raises(Misconfigured, match="quine obeys that file here"):
            Staging([], [pattern], str(here)).moving()
    with pytest.raises(Misconfigured, match=r"--returns m.md: quine obeys that file here"):
        Staging([], ["m.md"], str(here), obeys=["m.md"]).moving()
    os.link(here / "conf/c.toml", here / "hard")
    (there / "hard").write_text("of the host")
    assert "hard is another name of a file that quine obeys" in bring(here, there, "hard")[0]
    (here / "hard").unlink()
    # From a host that sends it nevertheless; and a link that would lead there.
    original = spec.matching
    monkeypatch.setattr(spec, "matching", lambda patterns, folder, places: original(patterns, folder))
    monkeypatch.setattr(scan, "_by_directory", lambda places: {})
    assert "shell is obeyed by quine here" in bring(here, there, "s*")[0]
    (here / ".config/quine/prices.toml").unlink()
    (here / ".config/quine").rmdir()
    (here / ".config").rmdir()
    shutil.rmtree(there)
    there.mkdir()
    (there / ".config").symlink_to(".")
    assert ".config stands where a directory" in bring(here, there, ".")[0]


def test_a_batch_and_a_command_keep_what_they_write(lab: Lab, tmp_path: Path) -> None:
    """A log that came back as it was when it was sent has lost its lines, and the batch had the status 0."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    # The first item ends once the second one has its line: its results are those of before.
    script = f"[ $1 = b ] || until grep -q b {here}/log; do sleep 0.05; done; echo $1 >$1.out; cp $1.out mine"
    words = ["xargs", "-P2", "--cwd", there, "--joblog", "log", "--results", "t.csv", "--files", "."]
    done = lab.run([*words, "--returns", ".", "--", "sh", "-c", script, "sh", ":::", "a", "b"], cwd=here)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len((here / "log").read_text().splitlines()) == 3
    assert len((here / "t.csv").read_text().splitlines()) == 3
    assert (here / "b.out").read_text() == "b\n"
    (here / "c.toml").write_bytes(lab.inventory.read_bytes())
    words = ["run", "--inventory", "c.toml", "--on", "h1", "--cwd", there, "--returns", ".", "--", "sh", "-c"]
    done = lab.run([*words, "echo mine >c.toml; rm -f a.out"], cwd=here)
    assert done.stderr.endswith(b"quine: c.toml left out of --returns, since quine obeys it here\n")
    assert (done.returncode, (here / "c.toml").read_bytes()) == (0, lab.inventory.read_bytes())
    (here / "build.log").touch()
    words = ["run", "--cwd", there, "--files", ".", "--returns", ".", "--", "sh", "-c"]
    script = "echo hello; echo built >bin; echo mine >build.log"
    done = lab.run([*words, script], cwd=here, stdout=here / "build.log")
    text = b"quine: build.log left out of --returns, since this command writes there itself\n"
    assert (done.returncode, done.stderr) == (0, text)
    assert ((here / "build.log").read_text(), (here / "bin").read_text()) == ("hello\n", "built\n")

"""Programs that start ssh start `quine rsh` instead, and the link is cut 20 times in the middle of their work.

The result has to be that of a run without a cut. The cuts are planned by bytes on the line; a program that starts anew
after one would be seen by what it leaves, and by its exit status.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.system import breaks

CUTS = max(20, breaks.CUTS)
FILES, SIZE = 24, 128 << 10  # of the tree that is carried, each way

pytestmark = [pytest.mark.long, pytest.mark.timeout(400 + 15 * breaks.CUTS)]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"no {program}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of files that nothing can compress, with names that a shell would take apart."""
    chance, top = random.Random(7), tmp_path / "source"
    for number in range(FILES):
        path = top / f"d{number % 3}" / f"file {number}'s"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(SIZE))
        path.chmod(0o640 + number % 5)
        os.utime(path, (1e9 + number, 1e9 + number))
    (top / "empty").mkdir()
    (top / "link").symlink_to("d1")
    return top


def tree(top: Path) -> dict[str, tuple[str, int, int]]:
    """Each path with its content, mode and time."""
    found = {}
    for path in sorted(top.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path) if path.is_symlink() else ""
        if path.is_file() and not content:
            content = sha256(path.read_bytes()).hexdigest()
        time = int(facts.st_mtime) if path.is_file() and not path.is_symlink() else 0
        found[str(path.relative_to(top))] = (content, facts.st_mode, time)
    return found


@pytest.fixture
def both(lab: Lab, through: Callable[..., str], tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Run a line of shell in a new directory without a cut, and in another one with them; return the two."""

    def run(line: str, seed: int) -> tuple[Path, Path]:
        host, proxy = through("h1"), lab["h1"].proxy
        made, carried = [], 0
        for name in ("uncut", "cut"):
            place = tmp_path / name
            place.mkdir()
            env = {"H": host, "D": str(place), "S": str(tmp_path / "source"), "RSH": "quine rsh"}
            before, done = proxy.carried(), proxy.cuts()
            if carried:
                proxy.cut_after(*breaks.plan(seed, CUTS, carried))
            ended = lab.sh(f"set -e; {line}", env=env, timeout=350, cwd=place)
            if ended.returncode:  # the first failure, the last one, and the place where the commands ran
                there = lab.run(
                    [
                        "rsh",
                        host,
                        "echo $SHELL $PPID $TMPDIR; ps -o pid,ppid,pgid,args; tail -n 3 $TMPDIR/par*",
                    ]
                )
                said = [
                    ended.stdout[-500:],
                    ended.stderr[:2000],
                    ended.stderr[-500:],
                    there.stdout,
                    there.stderr,
                ]
                pytest.fail(
                    "\n--\n".join([name, *(text.decode(errors="replace") for text in said)]), pytrace=False
                )
            assert proxy.cuts() - done == (CUTS if made else 0)
            carried = proxy.carried() - before
            (place / "stdout").write_bytes(ended.stdout)
            made.append(place)
        assert carried > FILES * SIZE
        return made[0], made[1]

    return run


@needs("rsync")
def test_rsync_there_and_back(both: Callable[..., tuple[Path, Path]], source: Path) -> None:
    uncut, cut = both('rsync -a -e "$RSH" "$S/" "$H:$D/there/"; rsync -a -e "$RSH" "$H:$D/there/" back/', 1)
    for place in (uncut, cut):
        assert tree(place / "there") == tree(place / "back") == tree(source)


@needs("git")
def test_git_clones_and_pushes(both: Callable[..., tuple[Path, Path]], source: Path) -> None:
    script = """
        git init -q --bare there; git init -q here; cp -r "$S" here/tree
        export GIT_SSH_COMMAND="$RSH" GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
        cd here; git add -A; git commit -q -m one; git push -q "$H:$D/there" HEAD:refs/heads/main
        cd ..; git clone -q -b main "$H:$D/there" back; git -C back fsck --strict; git -C back rev-parse HEAD
    """
    uncut, cut = both(script, 2)
    assert (uncut / "stdout").read_bytes() == (cut / "stdout").read_bytes() != b""
    contents = {name: content for name, (content, _, _) in tree(source).items() if content}
    for place in (uncut, cut):
        found = tree(place / "back" / "tree")
        assert {name: content for name, (content, _, _) in found.items() if content} == contents


@needs("parallel")
@needs("rsync")
def test_parallel_sends_files_and_brings_results(
    both: Callable[..., tuple[Path, Path]], source: Path
) -> None:
    """Each job is a command of its own, and three of rsync: a cut may come in any of them.

    With --cleanup each job also removes the directory if that is empty, as it is between another job's mkdir and its
    rsync, which then fails, with ssh as well: a file of ours keeps it.
    """
    script = """
        export PARALLEL_HOME="$D/.parallel"; mkdir .parallel; : >.parallel/will-cite; mkdir there; : >there/kept
        for n in 1 2 3 4 5 6 7 8; do cat "$S"/d*/*"$n's" >$n.in; done
        parallel -k --ssh "$RSH" -S "4/$H" --workdir "$D/there" --transferfile {}.in --return {}.out --cleanup \\
            "echo {} >>$D/ran; cksum <{}.in; cat {}.in {}.in >{}.out; cat {}.in" ::: 1 2 3 4 5 6 7 8
        cksum *.out
    """
    uncut, cut = both(script, 3)
    assert (uncut / "stdout").read_bytes() == (cut / "stdout").read_bytes()
    for place in (uncut, cut):
        assert sorted((place / "ran").read_text().split()) == list("12345678"), "not each job once"
        assert len(list(place.glob("*.out"))) == 8
        assert [path.name for path in (place / "there").iterdir()] == ["kept"]


@pytest.mark.whole
@needs("borg")
def test_borg_backs_up_and_extracts(both: Callable[..., tuple[Path, Path]], source: Path) -> None:
    script = """
        export BORG_RSH="$RSH" BORG_BASE_DIR="$D/borg" BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
        borg init --encryption none "$H:$D/there"
        borg create --compression none "$H:$D/there::one" "$S"
        borg check --verify-data "$H:$D/there"
        mkdir back; cd back; borg extract --strip-components "$(echo "$S" | tr -cd / | wc -c)" "$H:$D/there::one"
    """
    uncut, cut = both(script, 4)
    for place in (uncut, cut):
        assert tree(place / "back") == tree(source)


@needs("tar")
def test_tar_there_and_back(both: Callable[..., tuple[Path, Path]], source: Path) -> None:
    script = """
        mkdir there back
        tar c -C "$S" . | quine rsh "$H" "tar x -p -C '$D/there'"
        quine rsh "$H" "tar c -C '$D/there' ." | tar x -p -C back
    """
    uncut, cut = both(script, 5)
    for place in (uncut, cut):
        assert tree(place / "there") == tree(place / "back") == tree(source)


@needs("sftp")
def test_sftp_puts_and_gets(both: Callable[..., tuple[Path, Path]], source: Path) -> None:
    script = (
        'mkdir back; printf "put -Rp $S there\\nget -Rp there back\\n" | sftp -q -b - -S quine-rsh "$H:$D"'
    )
    uncut, cut = both(script, 6)
    plain = {name: facts for name, facts in tree(source).items() if name != "link"}
    for place in (uncut, cut):
        assert {name: facts for name, facts in tree(place / "there").items() if name != "link"} == plain
        assert tree(place / "back" / "there") == tree(place / "there")

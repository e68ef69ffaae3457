"""`quine fs` in a job on another machine: the same as at the origin, whatever is killed and however the link is cut."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.files.commands import HOSTILE, fill, snapshot
from tests.lab import Lab
from tests.support.agents import until
from tests.system.breaks import CUTS, QUIET, plan, proxy_process

pytestmark = pytest.mark.timeout(300)

SCRIPT = r"""
cd "$(mktemp -d)" || exit
mkdir -p s/d s/none; printf 'one\n' >s/a; printf 'two\377\0' >s/d/b; head -c 3000000 /dev/zero >s/big; ln -s a s/l
touch -d @1000000000.5 s/a s/d/b; chmod 755 s/d/b
quine fs put -r s t; echo $?
quine fs ls t; quine fs find -type f; quine fs ls -l t/a | cut -c 1-50
quine fs cat t/a t/d/b | od -c
quine fs cat t/big | head -c 3; echo; quine fs get t/big - | cmp - s/big
tr 01 ab <s/d/b | quine fs put - 'x y'; quine fs cat 'x*'
quine fs put --if-absent - lock </dev/null; quine fs put --if-absent - lock </dev/null; echo $?
quine fs get -r t back; ls -R back; stat -c '%a %.1Y' back/a back/d/b; cmp s/d/b back/d/b
quine fs sync tier:t back; quine fs sync -n s tier:t; echo $?
quine fs mv 'x y' z; quine fs cp z t/d; quine fs cp -r t u; quine fs find u; quine fs rm t
quine fs rm -r t u; quine fs find
quine fs cat none; echo $?; quine fs cat ../x; quine fs mkdir m; quine fs mkdir m; quine fs url z | sed 's,.*/,,'
cd /; rm -rf "$OLDPWD"
"""

THERE_AND_BACK = "cd $(mktemp -d) && quine fs get -r t . && quine fs put -r t back"
AWAY = "; cd /; rm -r $OLDPWD"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.mark.long
def test_every_command_is_the_same_over_there(lab: Lab, tmp_path: Path) -> None:
    here = lab.run(["run", "--", "sh", "-c", SCRIPT], env={"QUINE_FS": f"origin:{tmp_path}/here"})
    away = lab.run(
        ["run", "--on", "h1", "--", "sh", "-c", SCRIPT], env={"QUINE_FS": f"origin:{tmp_path}/away"}
    )
    assert (away.returncode, away.stdout.decode("latin1")) == (here.returncode, here.stdout.decode("latin1"))
    assert away.stderr.decode() == here.stderr.decode()
    assert snapshot(tmp_path / "away").keys() == snapshot(tmp_path / "here").keys() == {b"lock", b"m", b"z"}
    assert b"quine: error: lock: file exists" in here.stderr


def test_names_cross_as_they_are(lab: Lab, root: Path) -> None:
    fill(root / "t", {name: name for name in HOSTILE})
    code = f"{THERE_AND_BACK} && quine fs ls -0 back{AWAY}"
    done = lab.run(["run", "--on", "h1", "--", "sh", "-c", code], env={"QUINE_FS": f"origin:{root}"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split(b"\0")[:-1] == sorted(HOSTILE)
    assert snapshot(root / "back") == snapshot(root / "t")


def test_five_gigabytes_of_nothing_cross_as_holes(lab: Lab, root: Path) -> None:
    code = "cd $(mktemp -d) && truncate -s 5G s && quine fs put s t && quine fs get t u && stat -c '%s %b' u"
    words = ["run", "--on", "h1", "--", "sh", "-c", f"{code}; cd /; rm -r $OLDPWD"]
    done = lab.run(words, env={"QUINE_FS": f"origin:{root}"})
    assert (done.returncode, done.stderr) == (0, b"")
    size, blocks = map(int, done.stdout.split())
    there = (root / "t").stat()
    assert size == there.st_size == 5 << 30
    assert max(blocks, there.st_blocks) * 512 < 4 << 20


def test_a_store_that_its_origin_cannot_reach_is_status_69_there_too(lab: Lab) -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        url = f"sftp://127.0.0.1:{taken.getsockname()[1]}/root"
        done = lab.run(["run", "--on", "h1", "--", "quine", "fs", "cat", "a", "b"], env={"QUINE_FS": url})
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.count(b"quine: error: a: ") == 1 and done.stderr.count(b"quine: error: ") == 1
    assert b"quine: hint: QUINE_FS names the store" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_is_killed_over_there_leaves_nothing(lab: Lab, root: Path, number: signal.Signals) -> None:
    fill(root, {b"x": b"old"})
    code = "echo $$; exec quine fs put - x"
    with proxy_process(
        lab, "run", "--on", "h1", "--", "sh", "-c", code, env={"QUINE_FS": f"origin:{root}"}
    ) as process:
        pid = int(process.stdout.readline())
        process.stdin.write(random.randbytes(2 << 20))
        process.stdin.flush()
        until(lambda: any(path.stat().st_size for path in (root / ".quine-parts").glob("*")), 60)
        assert any(one.pid == pid for one in lab["h1"].processes())
        os.kill(pid, number)
        process.stdin.close()
        assert process.wait(120) == -number
    assert (root / "x").read_bytes() == b"old"

    def swept() -> bool:
        lab.run(["fs", "put", "-", "y"], env={"QUINE_FS": f"origin:{root}"}, check=True)
        return not list((root / ".quine-parts").glob("*"))

    # The next command sweeps the parts of a dead proxy. The node keeps the descriptors lent to it a moment longer.
    until(swept)


@pytest.mark.long
@pytest.mark.parametrize("cuts", [CUTS or 5])
def test_cuts_of_the_link_change_no_byte(
    lab: Lab, through: Callable[..., str], root: Path, tmp_path: Path, cuts: int
) -> None:
    """Down and up, many files at a time: acknowledged files are kept, and no file is there in part."""
    host, proxy = through("h1", lease=120), lab["h1"].proxy
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    files = {b"d%d/f%d" % (n % 5, n): dice.randbytes(dice.randrange(200_000)) for n in range(30)}
    files[b"large"] = dice.randbytes(4 << 20)
    fill(root / "t", files)
    code = f"{THERE_AND_BACK} && quine fs sync -nc t tier:back{AWAY}"

    def run() -> None:
        done = lab.run(
            [*QUIET, "--on", host, "--", "sh", "-c", code], env={"QUINE_FS": f"origin:{root}"}, timeout=250
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), seed
        assert snapshot(root / "back") == snapshot(root / "t"), seed

    before = proxy.carried()
    run()
    carried = proxy.carried() - before
    shutil.rmtree(root / "back")
    done = proxy.cuts()
    proxy.cut_after(*plan(seed, cuts, carried))
    run()
    assert proxy.cuts() - done == cuts, seed

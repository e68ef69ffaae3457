"""The tier as a directory, as programs see it: everyday tools, versions, drafts, and what close tells. Real FUSE."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quine.files.stores.local.store import Local
from tests.files.commands import many
from tests.mount.mounting import Mount, Part, needs_fuse, serving
from tests.mount.mounting import mount as mount
from tests.mount.mounting import shared as shared
from tests.support.agents import until

pytestmark = needs_fuse

TOOLS = r"""
set -e
echo hello >a; cat a; echo more >>a; cat a
cp /etc/passwd p; cmp /etc/passwd p
mkdir -p d/e; mv p d/e/q; find . | sort
sed -i s/hello/bye/ a; cat a
head -c 1300000 /dev/urandom >big; cp big big2; cmp big big2; cp -p big big3; cmp big big3
dd if=big of=big2 bs=1000 skip=10 seek=20 count=5 conv=notrunc 2>/dev/null; wc -c <big2
: >empty; test -f empty; test ! -s empty
touch -d 2020-01-01T00:00:00Z t; chmod 640 t; stat -c '%a %s %Y' t
chmod 755 t; stat -c '%a %Y' t
mkdir in; echo 1 >in/one; echo 2 >in/two; chmod 700 in/two
tar cf - in | (mkdir out; cd out; tar xf -); ls -R out; cat out/in/two; stat -c %a out/in/two
truncate -s 100 a; wc -c <a; truncate -s 3 a; cat a; echo
(echo one; sleep 0.05; echo two) >multi; cat multi
{ echo b1; echo b2; } >m2; cat m2
(set -C; echo x >m2) 2>/dev/null && echo clobbered || echo refused
echo 'echo run $1' >script; chmod +x script; sh ./script it
ls -la >/dev/null; ls
echo odd >"a name
 with - ünd"; cat a*name*; rm a*name*
rmdir d 2>/dev/null && echo gone || echo full
rm -r d out in; ls
mv big2 m2; ls; cat missing 2>/dev/null || echo none
"""


def names(store: Path) -> set[str]:
    return {name for name in os.listdir(store) if not name.startswith(".quine")}


def test_tools_do_what_they_do_in_a_directory(mount: Part, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    said = [
        subprocess.run(["bash", "-c", TOOLS], cwd=where, capture_output=True, timeout=120)
        for where in (plain, mount.path)
    ]
    assert said[1].stderr == said[0].stderr
    assert said[1].stdout == said[0].stdout
    assert said[1].returncode == said[0].returncode == 0
    assert names(mount.store) == set(os.listdir(plain))


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_git_works_in_it(mount: Part) -> None:
    script = """
    set -e
    git -c init.defaultBranch=main init -q --template= repo; cd repo
    git config gc.auto 0; git config maintenance.auto false  # which go on when git has ended
    git config user.email a@example.org; git config user.name a
    for n in 1 2 3; do echo $n >file; git add file; git commit -qm $n; done
    git log --format=%s; git status --short; git gc -q; git fsck --strict
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_"))}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(mount.path)}
    done = subprocess.run(["bash", "-c", script], cwd=mount.path, env=env, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"3\n2\n1\n"), done.stderr


def test_modes_of_open(mount: Part) -> None:
    path = mount.path / "f"
    with open(path, "xb") as file:
        file.write(b"0123456789")
    with pytest.raises(FileExistsError):
        path.open("xb").close()
    with open(path, "r+b") as file:
        file.seek(3)
        file.write(b"abc")
        file.seek(0)
        assert file.read() == b"012abc6789"
        assert os.fstat(file.fileno()).st_size == 10
    with open(path, "ab") as file:
        assert file.tell() == 10
        file.write(b"end")
    assert path.read_bytes() == b"012abc6789end"
    with open(path, "w+b") as file:
        file.write(b"new")
        file.truncate(2)
        file.seek(0)
        assert file.read() == b"ne"
    assert (mount.store / "f").read_bytes() == b"ne"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 5000)
    assert path.stat().st_size == 5000
    with pytest.raises(IsADirectoryError):
        mount.path.open("wb").close()


def test_modes_and_times_leave_the_content_where_it_is(mount: Part) -> None:
    path, kept = mount.path / "f", mount.store / "f"
    path.write_bytes(b"content" * 1000)
    before = kept.stat().st_ino
    os.chmod(path, 0o640)
    os.utime(path, (1.5e9, 1.5e9))
    assert (path.stat().st_mode & 0o777, path.stat().st_mtime) == (0o640, 1.5e9)
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno(), (1.6e9, 1.6e9))
        facts = os.fstat(file.fileno())
        assert (facts.st_mode & 0o777, facts.st_mtime, facts.st_size) == (0o600, 1.6e9, 7000)
        assert (kept.stat().st_mode & 0o777, kept.stat().st_mtime) == (0o600, 1.6e9)
        (mount.store / "new").write_bytes(b"other")
        os.rename(mount.store / "new", kept)
        os.chmod(path, 0o604)  # of the file there now; the open file is not changed by it
        assert (path.read_bytes(), file.read()) == (b"other", b"content" * 1000)
        before = kept.stat().st_ino
    subprocess.run(["touch", path], check=True, timeout=60)
    assert abs(kept.stat().st_mtime - time.time()) < 1000
    with open(path, "r+b") as file:
        os.fchmod(file.fileno(), 0o444)
        os.utime(file.fileno(), (1.7e9, 1.7e9))
        assert kept.stat().st_mode & 0o777 == 0o604  # until the close
    assert (kept.stat().st_mode & 0o777, kept.stat().st_mtime, kept.stat().st_ino) == (0o444, 1.7e9, before)
    assert kept.read_bytes() == b"other"


def test_a_mapped_file_is_read_and_written(mount: Part) -> None:
    path = mount.path / "f"
    path.write_bytes(b"a" * 10000)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[5000:5003] = b"xyz"
        mapped.flush()
    assert (mount.store / "f").read_bytes() == b"a" * 5000 + b"xyz" + b"a" * 4997


def test_a_program_in_it_runs(mount: Part) -> None:
    shutil.copy("/bin/true", mount.path / "it")
    assert subprocess.run([mount.path / "it"], timeout=60).returncode == 0


@pytest.mark.parametrize("size", [10, 9_000_000])
def test_who_reads_a_version_reads_it_to_its_end(mount: Part, size: int) -> None:
    tier, path = Local(str(mount.store)), mount.path / "f"
    old, new = os.urandom(size), b"new" * (size // 2)
    path.write_bytes(old)
    with open(path, "rb", buffering=0) as reader:
        first = reader.read(5)
        with tier.create("f") as writer:
            writer.write(new)
            writer.commit()
        assert path.read_bytes() == new  # the next open
        assert path.stat().st_size == len(new)
        path.write_bytes(b"third")
        os.unlink(path)
        rest = b""
        while block := reader.read(1 << 20):
            rest += block
        assert hashlib.sha256(first + rest).digest() == hashlib.sha256(old).digest()
        assert os.fstat(reader.fileno()).st_size == size
    assert not path.exists()


def test_a_listing_is_believed_by_nobody_who_opens(mount: Part) -> None:
    tier = Local(str(mount.store))
    for number in range(5):
        content = str(number).encode() * (number + 1)
        with tier.create("f") as writer:
            writer.write(content)
            writer.commit()
        assert (mount.path / "f").read_bytes() == content
        with os.scandir(mount.path) as entries:
            assert [entry.stat().st_size for entry in entries] == [len(content)]


def test_jumps_in_a_large_file(mount: Part) -> None:
    data = os.urandom(1 << 20) * 12
    (mount.store / "f").write_bytes(data)
    with open(mount.path / "f", "rb") as file:
        for offset in (11_000_000, 6_500_000, 1, 12_582_900, 7_000_000, 3_000_000):
            file.seek(offset)
            assert file.read(5000) == data[offset : offset + 5000]
    assert (mount.path / "f").read_bytes() == data


def test_nobody_sees_a_draft(mount: Part, tmp_path: Path) -> None:
    """Neither the store nor the mount shows a draft: the old file is there until the close."""
    path = mount.path / "f"
    with open(path, "wb", buffering=0) as file:
        file.write(b"half")
        assert not (mount.store / "f").exists()
        looked = subprocess.run(["cat", path], capture_output=True, timeout=60)
        assert looked.returncode == 1
        assert path.exists()  # for its writer
    assert (mount.store / "f").read_bytes() == b"half"
    with open(path, "r+b", buffering=0) as file:
        file.write(b"HALF and more")
        assert (mount.store / "f").read_bytes() == b"half"
        assert subprocess.run(["cat", path], capture_output=True, timeout=60).stdout == b"half"
        assert file.seek(0, os.SEEK_END) == 13
        # of a process that was born with the descriptor, the end is no close
        subprocess.run(["true"], pass_fds=[file.fileno()], timeout=60)
        assert (mount.store / "f").read_bytes() == b"half"
        os.fsync(file.fileno())
        assert (mount.store / "f").read_bytes() == b"HALF and more"
    assert path.read_bytes() == b"HALF and more"


def test_a_redirection_is_one_file(mount: Part) -> None:
    """A shell opens, doubles and closes before it runs the command."""
    (mount.store / "f").write_bytes(b"old")
    for shell in ("sh", "bash"):
        command = f'{{ echo first; cat "{mount.store}/f"; (echo second); cat "{mount.store}/f"; }} >f'
        (mount.store / "f").write_bytes(b"old\n")
        subprocess.run([shell, "-c", command], cwd=mount.path, check=True, timeout=60)
        assert (mount.store / "f").read_bytes() == b"first\nold\nsecond\nold\n"


def test_another_file_of_that_name_holds_up_no_close(mount: Part, tmp_path: Path) -> None:
    """A close commits the file, whatever other file the process writes, in the mount or elsewhere."""
    (mount.path / "d").mkdir()
    for other in (tmp_path / "f", mount.path / "d" / "f"):
        with open(other, "wb"):
            (mount.path / "f").write_bytes(bytes(other))
            assert (mount.store / "f").read_bytes() == bytes(other)
    file = os.open(mount.path / "f", os.O_WRONLY)
    os.write(file, b"a")
    os.rename(mount.path / "f", mount.path / "g")
    os.close(os.dup(file))  # the file is open still, under its new name
    assert (mount.store / "g").read_bytes() == bytes(other)
    os.close(file)
    assert (mount.store / "g").read_bytes() == b"a" + bytes(other)[1:]


def test_a_directory_with_a_draft_in_it_is_not_empty(mount: Part) -> None:
    """A directory with a draft cannot be removed or replaced: the close still has to put the file there."""
    (mount.path / "d").mkdir()
    (mount.path / "e").mkdir()
    with open(mount.path / "d" / "f", "wb") as file:
        file.write(b"f")
        with pytest.raises(OSError, match="not empty"):
            (mount.path / "d").rmdir()
        with pytest.raises(OSError, match="not empty"):
            (mount.path / "e").rename(mount.path / "d")
    assert (mount.store / "d" / "f").read_bytes() == b"f"


LOOK = """
import sys
seen = set()
while len(seen) < 6:
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    seen.add(data[:1])
    if len(data) != 70000 or data.count(data[:1]) != len(data):
        sys.exit(f"a mixture: {len(data)} bytes, {set(data)}")
"""


def test_a_file_is_replaced_at_once_for_all_who_look(mount: Part, tmp_path: Path) -> None:
    with Mount(tmp_path, mount.store, "other") as other:
        (mount.path / "f").write_bytes(b"0" * 70000)
        readers = [
            subprocess.Popen([sys.executable, "-c", LOOK, where.path / "f"], stderr=subprocess.PIPE)
            for where in (mount, mount, other)
        ]
        number, deadline = 0, time.monotonic() + 100
        try:
            while any(reader.poll() is None for reader in readers):
                assert time.monotonic() < deadline, "they do not see what is written"
                number += 1
                (mount.path / "f").write_bytes(str(number % 10).encode() * 70000)
        finally:
            for reader in readers:
                reader.kill()
            said = [reader.communicate(timeout=60)[1] for reader in readers]
        assert said == [b"", b"", b""]


def test_of_two_who_create_it_one_wins(mount: Part, tmp_path: Path) -> None:
    with Mount(tmp_path, mount.store, "other") as other:
        fd = os.open(mount.path / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        with pytest.raises(FileExistsError):
            os.open(other.path / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, b"mine")
        os.close(fd)
        assert (other.path / "lock").read_bytes() == b"mine"
        os.mkdir(other.path / "d")
        with pytest.raises(FileExistsError):
            os.mkdir(mount.path / "d")
        (other.path / "a").write_bytes(b"a")
        (mount.path / "b").write_bytes(b"b")
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        source, target = os.fsencode(mount.path / "a"), os.fsencode(mount.path / "b")
        assert renameat2(-100, source, -100, target, 1) == -1
        assert ctypes.get_errno() == errno.EEXIST
        os.rename(mount.path / "a", mount.path / "b")
        assert (other.path / "b").read_bytes() == b"a"
        assert sorted(os.listdir(other.path)) == ["b", "d", "lock"]


def test_a_file_without_a_name_is_nobodys(mount: Part) -> None:
    path = mount.path / "f"
    with open(path, "w+b", buffering=0) as file:
        file.write(b"lost")
        os.unlink(path)
        file.write(b" and found")
        file.seek(0)
        assert file.read() == b"lost and found"
    assert not names(mount.store)
    with open(path, "wb") as file:
        file.write(b"named later")
        os.rename(path, mount.path / "g")
    assert (mount.store / "g").read_bytes() == b"named later"
    assert names(mount.store) == {"g"}


FULL = """
import errno
from quine.files.stores.local.store import Local
class Full(Local):
    def create(self, path, **given):
        writer = super().create(path, **given)
        def refuse():
            raise OSError(errno.EDQUOT, "full", path)
        if path.startswith("large"):
            writer.commit = refuse
        return writer
tier = Full(sys.argv[1] + ".store")
"""


SMALL = """
from quine.files.stores.local.store import Local
tier = Local(sys.argv[1] + ".store")
tier.most = 100_000
"""


def test_what_no_file_of_the_tier_can_have_is_refused_as_it_is_written(tmp_path: Path) -> None:
    with serving(tmp_path, SMALL) as path:
        fd = os.open(path / "large", os.O_CREAT | os.O_WRONLY)
        assert os.write(fd, bytes(100_000)) == 100_000
        with pytest.raises(OSError) as caught:
            os.write(fd, b"x")
        assert caught.value.errno == errno.EDQUOT
        os.close(fd)
        assert (path / "large").stat().st_size == 100_000


def test_what_could_not_be_committed_is_not_said_to_be_kept(
    tmp_path: Path, spools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by the second fsync; and what the last close could not commit is there."""
    monkeypatch.setenv("TMPDIR", str(spools))
    with serving(tmp_path, FULL) as path:
        fd = os.open(path / "large", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x" * 200_000)
        for act in (os.fsync, os.fsync, os.close):
            with pytest.raises(OSError) as caught:
                act(fd)
            assert caught.value.errno == errno.EDQUOT
        until(lambda: len(list(spools.iterdir())) == 1)
        (kept,) = spools.iterdir()
        assert kept.name.endswith("-large") and kept.read_bytes() == b"x" * 200_000


def test_close_tells_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(tmp_path, FULL) as path:
        (path / "small").write_bytes(b"x" * 1000)
        fd = os.open(path / "large", os.O_CREAT | os.O_WRONLY)
        os.write(fd, bytes(200_000))
        with pytest.raises(OSError) as caught:
            os.close(fd)
        assert caught.value.errno == errno.EDQUOT
        until(lambda: os.listdir(path) == ["small"])
        with pytest.raises(OSError) as caught:
            os.rename(path / "missing", path / "other")
        assert caught.value.errno == errno.ENOENT


def test_what_a_tier_has_not_is_refused(mount: Part) -> None:
    (mount.path / "f").write_bytes(b"f")
    for attempt in (
        lambda: os.symlink("f", mount.path / "link"),
        lambda: os.link(mount.path / "f", mount.path / "hard"),
        lambda: os.mkfifo(mount.path / "pipe"),
        lambda: os.chown(mount.path / "f", 12345, -1),
    ):
        with pytest.raises(PermissionError):
            attempt()
    with pytest.raises(OSError) as caught:
        os.setxattr(mount.path / "f", "user.a", b"b")
    assert caught.value.errno in (errno.ENOTSUP, errno.ENOSYS)
    with pytest.raises(OSError) as caught:
        (mount.path / ("n" * 256)).write_bytes(b"")
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.statvfs(mount.path).f_namemax == 255
    # The error comes at the open: a program that ignores the status of close would think the file was kept.
    for name in (".quine", ".quine-parts"):
        with pytest.raises(PermissionError):
            os.close(os.open(mount.path.parent / name, os.O_CREAT | os.O_WRONLY))
    assert os.listdir(mount.path) == ["f"]


@pytest.mark.long
def test_thousands_of_names(mount: Part) -> None:
    folder = mount.store / "many"
    folder.mkdir()
    expected = {f"file {number}".encode() for number in range(3000)} | {b"\xff not text"}
    many(folder, expected)
    assert set(os.listdir(os.fsencode(mount.path / "many"))) == expected
    with os.scandir(mount.path / "many") as entries:
        assert sum(entry.is_file() and entry.stat().st_size == 0 for entry in entries) == len(expected)


def test_holes_take_no_room(mount: Part) -> None:
    path = mount.path / "f"
    with open(path, "wb") as file:
        file.write(b"start")
        file.seek(1 << 30)
        file.write(b"end")
    facts = (mount.store / "f").stat()
    assert facts.st_size == (1 << 30) + 3
    assert facts.st_blocks * 512 < 1 << 20
    with open(path, "rb") as file:
        file.seek((1 << 30) - 2)
        assert file.read() == b"\0\0end"


TOLD_BY_LISTINGS = """
from quine.files.stores.local.store import Local
from quine.mount import reading
reading.BELIEVED = 3600
class Listing(Local):
    def stat(self, path):
        if path.startswith("many/"):
            raise OSError(5, "asked for one of many", path)
        return super().stat(path)
tier = Listing(STORE)
"""


@pytest.mark.long
def test_what_a_listing_told_of_many_is_not_asked_for_each(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "many"
    folder.mkdir(parents=True)
    for number in range(3000):
        (folder / str(number)).write_bytes(b"x" * number)
    with serving(tmp_path, TOLD_BY_LISTINGS.replace("STORE", repr(str(tmp_path / "store")))) as mounted:
        listed = os.listdir(mounted / "many")  # all of the names first, as ls does
        sizes = {name: (mounted / "many" / name).stat().st_size for name in listed}
    assert sizes == {str(number): number for number in range(3000)}

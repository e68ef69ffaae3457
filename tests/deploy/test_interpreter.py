"""`quine deploy --python`: a host without Python gets the one of a file, and nothing leads out of that."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.build import build
from deploy.probe import Place
from deploy.upkeep import interpreter
from tests.deploy.test_deploy import REAL
from tests.lab import Lab
from tests.lab.host import Host
from tests.support.waiting import until
from transport.errors import Misconfigured

LEFT_OUT = {
    "test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data",
    "turtledemo", "__pycache__", "unittest", "xmlrpc", "sqlite3", "curses", "dbm", "wsgiref",
}  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's Python, as python-build-standalone packs it, without the parts that quine does not need."""
    path = tmp_path_factory.mktemp("python") / "python.tar.gz"
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    library = subprocess.run(
        [REAL, "-I", "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()

    def needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = set(member.name.split("/"))
        return None if parts & LEFT_OUT or "/config-" in member.name or not _plain(member) else member

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(REAL, f"python/bin/{REAL.name}")
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, REAL.name
        archive.addfile(link)
        archive.add(library, f"python/lib/{REAL.name}", filter=needed)
    return path


def _plain(member: tarfile.TarInfo) -> bool:
    return member.isfile() or member.isdir()


def cache(host: Host) -> list[str]:
    folder = host.path_of(".cache/quine")
    return sorted(os.listdir(folder)) if folder.is_dir() else []


@pytest.mark.long
def test_a_host_without_python_gets_one_and_keeps_it(
    lab: Lab, odd_host: Callable[..., Host], packed: Path
) -> None:
    host = odd_host("bare", python=False, shell="/bin/sh", banner="Welcome!\n")
    python = interpreter.read(packed)
    planned = lab.run(["deploy", "--plan", "--python", packed, "bare"], check=True).stdout.decode()
    assert (
        planned == f"bare: send {python.size + 1023 >> 10} kB of Python and {build().size + 1023 >> 10} kB\n"
    )
    assert cache(host) == []
    done = lab.run(["deploy", "--python", packed, "bare"], check=True)
    assert done.stdout.startswith(b"bare: deployed with a Python, ") and done.stderr == b""
    assert cache(host) == sorted([build().sha256, f"python-{python.sha256}"])
    done = lab.run(["run", "--on", "bare", "--", "quine", "--version"], check=True)
    assert done.stdout == lab.run(["--version"], check=True).stdout
    lab.stop_nodes()
    again = lab.run(["deploy", "--python", packed, "bare"], check=True)
    assert again.stdout.startswith(b"bare: already there, ")
    # without the option: the next build finds the Python by itself
    os.rename(host.path_of(f".cache/quine/{build().sha256}"), host.path_of(".cache/quine/old"))
    assert lab.run(["run", "--on", "bare", "--", "echo", "on"], check=True).stdout == b"on\n"
    lab.stop_nodes()
    assert lab.run(["deploy", "--remove", "bare"], check=True).stdout == b"bare: removed 3 installations\n"
    assert cache(host) == []


@pytest.mark.long
def test_it_gets_there_by_a_connection_that_is_cut(
    lab: Lab, odd_host: Callable[..., Host], packed: Path
) -> None:
    host = odd_host("bare", python=False)
    lab.alias("cut", of="bare", via=host.proxy)
    size = packed.stat().st_size
    before = host.proxy.accepted()
    host.proxy.cut_after(*[size // 4] * 100)
    done = lab.run(["deploy", "--python", packed, "cut"], check=True)
    assert done.stdout.startswith(b"cut: deployed with a Python, ")
    assert host.proxy.accepted() - before >= 5
    assert len(cache(host)) == 2


@pytest.mark.whole
@pytest.mark.long
def test_two_at_once_bring_one(lab: Lab, odd_host: Callable[..., Host], packed: Path) -> None:
    host = odd_host("bare", python=False)
    words = ["deploy", "--python", str(packed), "bare"]
    both = [lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(cache(host)) == 2
    assert lab.run(["run", "--on", "bare", "--", "echo", "on"], check=True).stdout == b"on\n"


def archive(folder: Path, *members: tuple[str, bytes, str], form: str = "gz") -> Path:
    """Pack members, each a name, a type, and the target of a link or the text of a file."""
    path = folder / f"python.tar.{form}"
    with tarfile.open(path, f"w:{form}") as file:  # type: ignore[call-overload]
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                member.size = len(text)
            else:
                member.linkname = text
            file.addfile(member, io.BytesIO(text.encode()))
    return path


FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
PROGRAM = ("py/bin/python3", FILE, "#!/bin/sh\nexit 0\n")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("py/../../x", FILE, "")], "leads out of it"),
        ([("py/a", LINK, "../../x")], "leads out of it"),
        ([("py/a", LINK, "/etc")], "leads out of it"),
        ([("py/a", LINK, "b/..")], "leads out of it"),
        ([("py/a", LINK, "bin"), ("py/a/x", FILE, "")], "is behind a link"),
        ([("py/a", HARD, "../x")], "leads out of it"),
        ([("py/a", HARD, "/etc/passwd")], "leads out of it"),
        ([("py/a", tarfile.FIFOTYPE, "")], "no file, directory or link"),
        ([("other", FILE, "")], "more than one directory"),
        ([("/etc/x", FILE, "")], "leads out of it"),
    ],
)
def test_nothing_in_it_leads_out_of_it(
    members: list[tuple[str, bytes, str]], why: str, tmp_path: Path
) -> None:
    with pytest.raises(Misconfigured, match=why):
        interpreter.read(archive(tmp_path, PROGRAM, *members))


def test_links_within_it_are_fine(tmp_path: Path) -> None:
    members = [
        ("./py", DIRECTORY, ""),
        ("py/bin/python3", LINK, "python3.12"),
        ("py/bin/python3.12", FILE, "x" * 5000),
    ]
    found = interpreter.read(
        archive(tmp_path, *members, ("py/lib/a", LINK, "../bin/python3"), ("py/b", HARD, "py/lib/a"))
    )
    assert (found.program, found.flag, found.tool, found.unpacked) == ("py/bin/python3", "z", "gzip", 5000)


def test_what_is_no_packed_python_is_named(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "python.tar"
    for content, why in (
        (None, "no such file or directory"),
        (b"\x28\xb5\x2f\xfdxxxx", "is packed with zstd"),
        (b"no tar file", "is no archive of a Python"),
        (b"", "is no archive of a Python"),
        (gzip.compress(os.urandom(1 << 20))[:5000], "is no archive of a Python, or is cut off"),
        (lzma.compress(os.urandom(1 << 14))[:5000], "is no archive of a Python, or is cut off"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(Misconfigured, match=why) as caught:
            interpreter.read(path)
        assert caught.value.hint
    with pytest.raises(Misconfigured, match=r"no bin/python3"):
        interpreter.read(archive(tmp_path, ("py/bin/python2", FILE, "")))
    done = lab.run(["deploy", "--python", path, "h1"])
    assert done.returncode == 2 and why in done.stderr.decode() and b": hint: " in done.stderr


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/"])
def test_a_device_or_directory_is_no_packed_python(path: str) -> None:
    with pytest.raises(Misconfigured, match=f"{path} is no archive of a Python: it is not a file"):
        interpreter.read(Path(path))


TOOLS = (
    *("sh", "ls", "id", "df", "uname", "tail", "head", "wc"),
    *("dd", "tar", "gzip", "sha256sum", "mkdir", "mv", "rm", "touch"),
)
LARGE = ("py/lib", FILE, os.urandom(interpreter.BLOCK).hex())  # more than one block


def receiver(home: Path, python: interpreter.Interpreter) -> subprocess.Popen[bytes]:
    """The command on a host without Python, whose home is `home`; its answer `need` has been read."""
    (home / "bin").mkdir(exist_ok=True)
    for name in TOOLS:
        with contextlib.suppress(FileExistsError):
            (home / "bin" / name).symlink_to(str(shutil.which(name)))
    argv = ["/bin/sh", "-c", interpreter.command(python, Place(), "MARKER")]
    env = {"HOME": str(home), "PATH": str(home / "bin")}
    return subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def brought(process: subprocess.Popen[bytes], python: interpreter.Interpreter) -> str:
    """Send the bytes that it needs, and return its last answer."""
    with process:
        assert process.stdin and process.stdout
        word, *kept = process.stdout.readline().decode().split()[1:]
        if word == "need":
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(python.path.read_bytes()[int(kept[0]) :])
                process.stdin.close()
            return process.stdout.read().decode().removeprefix("MARKER ").strip()
        return word


def test_nothing_is_brought_into_or_started_in_a_cache_that_others_can_change(tmp_path: Path) -> None:
    python = interpreter.read(archive(tmp_path, ("py/bin/python3", FILE, "#!/bin/sh\ntouch $HOME/ran\n")))
    base = tmp_path / ".cache" / "quine"
    base.mkdir(parents=True)
    for mode in (0o777, 0o1777, 0o757):
        base.chmod(mode)
        assert brought(receiver(tmp_path, python), python) == f"fail owner {base}", oct(mode)
    assert os.listdir(base) == [] and not (tmp_path / "ran").exists()
    theirs = base / "python-1" / "py" / "bin" / "python3"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("#!/bin/sh\ntouch $HOME/ran\necho 399 99999\n")
    theirs.chmod(0o755)
    assert brought(receiver(tmp_path, python), python).startswith("fail owner")
    assert not (tmp_path / "ran").exists()
    base.chmod(0o755)
    assert brought(receiver(tmp_path, python), python) == "have" and (tmp_path / "ran").exists()


def test_the_bytes_of_an_upload_may_go_when_another_one_is_done(tmp_path: Path) -> None:
    """Of several hosts with one home the first one removes them; they are all there, and so is the Python."""
    python = interpreter.read(archive(tmp_path, PROGRAM, LARGE))
    base, data = tmp_path / ".cache" / "quine", python.path.read_bytes()
    slow = receiver(tmp_path, python)
    assert slow.stdin and slow.stdout and slow.stdout.readline() == b"MARKER need 0\n"
    slow.stdin.write(data[: interpreter.BLOCK])
    slow.stdin.flush()
    part = base / f".part-python-{python.sha256}"
    until(lambda: part.exists() and part.stat().st_size == interpreter.BLOCK, "a block has come")
    assert brought(receiver(tmp_path, python), python) == "have"
    assert os.listdir(base) == [f"python-{python.sha256}"]
    said, _ = slow.communicate(data[interpreter.BLOCK :])
    assert said == b"MARKER have\n" and os.listdir(base) == [f"python-{python.sha256}"]


def test_a_python_that_was_damaged_there_is_replaced(tmp_path: Path) -> None:
    python = interpreter.read(archive(tmp_path, PROGRAM))
    there = tmp_path / ".cache" / "quine" / f"python-{python.sha256}" / "py" / "bin" / "python3"
    there.parent.mkdir(parents=True)
    there.touch()
    assert brought(receiver(tmp_path, python), python) == "have"
    assert there.read_text() == PROGRAM[2] and os.listdir(there.parents[3]) == [there.parents[2].name]


@pytest.mark.parametrize("form", ["gz", "xz", "bz2"])
def test_a_damaged_archive_is_named(form: str, tmp_path: Path) -> None:
    """Its head is sound, so that its kind is known, and the rest is not."""
    path = archive(
        tmp_path, ("py/bin/python3", FILE, "x" * 5000), ("py/b", FILE, os.urandom(9000).hex()), form=form
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(Misconfigured, match="is no archive of a Python, or is cut off"):
        interpreter.read(path)


def test_a_host_with_a_python_gets_none(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    host = odd_host("equipped")
    done = lab.run(["deploy", "--python", archive(tmp_path, PROGRAM), "equipped"], check=True)
    assert done.stdout.startswith(b"equipped: deployed, ") and cache(host) == [build().sha256]


def test_a_python_that_is_of_no_use_there_is_not_kept(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    """One that does not start, one that the host cannot unpack, and one that would not fit into the cache."""
    host = odd_host("bare", python=False)
    lab.alias("shown", of="bare", cache="/proc/x")
    broken = ("py/bin/python3", FILE, "#!/bin/sh\necho not for this one >&2; exit 1\n")
    (host.base / "bin-without-python" / "xz").unlink()
    for name, form, why in (
        ("bare", "gz", "does not start there: not for this one"),
        ("bare", "xz", "xz"),
        ("shown", "gz", "its cache for quine cannot be written: /proc/x"),
    ):
        done = lab.run(["deploy", "--python", archive(tmp_path, broken, form=form), name])
        assert done.returncode == 69 and why in done.stderr.decode() and b": hint: " in done.stderr, why
        until(lambda: cache(host) == [], "nothing is left")


@pytest.mark.long
def test_a_full_disk_is_seen_before_it_is_sent(lab: Lab, odd_host: Callable[..., Host], packed: Path) -> None:
    host = odd_host("full", python=False, mount="size=2m")
    done = lab.run(["deploy", "--python", packed, "full"])
    assert done.returncode == 69 and "its disk is full: " in done.stderr.decode() and cache(host) == []


@pytest.mark.long
def test_a_python_of_the_inventory_comes_first(lab: Lab, odd_host: Callable[..., Host], packed: Path) -> None:
    host = odd_host("bare", python=False, inventory={"python": "python3.13"})
    done = lab.run(["deploy", "--python", packed, "bare"])
    assert done.returncode == 69 and 'in the inventory: python = "python3.13"' in done.stderr.decode()
    assert cache(host) == []
    assert sys.version_info[:2] != (3, 13)

"""The wipe of keys from memory: whole copies, ends of copies, the texts it is given; and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Copies that live, and freed ones whose blocks the wipe's own objects may take. 28 bytes: its pieces overlap.
PROGRAM = textwrap.dedent(
    """
    import os, sys
    from quine.broker import memory

    def key():
        return bytes([97 + i % 7 if i % 3 else 48 + i % 10 for i in range(size)])

    size = int(sys.argv[1])
    held = [key() for _ in range(200)]
    texts = [copy.decode() + "." for copy in held]
    for _ in range(50):
        freed = [key() + bytes(n % 40) for n in range(2000)]
        del freed[::2]
        wipe = memory.Wipe()
        wipe([key()])
        wipe.close()
        others = [(n, str(n)) for n in range(2000)]
        assert all(str(n) == text for n, text in others)
    assert not any(any(copy) for copy in held)
    assert all(set(text) == {chr(0), "."} for text in texts)
    print("whole")
    """
)


@pytest.mark.long
@pytest.mark.parametrize(
    "size", [16, 33, *(pytest.param(size, marks=pytest.mark.whole) for size in (18, 28, 108))]
)
def test_keys_go_and_the_process_goes_on(size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, str(size)], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, b"whole\n"), done.stderr


# Private memory that the kernel shows with an inode: of no file, and, as musl gives to malloc, of a file.
MAPPED = textwrap.dedent(
    """
    import mmap, os, sys
    from quine.broker import memory

    def key():
        return bytes([97 + i % 7 if i % 3 else 48 + i % 10 for i in range(40)])

    def mapped(fd):
        os.ftruncate(fd, 8192) if os.fstat(fd).st_size < 8192 and fd != zero else None
        made = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        made[100:140] = key()
        return made

    memory._is_glibc = lambda: sys.argv[1] == "glibc"
    zero = os.open("/dev/zero", os.O_RDWR)
    file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
    regions = [mapped(fd) for fd in (os.memfd_create("x"), zero, file)]
    wipe = memory.Wipe()
    wipe([key()])
    wipe.close()
    print(*(any(region[100:140]) for region in regions))
    """
)


@pytest.mark.parametrize(
    ("libc", "left"), [("glibc", b"False False True\n"), ("musl", b"False False False\n")]
)
def test_memory_that_has_an_inode(tmp_path: Path, libc: str, left: bytes) -> None:
    words = [sys.executable, "-c", MAPPED, libc, str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, left), done.stderr

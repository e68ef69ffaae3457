"""The wipe of keys from memory: whole copies, ends of copies, the texts it is given; and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap

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


@pytest.mark.parametrize("size", [16, 18, 28, 33, 108])
def test_keys_go_and_the_process_goes_on(size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, str(size)], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, b"whole\n"), done.stderr

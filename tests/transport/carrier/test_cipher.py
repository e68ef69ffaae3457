"""GCM of ssh packets: the same bytes as asyncssh's own, with one cipher object a key."""

from __future__ import annotations

import inspect
import os

import pytest
from asyncssh.crypto import cipher as library

from transport.carrier.ssh import cipher


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[type, type]:
    """asyncssh's class as it comes, and as we make it. Another test may have loaded the connection, which installs."""

    class Theirs(library.GCMCipher):
        encrypt_and_sign = cipher.THEIRS[0]
        verify_and_decrypt = cipher.THEIRS[1]

    class Ours(library.GCMCipher):
        pass

    monkeypatch.setattr(library, "GCMCipher", Ours)
    cipher.install()
    return Theirs, Ours


@pytest.mark.parametrize("name", ["aes128-gcm", "aes256-gcm"])
def test_each_opens_what_the_other_has_sealed(both: tuple[type, type], name: str) -> None:
    key = os.urandom(library.get_cipher_params(name)[0])
    iv = os.urandom(4) + b"\xff" * 7 + b"\xfe"  # its counter wraps after two packets
    for sealing, opening in (both, both[::-1]):
        one, other = sealing(name, key, iv), opening(name, key, iv)
        for size in (16, 32, 32768, 16):
            header, data = size.to_bytes(4, "big"), os.urandom(size)
            sealed = b"".join(one.encrypt_and_sign(header, data))
            assert sealed[:4] == header and len(sealed) == 4 + size + 16
            assert other.verify_and_decrypt(header, sealed[4:-16], sealed[-16:]) == data


def test_a_packet_that_was_changed_is_none(both: tuple[type, type]) -> None:
    _, ours = both
    for changed in (0, 4, -1):
        one, other = (ours("aes128-gcm", b"k" * 16, b"i" * 12) for _ in range(2))
        sealed = bytearray(b"".join(one.encrypt_and_sign(b"head", b"data" * 4)))
        sealed[changed] ^= 1
        assert other.verify_and_decrypt(bytes(sealed[:4]), bytes(sealed[4:-16]), bytes(sealed[-16:])) is None


def test_it_is_still_needed() -> None:
    """If this fails, asyncssh keeps its cipher object: remove transport/carrier/ssh/cipher.py."""
    assert all("AESGCM(self._key)" in inspect.getsource(method) for method in cipher.THEIRS)

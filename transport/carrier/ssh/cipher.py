"""GCM of asyncssh with one cipher object a key and fewer copies; to go once asyncssh has it.

asyncssh sets the key anew for each packet, and copies each packet three times to take its tag apart and put it back.
Measured: a tenth of its time in an upload, a twentieth in a download.
"""

from __future__ import annotations

from transport.carrier.ssh import asyncssh_imports
from transport.lean import Any

with asyncssh_imports.quickly():
    from asyncssh.crypto import cipher as library

THEIRS = (library.GCMCipher.encrypt_and_sign, library.GCMCipher.verify_and_decrypt)


INTO = hasattr(library.AESGCM, "decrypt_into")  # type: ignore[attr-defined]  # of cryptography 47 and later


def install() -> None:
    """Replace the methods, for all connections of this process."""
    library.GCMCipher.encrypt_and_sign = _encrypt_and_sign  # type: ignore[method-assign]
    library.GCMCipher.verify_and_decrypt = _verify_and_decrypt  # type: ignore[method-assign]


def of(encryption: Any) -> Any:
    """Return the GCM cipher of a connection's encryption; None if it is another one."""
    cipher = getattr(encryption, "_cipher", None)
    return cipher if isinstance(cipher, library.GCMCipher) else None


class Series:
    """Seals or opens packets that follow each other. The cipher stays as it is until `keep`."""

    __slots__ = ("_count", "_fixed", "_gcm", "_iv", "_key")

    def __init__(self, gcm: Any) -> None:
        self._gcm, self._key, self._iv = gcm, _key(gcm), gcm._iv
        self._fixed, self._count = gcm._iv[:4], int.from_bytes(gcm._iv[4:], "big")

    def seal(self, header: memoryview, data: memoryview, target: memoryview) -> None:
        """Write the packet's sealed data and tag, which is TAG bytes longer than `data`, into `target`."""
        if INTO:
            self._key.encrypt_into(self._iv, data, header, target)
        else:
            target[:] = self._key.encrypt(self._iv, data, header)

    def open(self, header: memoryview, data: memoryview, target: memoryview) -> bool:
        """Write the packet's content into `target`; False if it was changed.

        `data` ends with the tag, and `target` is TAG bytes shorter.
        """
        try:
            if INTO:
                self._key.decrypt_into(self._iv, data, header, target)
            else:
                target[:] = self._key.decrypt(self._iv, data, header)
        except library.InvalidTag:  # type: ignore[attr-defined]
            return False
        return True

    def next(self) -> None:
        """Go on with the next packet: this one was sealed, or it was taken."""
        self._count = (self._count + 1) & 0xFFFFFFFFFFFFFFFF
        self._iv = self._fixed + self._count.to_bytes(8, "big")

    def keep(self) -> None:
        """Have the cipher go on where these packets end."""
        self._gcm._iv = self._iv


def _key(cipher: Any) -> Any:
    try:
        return cipher.one
    except AttributeError:
        cipher.one = library.AESGCM(cipher._key)  # type: ignore[attr-defined]
        return cipher.one


def _encrypt_and_sign(self: Any, header: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the packet with its tag, and nothing to be put behind it."""
    sealed = _key(self).encrypt(self._iv, data, header)
    self._update_iv()
    return header + sealed, b""


def _verify_and_decrypt(self: Any, header: bytes, data: bytes, mac: bytes) -> bytes | None:
    try:
        opened: bytes | None = _key(self).decrypt(self._iv, data + mac, header)
    except library.InvalidTag:  # type: ignore[attr-defined]
        opened = None
    self._update_iv()
    return opened

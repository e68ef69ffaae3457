"""The private names of asyncssh that this room uses: any release of it may change them without a word.

Laws
1. All of them stand here. A test compares these tables with the room and with the installed library, and pyproject.toml
   excludes the versions that it has not seen.
2. With a library that lacks one of them, whatever only saves time (`quick.py`, `cipher.py`) is left out (`fit`).
"""

from __future__ import annotations

from functools import cache

CONNECTION = (
    *("_choose_alg", "_client_keys", "_channels", "_transport", "_compressor", "_kex_complete"),
    *("_inpbuf", "_recv_encryption", "_recv_handler", "_recv_pkthdr", "_recv_seq"),
    *("_rekey_bytes", "_rekey_bytes_sent", "_rekey_seconds", "_rekey_time"),
    *("_send", "_send_encryption", "_send_seq"),
)
CHANNEL = (
    *("_accept_data", "_deliver_data", "_recv_buf", "_recv_state", "_recv_window", "_session"),
    *(
        "_flush_send_buf",
        "_send_buf",
        "_send_buf_len",
        "_send_chan",
        "_send_pktsize",
        "_send_state",
        "_send_window",
    ),
)
ENCRYPTION = ("_cipher",)
GCM = ("_iv", "_key", "_update_iv")
PAIR = ("_cert",)


def missing() -> list[str]:
    """Return the names that the installed library lacks, each with its class."""
    from asyncssh.channel import SSHClientChannel
    from asyncssh.connection import SSHClientConnection
    from asyncssh.crypto.cipher import GCMCipher
    from asyncssh.encryption import GCMEncryption
    from asyncssh.public_key import SSHLocalKeyPair

    tables = {
        SSHClientConnection: CONNECTION,
        SSHClientChannel: CHANNEL,
        GCMEncryption: ENCRYPTION,
        GCMCipher: GCM,
        SSHLocalKeyPair: PAIR,
    }
    return [
        f"{kind.__name__}.{name}"
        for kind, names in tables.items()
        for name in sorted(set(names) - _names_of(kind))
    ]


@cache
def fit() -> bool:
    return not missing()


def _names_of(kind: type) -> set[str]:
    """Return the names of a class, and those that its methods use: attributes of an instance are set by one of them."""
    found = set()
    for each in kind.__mro__:
        for name, value in vars(each).items():
            found |= {name, *getattr(getattr(value, "__code__", None), "co_names", ())}
    return found

"""Requirements on a host, and the cause and cure of each failure to install the binary there.

Law: everything that can be known is checked before the binary is sent: system, machine, Python, room.
"""

from __future__ import annotations

from deploy import installer
from deploy.build import ROOM, Binary
from deploy.probe import Facts
from transport.errors import Unreachable

_AGAIN = "run it again; if it stays, look at the network and at the memory of both machines"
FAILURES = {  # word of the installer -> (cause, cure)
    "full": ("its disk is full: {text}", ROOM),
    "readonly": (
        "its ~/.cache/quine cannot be written: {text}",
        "its home must be there, and ~/.cache in it be writable for that user: look at their owners and modes",
    ),
    "write": ("the binary cannot be written there: {text}", "look at the disk there"),
    "cut": ("the upload was cut off: {text}", _AGAIN),
    "corrupt": ("the binary was damaged on the way and was not installed: {text}", _AGAIN),
    "noexec": ("{text}", "let ~/.cache/quine there be a link to a directory that allows programs"),
    "unpack": (
        "its Python cannot unpack the binary: {text}",
        "see that its Python is complete (venv, zlib, ssl)",
    ),
    "start": (
        "the binary does not start there: {text}",
        "is its libc as new as here? build on the oldest machine",
    ),
}


def check(host: str, binary: Binary, facts: Facts) -> None:
    """Raise Unreachable if this binary cannot run on the host."""
    version = ".".join(map(str, binary.python))
    if (facts.system, facts.machine) != (binary.system, binary.machine):
        detail = f"it is {facts.system} {facts.machine}, this binary is for {binary.system} {binary.machine}"
        raise Unreachable(host, detail, f"start quine on a machine that is {facts.system} {facts.machine}")
    if facts.version != version:
        cure = f"install python{version} there so that it is on the PATH of ssh {host} true"
        if facts.version == "none":
            raise Unreachable(host, "it has no python3", cure)
        raise Unreachable(host, f"its python3 is {facts.version}, this binary is for {version}", cure)
    if facts.shut:
        raise failed(host, "readonly", "no permission")
    needed = binary.size * (1 + installer.UNPACKED)
    if facts.free < needed:
        raise failed(host, "full", f"{facts.free >> 20} MB free for ~/.cache/quine, {needed >> 20} MB needed")


def failed(host: str, word: str, text: str) -> Unreachable:
    detail, hint = FAILURES.get(word, ("the installation failed: {text}", _AGAIN))
    return Unreachable(host, detail.format(text=text or word), hint)

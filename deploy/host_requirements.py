"""Requirements on a host, and the cause and cure of each failure to install the binary there.

Law: everything that can be known is checked before the binary is sent: system, machine, Python, room.
"""

from __future__ import annotations

from deploy.build import OLDEST_PYTHON, Binary
from deploy.probe import BUILD_SHOWN, CACHE, Facts
from deploy.there import installer
from transport import address
from transport.errors import Unreachable

_AGAIN = "run it again; if it stays, look at the network and at the memory of both machines"
_ELSEWHERE = 'or name a directory of yours in the inventory: cache = "/scratch/me/quine"'
FAILURES = {  # word of the installer -> (cause, cure)
    "full": ("its disk is full: {text}", f"make room there, {_ELSEWHERE}"),
    "readonly": (
        "its cache for quine cannot be written: {text}",
        f"~/.cache there must be writable for that user: look at owners and modes; {_ELSEWHERE}",
    ),
    "write": ("the binary cannot be written there: {text}", f"look at the disk there, {_ELSEWHERE}"),
    "cut": ("the upload was cut off: {text}", _AGAIN),
    "moved": ("two connections install at the same time: {text}", "run it again"),
    "corrupt": ("the binary was damaged on the way and was not installed: {text}", _AGAIN),
    "noexec": (
        "{text}",
        'name a directory that allows programs in the inventory: cache = "/scratch/me/quine"',
    ),
    "lacks": ("it has no program {text}, which unpacks a Python there", "install it there"),
    "unpack": ("its Python cannot unpack the binary: {text}", "see that its Python is complete (zlib)"),
    "start": (
        "the binary does not start there: {text}",
        'name another Python in the inventory: python = "…"',
    ),
}


class NeedsPython(Unreachable):
    """The host has no Python that is new enough."""


def check(host: str, binary: Binary, facts: Facts) -> None:
    """Raise Unreachable if this binary cannot run on the host."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if facts.system != "Linux":
        raise Unreachable(
            host, f"it is {facts.system}, and quine runs on Linux (and WSL2)", "choose another host"
        )
    if facts.version < OLDEST_PYTHON:
        cure = (
            f'install python{oldest} or newer there, name one in the inventory: python = "/path/to/python3", '
            f"or bring one for {facts.machine}: quine deploy --python FILE.tar.gz {host}"
        )
        if not facts.python:
            raise NeedsPython(host, "it has no python3", cure)
        version = ".".join(map(str, facts.version))
        raise NeedsPython(host, f"its newest Python is {version}, and quine needs {oldest} or newer", cure)
    if facts.shut:
        raise failed(host, "readonly", "its home is missing, or permission is denied")
    needed = binary.size * (1 + installer.UNPACKED)
    if facts.free < needed:
        raise failed(host, "full", f"{facts.free >> 20} MB free, {needed >> 20} MB needed")


def check_build(host: str, path: str, answer: str) -> None:
    """Raise Unreachable if the answer is that the binary of an admin at `path` is not of this build."""
    if not answer.startswith("other "):
        return
    version = answer[len("other ") :][:300]
    cure = f"have the file of `quine deploy build` put there, or take `binary` from its table, so that {CACHE} is used"
    if "(build " not in version:
        raise Unreachable(host, f"its binary {path} does not start: {version or 'it says nothing'}", cure)
    ours = address.build_hash()[:BUILD_SHOWN]
    raise Unreachable(host, f"its binary {path} is {version}, and this is build {ours}", cure)


def failed(host: str, word: str, text: str) -> Unreachable:
    detail, hint = FAILURES.get(word, ("the installation failed: {text}", _AGAIN))
    return Unreachable(host, detail.format(text=text or word), hint)

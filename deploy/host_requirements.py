"""Requirements on a host, and the cause and cure of each failure to install the binary there.

Law: everything that can be known is checked before the binary is sent: system, machine, Python, room.
"""

from __future__ import annotations

from deploy import probe
from deploy.build import OLDEST_PYTHON, Binary
from deploy.probe import BUILD_SHOWN, CACHE, Facts
from deploy.there import installer
from transport import this_build
from transport.errors import Unreachable

_AGAIN = "run it again; if it stays, look at the network and at the memory of both machines"
_ELSEWHERE = 'or name a directory of yours in the inventory: cache = "/scratch/me/quine"'
FAILURES = {  # word of the installer -> (cause, cure)
    "full": ("its disk is full: {text}", f"make room there, {_ELSEWHERE}"),
    "readonly": (
        "its cache for quine cannot be written: {text}",
        f"~/.cache there must be writable for that user: look at owners and modes; {_ELSEWHERE}",
    ),
    "owner": (
        "its cache for quine is not yours alone: {text}",
        f"see what is in it, and make it yours with mode 0700; {_ELSEWHERE}",
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


class Unfit(Unreachable):
    """The host answers, and this build cannot run there. `facts`: those that it reports, None where it reports none."""

    def __init__(self, host: str, detail: str, hint: str, facts: Facts | None = None) -> None:
        super().__init__(host, detail, hint)
        self.facts = facts


class NeedsPython(Unfit):
    """The host has no Python that is new enough."""


def not_there(python: str) -> str:
    """Return the cause where the Python that the inventory names does not start."""
    return f'no Python starts there by the name in its table in the inventory: python = "{python}"'


def hangs(path: str) -> str:
    """Return the cause where a Python was started and did not answer."""
    return f"its {path} does not start within {probe.PYTHON_SECONDS} s"


def check(host: str, binary: Binary, facts: Facts, named: str = "") -> None:
    """Raise Unfit if this binary cannot run on the host. `named`: the Python of its table in the inventory."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if facts.system != "Linux":
        detail = f"it is {facts.system}, and quine runs on Linux (and WSL2)"
        raise Unfit(host, detail, "choose another host", facts)
    if facts.version < OLDEST_PYTHON:
        cure = (
            f'install python{oldest} or newer there, name one in the inventory: python = "/path/to/python3", '
            f"or bring one for {facts.machine}: quine deploy --python FILE.tar.gz {host}"
        )
        missing, subject = "it has no python3", "its newest Python"
        if named:
            cure = "correct `python` in its table, or take it out, and the newest Python there is used"
            missing, subject = not_there(named), f'in the inventory python = "{named}"'
        if facts.hung:
            missing, cure = hangs(facts.hung), f"see why that hangs there, or {cure}"
        version = ".".join(map(str, facts.version))
        old = f"{subject} is {version}, and quine needs {oldest} or newer"
        raise NeedsPython(host, old if facts.python else missing, cure, facts)
    needed = binary.size * (1 + installer.UNPACKED)
    word = text = ""
    if facts.shut:
        word = "readonly"
        text = "its home is missing, permission is denied, or its file system keeps no files"
    elif facts.noexec:
        word, text = "noexec", "its cache for quine is on a file system mounted noexec"
    elif facts.free < needed:
        word, text = "full", f"{facts.free >> 20} MB free, {needed >> 20} MB needed"
    if word:
        failure = failed(host, word, text)
        raise Unfit(host, failure.detail, failure.hint, facts)


def check_build(host: str, path: str, answer: str) -> None:
    """Raise Unfit if the answer is that the binary of an admin at `path` is not of this build."""
    if not answer.startswith("other "):
        return
    version = answer[len("other ") :][:300]
    cure = f"have the file of `quine deploy build` put there, or take `binary` from its table, so that {CACHE} is used"
    if "(build " in version:
        ours = this_build.build_hash()[:BUILD_SHOWN]
        raise Unfit(host, f"its binary {path} is {version}, and this is build {ours}", cure)
    if version == probe.PLAIN:
        cure = f"chmod +x {path} there, on a file system that is not mounted noexec; if it is another file, {cure}"
    if version == probe.SILENT:
        version = f"no answer to --version within {probe.ADMIN_SECONDS} s"
    raise Unfit(host, f"its binary {path} does not start: {version or 'it says nothing'}", cure)


def failed(host: str, word: str, text: str) -> Unreachable:
    detail, hint = FAILURES.get(word, ("the installation failed: {text}", _AGAIN))
    return Unreachable(host, detail.format(text=text or word), hint)

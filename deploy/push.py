"""Sends the binary to a host that lacks it, and turns every failure into a cause and a cure.

Laws
1. Everything that can be known is checked before sending: system, machine, Python, room.
2. The host says `have` only after it has verified, unpacked and tried the binary.
3. The deadline moves with the phase: so many seconds for a megabyte, so many to unpack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deploy import installer, probe
from deploy.build import ROOM, Binary
from deploy.probe import Answers, Facts
from transport import address
from transport.errors import Interrupted, Unreachable

CHUNK = 256 << 10
SLOWEST = 64 << 10  # bytes per second that an upload must at least make
UPLOAD_SECONDS = 30  # on top of that
UNPACK_SECONDS = 2 * installer.UNPACK_SECONDS

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


class Stream(Protocol):
    """The part of a duplex that is needed here."""

    @property
    def broken(self) -> str: ...

    async def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


async def push(
    host: str,
    binary: Binary,
    facts: Facts,
    mode: str,
    duplex: Stream,
    answers: Answers,
    allow: Callable[[float, str], None],
) -> None:
    """Send the binary; return when the host says `have`. `allow(seconds, phase)` moves the deadline."""
    check(host, binary, facts)
    allow(UPLOAD_SECONDS + binary.size / SLOWEST, f"send {binary.size >> 20} MB")
    with contextlib.suppress(ConnectionError):  # the host gave up early: its last words say why
        await _send(binary, mode, duplex, answers)
    while True:
        answer = await next_answer(host, duplex, answers)
        if answer == "have":
            return
        if answer == "unpack":
            allow(UNPACK_SECONDS, "unpack")
            continue
        word, _, text = answer.removeprefix("fail ").partition(" ")
        raise _refused(host, word, text)


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
        raise _refused(host, "readonly", "no permission")
    needed = binary.size * (1 + installer.UNPACKED)
    if facts.free < needed:
        raise _refused(
            host, "full", f"{facts.free >> 20} MB free for ~/.cache/quine, {needed >> 20} MB needed"
        )


def _refused(host: str, word: str, text: str) -> Unreachable:
    detail, hint = FAILURES.get(word, ("the installation failed: {text}", _AGAIN))
    return Unreachable(host, detail.format(text=text or word), hint)


async def _send(binary: Binary, mode: str, duplex: Stream, answers: Answers) -> None:
    """Send the installer as text, with its call at the end; then the file."""
    build = address.build_hash()
    call = (
        f"main({answers.marker!r}, {binary.sha256!r}, {binary.size}, {build!r}, {mode!r}, sys.stdin.buffer)\n"
    )
    program = Path(installer.__file__).read_bytes() + b"\n" + call.encode()
    duplex.write(f"{len(program)}\n".encode() + program)
    with open(binary.path, "rb") as file:
        while data := file.read(CHUNK):
            duplex.write(data)
            await duplex.drain()


async def next_answer(host: str, duplex: Stream, answers: Answers) -> str:
    """Return the next marked line. Raises Unreachable if the other side ends, or says other things."""
    while True:
        try:
            answer = answers.next()
        except ValueError as error:
            raise Unreachable(
                host, f"its login shell speaks out of turn: {error}", _shell_hint(host)
            ) from None
        if answer is not None:
            return answer
        data = await duplex.read()
        if not data:
            if duplex.broken:
                raise Interrupted(
                    host, f"the connection was lost before its shell had answered: {duplex.broken}"
                )
            said = probe.plain(answers.banner + answers.rest() + getattr(duplex, "stderr", b""))
            last = (said.strip().splitlines() or ["nothing"])[-1][:300].rstrip(".")
            detail = f"its login shell did not run the command; its last words: {last}"
            raise Unreachable(host, detail, _shell_hint(host))
        answers.feed(data)


def _shell_hint(host: str) -> str:
    return (
        f"ssh {host} true must work: look at the login shell, ForceCommand and the shell's start files there"
    )

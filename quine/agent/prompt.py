"""Texts for the guest: the system prompt, the first message with its material, and the notes of the host loop.

Laws
1. The system prompt holds the mission, the persona and the name of the shell. Nothing else in it varies: no turn,
   depth, session or time.
2. Input, output and wisdom are data. Wisdom is in the first user message as one JSON object. So is the list of hosts,
   as a JSON array, because their descriptions come from a file.
3. Placeholders are filled in one pass: a `{SHELL}` in a mission stays what it is.
"""

from __future__ import annotations

import os
import stat

from quine.agent.session import SessionSpec
from quine.agent.signals import Signals, Terminated
from quine.base.errors import NOT_STARTED, Failure, Misconfigured
from quine.base.messages import Message
from transport import quickjson
from transport.lean import Sequence, contextlib
from transport.writes import read_some

REMINDER = (
    "[REMINDER] A reply without a tool call does nothing: go on with sh, fork or exec, or end with exit."
)
TIME_LIMIT = "[TIME LIMIT] The time of this process is over. Call exit now with your verdict; anything else is refused."
TIME_REFUSAL = "Refused: the time limit is reached, only exit is accepted now."
CUT = "[CUT] Your reply was too long and was cut before any tool call. Say less, and call a tool."
CUT_CALL = "[CUT] Your call is longer than one reply may be, and was cut. It was not run: write it in parts."
LOST = (
    "[LOST] Your last call did not arrive: the server of your model could not read it. Send it again, shorter or in "
    "another form."
)
SERVED = "[CONTEXT] The server gives you {} tokens of memory, less than the {} that were meant for you."
FORGOTTEN = (
    "[CONTEXT] The server of your model has read only {} tokens of this conversation, which has {} or more: its "
    "beginning was left out."
)
FULL = "[CONTEXT] {} % of your memory is used. Before it is full, exec with wisdom begins a new life."
LATE = ", and then only exit is accepted: come to an end"
DROPPED = "[DROPPED] This result did not fit into the context any more, and you cannot see it again."
WAYS = (
    '[HOSTS] Use one in two ways: the argument "host" of fork and exec, which is a name, "@TAG" or "any"; and in sh '
    "`quine run --on NAME -- COMMAND` for a command there, `quine --on NAME MISSION` for an agent. "
    "`quine hosts` shows the list again."
)
MOST_HOSTS = 50  # hosts listed in the first message
MOST_NAMES = 50  # of variables
_LAST = {
    "turn_exhaustion": "no turns are left",
    "context_exhaustion": "the context is full",
    "budget": "the budget of the tree is used up",
}

_MATERIAL = {
    "none": "There is no material: descriptor 3 is empty.",
    "terminal": "There is no material: descriptor 3 is a terminal.",
    "pipe": "Material is waiting on descriptor 3, a pipe; read it with <&3.",
    "socket": "Material is waiting on descriptor 3, a socket; read it with <&3.",
    "file": "Material is waiting on descriptor 3, a file; read it with <&3.",
}


def material(fd: int = 0) -> str:
    """Return the kind of descriptor `fd`, one of `_MATERIAL`, without reading from it."""
    try:
        mode = os.fstat(fd)
    except OSError:
        return "none"
    if stat.S_ISCHR(mode.st_mode):
        return "terminal" if os.isatty(fd) else "none" if mode.st_rdev == os.makedev(1, 3) else "file"
    if stat.S_ISFIFO(mode.st_mode):
        return "pipe"
    return "socket" if stat.S_ISSOCK(mode.st_mode) else "file"


def save_material(spec: SessionSpec, data_dir: str, signals: Signals) -> SessionSpec:
    """Implement -b: write all of stdin to a file before the session begins. Raises Failure."""
    if os.isatty(0):
        return spec
    path = os.path.join(data_dir, f"stdin-{spec.session}.bin")
    size = 0
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file, signals.wake_if_stuck():
            while data := _material():
                size += file.write(data)
    except (OSError, Failure, Terminated) as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            why = (error.strerror or str(error)).lower()
            raise Failure(NOT_STARTED, f"stdin cannot be saved in {path}: {why}") from None
        raise
    if not size:
        os.unlink(path)
        return spec._replace(material="none", binary=False)
    return spec._replace(material_file=path, material="none", binary=False)


def _material() -> bytes:
    """Return the next bytes of stdin. Raises Misconfigured."""
    try:
        return read_some(0, 1 << 16)
    except OSError as error:
        raise Misconfigured(f"stdin cannot be read: {(error.strerror or str(error)).lower()}") from None


def system(spec: SessionSpec) -> Message:
    with open(os.path.join(os.path.dirname(__file__), "prompt.md"), encoding="utf-8") as file:
        rest = file.read().rstrip("\n")
    persona = f"# Your persona\n\n{spec.persona.strip()}\n\n" if spec.persona else ""
    text = ""
    for name, value in (("{SHELL}", spec.shell), ("{PERSONA}", persona), ("{MISSION}", spec.mission)):
        before, _, rest = rest.partition(name)
        text += before + value
    return Message("system", text + rest)


def first(spec: SessionSpec, withheld: Sequence[str] = ()) -> Message:
    """Return the first user message of a session without a cloned context. `withheld` are names of variables."""
    if spec.material_file:
        parts = [f"Material was saved to the file {spec.material_file}."]
    else:
        parts = [_MATERIAL[spec.material or "none"]]
    if os.environ.get("QUINE_MOUNT"):
        parts.append("The files that all agents of the tree share are in the directory $QUINE_MOUNT.")
    parts.append(limits(spec))
    if others := hosts(spec.hosts):
        parts.append(others)
    if withheld:
        names = quickjson.readable(list(withheld[:MOST_NAMES]))
        parts.append(f"Variables that commands do not get, because they hold secrets: {names}")
    if spec.wisdom:
        wisdom = quickjson.readable(dict(sorted(spec.wisdom.items())))
        parts.append(f"Wisdom of your former life, as data, one JSON object:\n{wisdom}")
    parts.append("Begin.")
    return Message("user", "\n".join(parts))


def hosts(listed: str) -> str:
    """Return the list of machines a process may use, as data, and how to use one; "" if only its own."""
    entries = quickjson.loads(listed) if listed else []
    if all(entry.get("here") for entry in entries):
        return ""
    shown = quickjson.readable(entries[:MOST_HOSTS])
    more = f"[HOSTS] {len(entries) - MOST_HOSTS} more are not shown.\n" if len(entries) > MOST_HOSTS else ""
    return f"[HOSTS] Machines that you may use, as data, one JSON array: {shown}\n{more}{WAYS}"


def moved(listed: str) -> str:
    """Return the list for a clone on another machine: the list in its context is valid for the parent only."""
    return hosts(listed) or "[HOSTS] On this machine you may use no other machine."


def last_note(mode: str) -> str:
    """Return the note that asks for the last reply; `mode` is how the session ends if the guest does nothing."""
    return (
        f"[LAST REPLY] {_LAST[mode].capitalize()}. One more reply is possible, and only exec (a new life with the "
        "wisdom that you give it) and exit are accepted in it."
    )


def last_refusal(mode: str) -> str:
    return f"Refused: {_LAST[mode]}, only exec and exit are accepted now."


def limits(spec: SessionSpec) -> str:
    turns = str(spec.limits.turns) if spec.limits.turns else "unlimited"
    below = max(0, spec.limits.depth - spec.depth - 1)
    return f"Turns: {turns}. Levels of children below you: {below}."


def child(spec: SessionSpec) -> str:
    """Return the result of fork in a child with a cloned context: its identity and its mission."""
    return (
        "[FORK] You are the child now, a process of your own with a shell of your own. The mission above is your "
        "parent's; yours is this, and when it is done you exit:\n\n"
        f"{spec.mission}\n\n{_MATERIAL[spec.material or 'none']} {limits(spec)}"
    )


NOT_YOURS = "[FORK] This call was your parent's; it is not run in this process."

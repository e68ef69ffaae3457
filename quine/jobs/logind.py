"""Does a process that is left behind outlive the login here? Where logind ends it, that is said at once.

Laws
1. Detected, not guessed: the kernel says in whose scope we are, logind what it does to it. Where neither tells, nothing
   is said.
2. What can be cured is cured: with lingering on, the job is started in a scope of the user's own manager.
"""

from __future__ import annotations

import os

from quine.base.errors import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MOVED = "QUINE_MOVED"  # set for our own second start, in a scope of its own
ASK = 5.0  # seconds for loginctl


def secure(argv: list[str]) -> None:
    """Say what there is to say; or start `argv`, this very command, again where it is durable, and do not return."""
    if os.environ.pop(MOVED, "") == "1":
        return
    place = scope(_cgroup(), os.environ, os.getuid())
    if not place:
        return
    told = ends(place)
    if not told:
        return
    movable = argv and place == "session" and _lingers()
    if movable and _run("systemd-run", "--user", "--scope", "-q", "true")[0]:
        os.environ[MOVED] = "1"
        os.execvp("systemd-run", ["systemd-run", "--user", "--scope", "-q", "--", *argv])
    say(
        f"quine: warning: not durable here: {told}\nquine: hint: loginctl enable-linger, then start it again\n"
    )


def scope(cgroup: str, environ: Mapping[str, str], uid: int) -> str:
    """ "session": of one login; "manager": of the user's service manager; "": of neither."""
    if f"user@{uid}.service" in cgroup:
        return "manager"
    if "/session-" in cgroup and ".scope" in cgroup:
        return "session"
    # A namespace shows its own cgroup as the root of all; then the login's word is all there is.
    hidden = "user.slice" not in cgroup and "system.slice" not in cgroup
    return "session" if hidden and environ.get("XDG_SESSION_ID") else ""


def ends(place: str) -> str:
    """What ends it there; "" where nothing does, or nobody tells."""
    if place == "manager":
        asked, linger = _run("loginctl", "show-user", str(os.getuid()), "-p", "Linger")
        return (
            "the system ends it some seconds after your last logout"
            if asked and linger == "Linger=no"
            else ""
        )
    facts = dict(
        line.partition("=")[::2]
        for line in _run(
            *("loginctl", "show-session", "-p", "KillUserProcesses"),
            *("-p", "KillExcludeUsers", "-p", "KillOnlyUsers"),
        )[1].splitlines()
    )
    if facts.get("KillUserProcesses") != "yes":
        return ""
    name = _name()
    only = facts.get("KillOnlyUsers", "").split()
    if name in facts.get("KillExcludeUsers", "").split() or (only and name not in only):
        return ""
    return "the system ends it when you log out (KillUserProcesses=yes)"


def _lingers() -> bool:
    return _run("loginctl", "show-user", str(os.getuid()), "-p", "Linger")[1] == "Linger=yes"


def _name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _cgroup() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            return file.read()
    except OSError:
        return ""


def _run(*argv: str) -> tuple[bool, str]:
    """Did it succeed, and what did it say."""
    import subprocess

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK, errors="replace", check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout.strip()

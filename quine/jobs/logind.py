"""Detached jobs and logind: a warning, or a durable scope, where logind would end a job at logout.

Laws
1. Detected, not guessed: the kernel tells the scope of this process, logind what it does to that scope. If neither
   tells, there is no warning.
2. With lingering on, the job is started in a scope of the user's own manager.
"""

from __future__ import annotations

import os

from quine.base.errors import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MOVED = "QUINE_MOVED"  # set for the second start of this command, in a scope of its own
ASK = 5.0  # seconds for loginctl


def secure(argv: list[str]) -> None:
    """Warn of an end at logout; or start `argv`, this very command, again in a durable scope, and do not return."""
    if os.environ.pop(MOVED, "") == "1":
        return
    place = scope(_cgroup(), os.environ, os.getuid())
    if not place:
        return
    message = ends(place)
    if not message:
        return
    movable = argv and place == "session" and _lingers()
    if movable and _run("systemd-run", "--user", "--scope", "-q", "true")[0]:
        os.environ[MOVED] = "1"
        os.execvp("systemd-run", ["systemd-run", "--user", "--scope", "-q", "--", *argv])
    say(
        f"quine: warning: not durable here: {message}\nquine: hint: loginctl enable-linger, then start it again\n"
    )


def scope(cgroup: str, environ: Mapping[str, str], uid: int) -> str:
    """Return the scope: "session" of one login, "manager" of the user's service manager, or "" for neither."""
    if f"user@{uid}.service" in cgroup:
        return "manager"
    if "/session-" in cgroup and ".scope" in cgroup:
        return "session"
    # Inside a namespace its own cgroup looks like the root; then only the login's variable tells.
    hidden = "user.slice" not in cgroup and "system.slice" not in cgroup
    return "session" if hidden and environ.get("XDG_SESSION_ID") else ""


def ends(place: str) -> str:
    """Return a message on how the system ends a process there; "" if it does not, or nothing tells."""
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
    """Run a command. Return whether it succeeded, and its stdout."""
    import subprocess

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK, errors="replace", check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout.strip()

"""The `ssh` program as a carrier, for everything that only it can do: FIDO keys, GSSAPI, PKCS#11, a vendor's ssh.

Laws
1. ssh reads its own configuration and known_hosts; options here only keep it to one channel that nobody shares.
2. It asks nothing: it has no terminal.
3. An end with status 255 before the first byte is one `Unreachable`, told apart by the last lines of its stderr.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Callable

from transport.carrier.child import ChildDuplex, environment, start
from transport.carrier.dialer import TRIES, Note, SshTarget, handshakes, of_sshd, pause
from transport.errors import Unreachable
from transport.text import harmless

FAILED = 255
OPTIONS = (
    *("-T", "-a", "-x", "-S", "none", "-oControlMaster=no", "-oBatchMode=yes", "-oClearAllForwardings=yes"),
    *(
        "-oServerAliveInterval=15",
        "-oServerAliveCountMax=3",
        "-oRemoteCommand=none",
        "-oPermitLocalCommand=no",
    ),
    "-oLogLevel=INFO",
)
BAD_LINE = "banner line contains invalid characters"
# Words of ssh -> what happened, and the cure. The first that matches counts.
FAILURES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "if the host was reinstalled (check with its admin), run: {forget}",
    ),
    (
        "Host key verification failed",
        "its host key is not known",
        "accept it on a terminal: {ssh}",
    ),
    ("Permission denied", "permission denied: {last}", "is that the user and the key? try: {ssh}"),
    (
        "Too many authentication failures",
        "permission denied: {last}",
        "set identity in its table of the inventory, or IdentitiesOnly in ~/.ssh/config",
    ),
    (
        "Could not resolve hostname",
        "unknown host name: {address}",
        "set address in its table of the inventory, or Host {address} in ~/.ssh/config",
    ),
    (
        "Connection refused",
        "connection refused: {last}",
        "start an sshd there, or correct address and port; try: {ssh}",
    ),
    *(
        (words, "no ssh server answers: {last}", "correct its address, port or ProxyCommand; try: {ssh}")
        for words in ("No SSH version received", "Protocol major versions differ", BAD_LINE)
    ),
    ("timed out", "cannot connect: {last}", "is it up, and is there a route to it?"),
    ("No route to host", "cannot connect: {last}", "is it up, and is there a route to it?"),
    ("Network is unreachable", "cannot connect: {last}", "is it up, and is there a route to it?"),
)
# The server hung up: before the login it may be full, or the line broke. Worth another try.
DROPPED = (
    *("Connection closed", "Connection reset", "closed by remote host", "Broken pipe", "Connection to "),
    *("not responding", "client_loop: "),
)
BEHIND = "UNKNOWN port"  # the place of a server that is reached through a ProxyCommand
NO_VERSION = ("kex_exchange_identification: ", "banner exchange: ")  # begin the words for its absence
# Its words for a key that has changed: the name is the one in known_hosts, after all of the configuration.
CHANGED = re.compile(r"^Host key for ([^\s']+) has changed and ", re.MULTILINE)
OFFENDING = re.compile(r"^Offending .*key in (\S.*):\d+\r?$", re.MULTILINE)
BANNER = re.compile(r"banner line \d+: (.+?)\r?$", re.MULTILINE)  # of ssh -v


def argv(target: SshTarget, *more: str) -> list[str]:
    """Return the command line for a session with `target`, or for `more` options, through its jump hosts."""
    words = ["ssh", *OPTIONS, *more]
    if target.port is not None:
        words += ["-p", str(target.port)]
    if target.user is not None:
        words += ["-l", target.user]
    if target.identity is not None:
        words += ["-i", os.path.expanduser(target.identity), "-oIdentitiesOnly=yes"]
    if target.jump is not None:
        # -J would take no identity and no port of the inventory. Whatever is not ours to expand has its % doubled.
        through = [word.replace("%", "%%") for word in argv(target.jump)]
        place = through.pop()
        words.append(f"-oProxyCommand={shlex.join(through)} -W '[%h]:%p' {shlex.quote(place)}")
    return [*words, target.address]


def _way(target: SshTarget) -> list[str]:
    """Return the hosts on the way, the nearest first, the target last."""
    before = _way(target.jump) if target.jump else []
    return [*before, f"{target.address}:{target.port or 22}"]


async def connect(target: SshTarget, command: str, note: Note, news: Callable[[str], None]) -> ChildDuplex:
    """Log in and start `command`; return when its first bytes are there. Raises Unreachable.

    `note` is called with each phase as it begins, `news` with messages for the user.
    """
    async with handshakes(_way(target)):
        for tried in range(TRIES):
            note(step := f"connect to {target.name}")
            duplex = await _start(target, command)
            try:
                first = await duplex.read()
                if first or duplex.exit != FAILED:
                    duplex.unread(first)
                    return duplex
            except BaseException:
                duplex.close()
                raise
            duplex.close()
            said = duplex.stderr.decode(errors="replace")
            failure, again = refusal(target, said)
            if not tried and any(words in said for words in NO_VERSION):
                await _check_banner(target)
            if not again:
                break
            if tried < TRIES - 1:
                note(step, f"{failure.detail}; tried again", False)
                await asyncio.sleep(pause(tried))
    raise failure


async def _check_banner(target: SshTarget) -> None:
    """Raise Unreachable if the server sends a line in place of its version that is no sshd's.

    ssh tells such a line with -v only, among others that would hide those of the host: hence another connection.
    """
    duplex = await _start(target, "exit", "-oLogLevel=DEBUG1")
    try:
        await duplex.read()
    finally:
        duplex.close()
    found = BANNER.findall(duplex.stderr.decode(errors="replace"))
    if found and not of_sshd(found[-1]):
        detail = f"no ssh server answers, but one that says: {harmless(found[-1], instead='?')[:100]}"
        hint = f"correct its address, port or ProxyCommand; try: {_by_hand(target)}"
        raise target.unreachable(detail, hint)


async def _start(target: SshTarget, command: str, *first: str) -> ChildDuplex:
    """Start ssh; of an option the first value counts."""
    env = environment(os.environ, target.agent)
    words = argv(target)
    words[1:1] = first
    try:
        return await start([*words[:-1], "--", words[-1], command], env, lambda status, _: status == FAILED)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = 'install OpenSSH here, or leave transport = "openssh" out of its table in the inventory'
        raise target.unreachable(f"cannot start ssh: {why}", hint) from None


def hung_up(status: int, said: str) -> bool:
    """Say whether the end of a program, an ssh perhaps, is by its status and stderr that of a broken connection."""
    return status == FAILED and any(words in said for words in DROPPED)


def refusal(target: SshTarget, said: str) -> tuple[Unreachable, bool]:
    """Return the error for ssh's words on stderr, and whether another try may help."""
    lines = [line.strip().rstrip(".") for line in said.splitlines() if line.strip()]
    for words, detail, hint in FAILURES:
        found = next((line for line in reversed(lines) if words in line), None)
        if found is not None:
            values = {
                "last": found[:300],
                "address": target.address,
                "forget": _forget(target, said),
                "ssh": _by_hand(target),
            }
            return target.unreachable(detail.format(**values), hint.format(**values)), False
    last = lines[-1][:300] if lines else "no word of it"
    if hung_up(FAILED, said):
        hint = (
            "if it is an sshd, it may be full (MaxStartups) or penalise this address (PerSourcePenalties): "
            "wait a minute"
        )
        if BEHIND in said:
            hint = f"does its ProxyCommand, or its jump, lead to an sshd? try: {_by_hand(target)}"
        return target.interrupted(f"the connection was lost in the handshake: {last}", hint), True
    return target.unreachable(f"ssh failed: {last}", f"try: {_by_hand(target)}"), False


def _forget(target: SshTarget, said: str) -> str:
    """Return the command that removes the host key which ssh complains of, of a host on the way perhaps."""
    changed, offending = CHANGED.search(said), OFFENDING.search(said)
    name = changed[1] if changed else target.address
    if not changed and target.port not in (None, 22):
        name = f"[{target.address}]:{target.port}"
    file = f" -f {shlex.quote(offending[1])}" if offending else ""
    return f"ssh-keygen -R '{name}'{file}"


def _by_hand(target: SshTarget) -> str:
    port = f"-p {target.port} " if target.port else ""
    user = f"{target.user}@" if target.user else ""
    return f"ssh {port}{user}{target.address} true"

"""The checks of `quine doctor` on this machine: each thing that quine needs, whether it is there, and the cure.

Laws
1. A check changes nothing and asks no other machine; `quine hosts check` does that, and `--guest` (guest.py).
2. "fail" is a need of every command, "warn" a need of some; each of them comes with a cure.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quine.cli.doctor.findings import Finding

if TYPE_CHECKING:
    from quine.providers.vendors import Config

IGNORED = (
    "controlmaster",
    "controlpath",
    "localforward",
    "remoteforward",
    "updatehostkeys",
)
AGENT_SECONDS = 3.0


def examine(inventory: str | None = None, ask: bool = False) -> list[Finding]:
    """Return all findings, each after those that it depends on. With `ask`, the guest is examined: it is asked."""
    looks: dict[str, Callable[[], Finding | list[Finding]]] = {
        "python": _python,
        "kernel": _kernel,
        "runtime": _runtime,
        "data": _data,
        "guest": _examined if ask else _guest,
        "inventory": lambda: _inventory(inventory),
        "binary": _binary,
        "ssh keys": lambda: _agent(inventory),
        "ssh config": _configuration,
        "mount": _mount,
    }
    findings: list[Finding] = []
    for subject, look in looks.items():
        found = _look(subject, look)
        findings += found if isinstance(found, list) else [found]
    return findings


def _look(subject: str, look: Callable[[], Finding | list[Finding]]) -> Finding | list[Finding]:
    from quine.base.errors import Failure
    from transport.errors import Refused

    try:
        return look()
    except (Refused, Failure) as error:
        return Finding("fail", subject, error.detail, error.hint)


def _python() -> Finding:
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):  # reported instead of a traceback
        return Finding("fail", "python", f"{version} at {sys.executable}", "3.11 or newer is needed")
    return Finding("ok", "python", f"{version} at {sys.executable}")


def _kernel() -> Finding:
    lacking = []
    try:
        os.close(os.memfd_create("quine-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (AttributeError, OSError):
        lacking.append("memfd_create")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        lacking.append("pidfd_open")
    if lacking:
        return Finding(
            "fail",
            "kernel",
            f"no {' and no '.join(lacking)}",
            "Linux 5.3 or newer, and a seccomp filter that allows them",
        )
    return Finding("ok", "kernel", f"{os.uname().sysname} {os.uname().release}: memfd and pidfd")


def _runtime() -> Finding:
    from transport import node_socket

    return Finding("ok", "runtime", f"the node's socket is {node_socket.socket_path()}")


def _data() -> Finding:
    from quine.base import data_directory
    from quine.base.errors import Misconfigured

    try:
        folder = Path(data_directory.path())
        data_directory.require_own(str(folder))
    except Misconfigured as refused:
        return Finding("fail", "data", refused.detail, refused.hint)
    if why := _unwritable(folder):
        cure = "set QUINE_DATA_DIR to a directory that you can write"
        return Finding("fail", "data", f"tapes cannot be written to {folder}: {why}", cure)
    return Finding("ok", "data", f"tapes go to {folder}")


def _unwritable(folder: Path) -> str:
    """Return why no file can be made in `folder`, or in its nearest existing parent; "" if one can."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {(error.strerror or '').lower()}"


def _guest() -> Finding:
    from quine.base.errors import Failure

    try:
        config = _config({})
    except Failure as failure:
        return Finding("warn", "guest", failure.detail, failure.hint)
    return Finding(
        "ok", "guest", f"{config.kind} at {config.base}: settings are complete, nothing was sent (--guest)"
    )


def _examined() -> list[Finding]:
    """Return the findings on the guest; where no model is named, the server's list of them. Raises Failure."""
    from quine.base.errors import Misconfigured
    from quine.cli.doctor import guest

    try:
        return guest.examine(_config({}))
    except Misconfigured as missing:
        if os.environ.get("QUINE_MODEL_ID"):
            raise
        config = _config({"QUINE_MODEL_ID": "any"})  # raises if there is another fault
        found = guest.examine(config._replace(model=""))
        listed = any(finding.facts.get("models") for finding in found)
        which = "one of those that it lists" if listed else "the server has listed none"
        cure = f"name the model with --model or QUINE_MODEL_ID: {which}"
        return [Finding("fail", "guest", missing.detail, cure), *found]


def _config(more: Mapping[str, str]) -> Config:
    """Return the guest by the environment and `more`. Raises Failure."""
    from quine.agent import env
    from quine.base.cli_options import RunOptions
    from quine.base.errors import NoGuest

    own = {**os.environ, **more}  # a copy: adopting takes the secrets out
    try:
        return env.guest(env.adopt(RunOptions(), own), own)
    except NoGuest as none:
        from quine.cli import local_servers

        none.hint = local_servers.hint() or none.hint
        raise


def _inventory(named: str | None) -> Finding:
    from deploy import trust
    from deploy.inventory import load

    known = load(Path(named) if named else None, os.environ)
    if known.unread:
        return Finding("warn", "inventory", *trust.unread(*known.unread))
    if known.path is None:
        cure = "for tags, and hosts to fork to: quine hosts import, or quine hosts add NAME USER@HOST"
        return Finding("warn", "inventory", "there is none", cure)
    count = len(known.hosts)
    return Finding(
        "ok", "inventory", f"{known.path}: {count} host{'s' * (count != 1)}; quine hosts check looks at them"
    )


def _binary() -> Finding:
    """Check whether the binary could be built. It is not built here, as that takes half a second."""
    from deploy.build import OWN, cache_directory, running_binary

    if running := running_binary():
        return Finding("ok", "binary", f"this is {running.path}; hosts are sent it")
    if why := _unwritable(cache_directory() / "build"):
        return Finding("warn", "binary", f"it cannot be kept, so hosts cannot be sent it: {why}", OWN)
    return Finding("ok", "binary", f"made from {sys.prefix} when a host needs it")


def _keys(inventory: str | None) -> list[Path]:
    """Return the key files that may be tried: the usual ones, and those in ~/.ssh/config and the inventory."""
    from deploy.inventory import load
    from quine.base.errors import Failure
    from transport.errors import Refused

    named = [f"~/.ssh/{name}" for name in ("id_ed25519", "id_ecdsa", "id_rsa")]
    with contextlib.suppress(OSError):  # `_configuration` reports this file
        for line in (Path.home() / ".ssh" / "config").read_text(errors="replace").splitlines():
            word, _, rest = line.strip().replace("=", " ").partition(" ")
            if word.lower() == "identityfile":
                named.append(rest.strip().strip('"'))
    with contextlib.suppress(Refused, Failure):
        hosts = load(Path(inventory) if inventory else None, os.environ).hosts
        named += [host.identity for host in hosts.values() if host.identity]
    return [Path(name).expanduser() for name in dict.fromkeys(named)]


def _agent(inventory: str | None) -> Finding:
    path = os.environ.get("SSH_AUTH_SOCK")
    there = [key for key in _keys(inventory) if os.path.exists(key)]
    files = [key for key in there if os.access(key, os.R_OK)]
    rest = f"; key files: {', '.join(map(str, files))}" if files else ""
    if not path:
        if files:
            return Finding("ok", "ssh keys", f"no agent{rest}")
        if there:
            names = ", ".join(map(str, there))
            return Finding("warn", "ssh keys", f"{names} cannot be read", "look at the owner and the mode")
        return Finding(
            "warn",
            "ssh keys",
            "neither an ssh agent nor a key file",
            "ssh-keygen -t ed25519, or start an ssh agent",
        )
    try:
        count = _identities(path)
    except OSError as error:
        cure = 'start one: eval "$(ssh-agent)"; ssh-add'
        return Finding(
            "ok" if files else "warn", "ssh keys", f"the agent at {path} does not answer: {error}{rest}", cure
        )
    if not count and not files:
        return Finding("warn", "ssh keys", "the ssh agent holds no key", "ssh-add")
    return Finding("ok", "ssh keys", f"the agent holds {count}{rest}")


def _identities(path: str) -> int:
    """Return how many keys an agent holds (SSH_AGENTC_REQUEST_IDENTITIES, of draft-miller-ssh-agent). Raise OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(AGENT_SECONDS)
        connection.connect(path)
        connection.sendall(struct.pack(">IB", 1, 11))
        answer = b""
        while len(answer) < 9:
            data = connection.recv(9 - len(answer))
            if not data:
                raise OSError("it hung up")
            answer += data
    _, kind, count = struct.unpack(">IBI", answer)
    if kind != 12:
        raise OSError("it refused")
    return int(count)


def _mount() -> Finding:
    """Check whether the shared files can be a directory. Without it `quine fs` still reaches every file."""
    from quine.mount.mounts import lacking

    why, cure = lacking()
    if why:
        return Finding("warn", "mount", f"no QUINE_MOUNT: {why}", cure)
    return Finding("ok", "mount", "the files tier can be a directory: --mount, quine fs mount DIR")


def _configuration() -> Finding:
    """Check for options of ~/.ssh/config that ssh obeys and quine ignores."""
    from transport.provenance import safe_path

    path = Path.home() / ".ssh" / "config"
    try:
        safe_path.judge(path.stat(), str(path))
        lines = path.read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return Finding("ok", "ssh config", f"no {path}")
    except safe_path.Unsafe as error:
        return Finding("warn", "ssh config", f"{error}: no host is reached", error.hint)
    except OSError as error:
        why = (error.strerror or "").lower()
        return Finding("warn", "ssh config", f"{path} cannot be read: {why}", "look at its owner and mode")
    used = {
        line.replace("=", " ").split()[0]
        for line in lines
        if line.split() and not line.lstrip().startswith("#")
    }
    ignored = sorted(word for word in used if word.lower() in IGNORED)
    if ignored:
        cure = "connections are shared by the node, and nothing is forwarded"
        return Finding("warn", "ssh config", f"{path}: not obeyed: {', '.join(ignored)}", cure)
    return Finding("ok", "ssh config", f"{path} is obeyed")

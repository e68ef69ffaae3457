"""The peers of a fan-out, as far as they are installed: their configuration, and how they are called."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.measure import Row
from tests.lab import Lab

HOSTS = ("h1", "h2", "h3", "h4")
AT_ONCE = 8  # jobs, of all hosts together
LONGEST = 600.0  # seconds of one command
ROOT = Path(__file__).parents[2]
SHARED = "ControlMaster auto", "ControlPersist 600"


def configured(lab: Lab, directory: Path, *more: str) -> Path:
    """Write a configuration with which OpenSSH and what starts it reach the hosts of a lab by their names."""
    lines = [
        *(
            "StrictHostKeyChecking accept-new",
            f"UserKnownHostsFile {directory}/known_hosts",
            "LogLevel ERROR",
        ),
        *(f"IdentityFile {lab.identity}", "IdentitiesOnly yes", "BatchMode yes", *more),
    ]
    for name, host in lab.hosts.items():
        lines += [f"Host {name}", f"HostName {host.address}", f"Port {host.port}", f"User {host.user}"]
    path = directory / "ssh_config"
    path.write_text("\n".join(lines) + "\n")
    return path


def shared(lab: Lab, directory: Path) -> Path:
    """The same with one connection a host, which stays up."""
    return configured(lab, directory, *SHARED, f"ControlPath {directory}/%n")


def hang_up(lab: Lab, config: Path) -> None:
    """End the connections that stay up."""
    for host in lab.hosts:
        lab.sh(f"ssh -F {config} -O exit {host}")


def quiet(lab: Lab, command: str, ignored: bool = False) -> Callable[[], None]:
    """Run a shell command of the origin; AssertionError if it fails, unless its status is `ignored`."""

    def run() -> None:
        done = lab.sh(f"{command} >/dev/null", timeout=LONGEST)
        assert ignored or done.returncode == 0, done.stderr[-2000:]

    return run


def tool(name: str) -> str:
    """Return the path of a program, also of one beside this Python; "" if there is none."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{beside}") or ""


def has_mitogen() -> bool:
    return importlib.util.find_spec("mitogen") is not None


def mitogen(config: Path, calls: int, at_once: int, *hosts: str) -> str:
    """The command that has `true` called so often, spread over hosts, so many at one time on each."""
    words = ["bench.fanout.mitogen_calls", str(config), str(calls), str(at_once), *hosts]
    return f"cd {ROOT} && exec {sys.executable} -m {' '.join(words)}"


def beside(figure: str, value: float, unit: str, peer: str, other: float | None, *reach: object) -> Row:
    """The row of a figure and a peer; one that is not installed is said to be missing. `reach`: text, and if met."""
    if other is None:
        return Row(figure, value, unit, f"{peer} is not installed")
    text, met = reach or ("", None)
    return Row(figure, value, unit, peer, other, str(text), met if met is None else bool(met))

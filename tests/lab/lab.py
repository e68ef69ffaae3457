"""The lab: an origin (a home, an inventory, an environment) and its hosts, each a real sshd on loopback.

    with Lab() as lab:                      # h1, h2, h3
        lab.run(["run", "--on", "h1", "--", "hostname"])

Laws
1. Nothing of the machine it runs on is touched and nothing leaks in: own homes, keys, ports, runtime
   directories; no agent, no API key, no configuration of the user who runs it.
2. It may run many times at once, beside itself; in a directory that the caller names, one waits for the other.
3. At the end everything that bears the lab's marks is dead and every directory is gone. A directory that the
   caller names is the exception: its keys and homes stay, for the next lab there (only processes end).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from deploy.host import OF_SSH
from tests.lab import forks, image, processes
from tests.lab.host import Host, Settings
from tests.lab.machine import RUN, SSHD, make_key, place_of_files, remove, toml
from tests.lab.processes import Process
from tests.lab.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
BUILDS = ROOT / ".lab-cache" / "build"  # binaries built for labs: once per state of the sources, not per lab
LEASE = 2  # seconds a job outlives its link, in this inventory: tests wait for it
DEPLOY = 600.0  # seconds to build the binary and bring it to a host, on a busy machine
TIMEOUT = 120.0  # seconds; a first command brings the binary there, unpacked, on a busy machine
CARRIER = os.environ.get("QUINE_TEST_CARRIER") or "ssh"  # of all hosts, where a test does not choose

Data = bytes | str | None

SSH_CONFIG = "Host *\n  StrictHostKeyChecking accept-new\n  HashKnownHosts no\n"


class Lab:
    """A context manager. `lab["h1"]` is a Host."""

    def __init__(
        self,
        names: Iterable[str] = ("h1", "h2", "h3"),
        directory: Path | None = None,
        lease: int = LEASE,
        installed: bool = False,
    ) -> None:
        """`installed`: hosts have this build from the start, where their Settings do not say otherwise."""
        self.names = tuple(names)
        self.lease = lease
        self.installed = installed
        self.id = uuid.uuid4().hex[:12]
        self.hosts: dict[str, Host] = {}
        self._aliases: dict[str, dict[str, object]] = {}
        # Unix socket names hold at most 107 bytes: sockets always lie under a short name.
        self._short = Path(tempfile.mkdtemp(prefix="ql-", dir=place_of_files()))
        self.directory = directory.resolve() if directory else self._short / "d"
        self._lock = -1
        self.home = self.directory / "origin"
        self.tmp = self.home / "tmp"  # TMPDIR of the origin
        self.work = self.home / "work"  # where commands of the origin start
        self.inventory = self.directory / "inventory.toml"
        self.identity = self.directory / "id_ed25519"
        self.mark = "LAB_ORIGIN=" + self.id

    # ------------------------------------------------------------- life cycle

    def __enter__(self) -> Self:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for directory in (self.tmp, self.work, self.home / ".ssh", self.home / ".cache" / "quine"):
                directory.mkdir(parents=True, exist_ok=True)
            (self._short / "o").mkdir(mode=0o700)
            # ports change from lab to lab, host keys do not: an old port may now be another host's
            (self.home / ".ssh" / "known_hosts").unlink(missing_ok=True)
            # first contacts are silent, whatever the machine's own configuration says; tests of them have their own
            (self.home / ".ssh" / "config").write_text(SSH_CONFIG)
            self._write_ssh()
            BUILDS.mkdir(parents=True, exist_ok=True)
            builds = self.home / ".cache" / "quine" / "build"
            if not builds.is_symlink():
                builds.symlink_to(BUILDS)
            if not self.identity.exists():
                make_key(self.identity, "lab")
            if SSHD and os.getuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists; Debian makes it at boot
            for name in self.names:
                self.add(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        processes.kill_marked(self.mark)
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()
        remove(self._short)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def add(self, name: str, settings: Settings | None = None) -> Host:
        """One more host, started, in the inventory."""
        base = self.directory / name
        base.mkdir(parents=True, exist_ok=True)
        host = Host(
            name, base, self._short / name, f"{self.id}-{name}", self.identity, settings or Settings()
        )
        self.hosts[name] = host
        if self.installed and host.settings.ordinary:
            image.install(image.image(_deployed), host.home)
        host.start()
        self._write_inventory()
        return host

    def drop(self, name: str) -> None:
        """A host leaves the lab and the inventory, with all its files."""
        host = self.hosts.pop(name)
        host.close()
        self._aliases = {key: entry for key, entry in self._aliases.items() if entry.get("port") != host.port}
        remove(host.base)
        remove(host.run)
        self._forget_key(host.port)
        self._write_inventory()

    def _forget_key(self, port: int) -> None:
        """The port may be another host's next, with another key."""
        known = self.home / ".ssh" / "known_hosts"
        if known.exists():
            lines = known.read_text().splitlines(keepends=True)
            known.write_text("".join(line for line in lines if not line.startswith(f"[127.0.0.1]:{port} ")))

    # -------------------------------------------------------------- inventory

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def host(self, name: str) -> Host:
        return self.hosts[name]

    def alias(self, name: str, of: str, via: Proxy | int | None = None, **keys: object) -> str:
        """A second inventory entry for `of`: through a proxy (or to a port), with other keys; returns `name`.

        A key given as None is left out of the entry.
        """
        entry = self._entry(self.hosts[of])
        if via is not None:
            entry |= {"address": "127.0.0.1", "port": via if isinstance(via, int) else via.port}
        entry |= keys
        self._aliases[name] = {key: value for key, value in entry.items() if value is not None}
        self._write_inventory()
        return name

    def by_command(self, name: str, of: str, **keys: object) -> str:
        """A second inventory entry for `of`, reached by a command that is a shell with that host's environment.

        Nothing of it can be cut. `alias(..., transport="command")` has a command that logs in.
        """
        words = [
            "env",
            "-i",
            *(f"{key}={value}" for key, value in self.hosts[of].environment().items()),
            "sh",
        ]
        none = dict.fromkeys(("address", "port", "user", "identity"))
        return self.alias(name, of, **{**none, "transport": "command", "command": words, **keys})

    def _write_ssh(self) -> None:
        """Write an `ssh` for the origin: the real one finds its files by the user's entry in passwd, not by HOME."""
        files = self.home / ".ssh"
        known = f"-oUserKnownHostsFile={files}/known_hosts -oGlobalKnownHostsFile=/dev/null"
        program = self.home / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {files}/config {known} "$@"\n')
        program.chmod(0o755)

    def slow(self, of: str, seconds: float = 0.05) -> str:
        """An alias for `of` through its proxy, delayed by `seconds` each way."""
        self.hosts[of].proxy.delay(seconds)
        return self.alias(f"{of}-slow", of, self.hosts[of].proxy)

    def forget_aliases(self) -> None:
        if self._aliases:
            self._aliases.clear()
            self._write_inventory()

    def _entry(self, host: Host) -> dict[str, object]:
        return {
            "address": host.address,
            "port": host.port,
            "user": host.user,
            "identity": str(self.identity),
            **host.inventory,
        }

    def _write_inventory(self) -> None:
        lines = ["[defaults]", f"lease = {self.lease}"]
        entries = {name: self._entry(host) for name, host in self.hosts.items()} | self._aliases
        for name, entry in entries.items():
            lines += ["", f"[hosts.{json.dumps(name)}]"]
            lines += [f"{key} = {toml(value)}" for key, value in carried(name, entry).items()]
        aside = self.inventory.with_suffix(".new")
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(self.inventory)

    # ---------------------------------------------------------------- running

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command at the origin, made from nothing."""
        name, _, value = self.mark.partition("=")
        run, _, number = RUN.partition("=")
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}:{Path(sys.prefix) / 'bin'}:/usr/bin:/bin",
            "USER": os.environ.get("USER", "user"),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
            "TMPDIR": str(self.tmp),
            "XDG_RUNTIME_DIR": str(self._short / "o"),
            "QUINE_INVENTORY": str(self.inventory),
            "QUINE_BROKER_IDLE": "5",
            name: value,
            run: number,
        }

    def run(
        self,
        args: Sequence[str | Path],
        *,
        input: Data = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float = TIMEOUT,
        cwd: Path | None = None,
        check: bool = False,
        shown: bool = False,
        stdout: int | Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """`quine ARGS…` at the origin. `env` is laid over the lab's (None unsets). No input: /dev/null.

        `shown`: its output and its errors go where those of this process go. `stdout`: a descriptor or a path
        in place of a pipe.
        """
        data = input.encode() if isinstance(input, str) else input
        into: int | None = None if shown else subprocess.PIPE
        if stdout is not None:
            into = os.open(stdout, os.O_WRONLY) if isinstance(stdout, Path) else stdout
        try:
            process = self.popen(
                args,
                stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
                stdout=into,
                stderr=None if shown else subprocess.PIPE,
                env=env,
                cwd=cwd,
            )
        finally:
            if isinstance(stdout, Path):
                os.close(into)  # type: ignore[arg-type]
        try:
            out, err = process.communicate(data, timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(
                f"{describe(args)}: not done in {timeout} s; stdout {out!r}, stderr {err!r}"
            ) from None
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if check and process.returncode != 0:
            raise AssertionError(f"{describe(args)}: status {process.returncode}, stderr {err!r}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def popen(
        self,
        args: Sequence[str | Path],
        *,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.DEVNULL,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        new_session: bool = False,
        preexec: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        """The same without waiting, in a process group of its own: a signal to that group does not hit the tests."""
        return forks.popen(
            [self.quine, *map(str, args)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.overlaid(env),
            cwd=cwd or self.work,
            pass_fds=pass_fds,
            start_new_session=new_session,
            process_group=None if new_session else 0,
            preexec_fn=preexec,
        )

    def sh(
        self,
        line: str,
        *,
        input: Data = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float = TIMEOUT,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """A line of shell at the origin, `quine` on PATH: for pipelines."""
        return subprocess.run(
            ["/bin/sh", "-c", line],
            input=input.encode() if isinstance(input, str) else input or b"",
            capture_output=True,
            env=self.overlaid(env),
            timeout=timeout,
            cwd=cwd or self.work,
            check=False,
        )

    def overlaid(self, env: Mapping[str, str | None] | None) -> dict[str, str]:
        merged = {**self.env, **(env or {})}
        return {name: value for name, value in merged.items() if value is not None}

    @property
    def quine(self) -> str:
        return str(Path(sys.prefix) / "bin" / "quine")

    def script(self, replies: Iterable[Mapping[str, object]], name: str = "guest.jsonl") -> dict[str, str]:
        """Write a script guest (one mapping a line) into the work directory; the environment that uses it."""
        path = self.work / name
        path.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        return {"QUINE_API_TYPE": "script", "QUINE_API_BASE": str(path)}

    def ssh(self, name: str, *options: str) -> list[str]:
        """The peer: an argv of plain OpenSSH for that host; append the command."""
        host = self.hosts[name]
        known = self._short / "peer_known_hosts"
        return [
            *("ssh", "-F", "none", "-p", str(host.port), "-i", str(self.identity)),
            *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
            *("-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=accept-new"),
            *options,
            f"{host.user}@{host.address}",
        ]

    # ------------------------------------------------------------ what is left

    def processes(self) -> list[Process]:
        """Return the processes of this lab at the origin."""
        return processes.marked(self.mark)

    def jobs(self) -> list[Process]:
        """Return the processes at the origin and on all hosts, without the nodes, their guards and spares."""
        return [process for process in self._everywhere() if not process.stays]

    def nodes(self) -> list[Process]:
        """Return those: they outlive the command that started them."""
        return [process for process in self._everywhere() if process.stays]

    def _everywhere(self) -> list[Process]:
        return processes.marked(self.mark, *(host.mark for host in self.hosts.values()))

    def wait_idle(self, seconds: float = 90) -> list[Process]:
        """Wait until no job is left anywhere; return those that stay."""
        return processes.wait_none(self.jobs, seconds)

    def stop_nodes(self) -> None:
        """End every process of the lab but sshd: nodes here and there, jobs, clients."""
        processes.kill_marked(self.mark)
        for host in self.hosts.values():
            host.kill_processes()

    @property
    def fds(self) -> set[int]:
        return {fd for host in self.hosts.values() for fd in host.fds}

    @property
    def children(self) -> set[int]:
        return {pid for host in self.hosts.values() for pid in host.children}

    def litter(self) -> list[Path]:
        """Files in the temporary directories of the origin and the hosts."""
        return [
            path for top in (self.tmp, *(host.tmp for host in self.hosts.values())) for path in top.iterdir()
        ]


def carried(name: str, entry: Mapping[str, object]) -> Mapping[str, object]:
    """Return an entry with its carrier, which is CARRIER if it names none.

    A command without words becomes an `ssh` that goes to the entry's address and port: through the proxy, if that does.
    """
    transport = entry.get("transport", CARRIER)
    if transport != "command" or "command" in entry:
        return entry if transport == "ssh" else {**entry, "transport": transport}
    command = ["ssh", "-T", "-oBatchMode=yes", "-oServerAliveInterval=15"]
    for option, key in (("-p", "port"), ("-l", "user"), ("-i", "identity")):
        command += [option, str(entry[key])] if key in entry else []
    command += [str(entry.get("address", name)), "sh"]
    rest = {key: value for key, value in entry.items() if key not in OF_SSH}
    return {**rest, "transport": "command", "command": command}


def describe(args: Sequence[str | Path]) -> str:
    return " ".join(["quine", *map(str, args)])[:200]


@contextmanager
def _deployed() -> Iterator[Path]:
    """The home of a host to which this build was deployed, and where an agent has run."""
    with Lab(["image"]) as lab:
        script = lab.script([{"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}}])
        lab.run(["--on", "image", "warm up"], env=script, check=True, timeout=DEPLOY)
        lab.stop_nodes()
        yield lab["image"].home

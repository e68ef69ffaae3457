"""One host of the lab: a real sshd on loopback with a home, a host key and an environment of its own.

Laws
1. sshd has its stock limits (MaxSessions 10, MaxStartups 10:30:100) and its stock rules, but StrictModes,
   because homes lie under a world-writable directory.
2. Readiness is sshd's own log line, read from its stderr as it comes. Nobody knocks at the port to find out:
   that would count as a failed login.
3. Every process on the host inherits one mark (`mark`), so it can be found and ended whatever it did.

Where there is no sshd, `fallback.py` (asyncssh's server) takes its place; `Host.real` tells.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import processes
from tests.lab.machine import RUN, SSHD, free_port, make_key, search_path
from tests.lab.network import Network
from tests.lab.processes import Process
from tests.lab.proxy import Proxy

START = 120.0  # seconds for sshd to say that it listens; it takes 20 ms, on a loaded machine seconds
OTHER = os.environ.get(
    "QUINE_TEST_HOST_PYTHON", ""
)  # of all hosts, where a test does not choose: pypy3, or a path
TRIES = 5  # ports to try: between choosing one and sshd binding it somebody else may take it


@dataclass(frozen=True, slots=True)
class Settings:
    """Peculiarities of a host. Only the host itself has them; the origin gets `inventory`."""

    python: bool = True  # False: a PATH with everything of /usr/bin but python
    scripts: Mapping[str, str] = field(default_factory=dict)  # name -> text; put first on PATH, executable
    mount: str = ""  # options of a private tmpfs as home, "size=200k" or "noexec"; needs root
    network: bool = False  # a network of its own in place of loopback, see `Host.network`; needs root
    shell: str = ""  # login shell to go through, as "/bin/tcsh"; must take -c
    banner: str = ""  # printed on stdout by the login shell before any command, as a noisy profile does
    sshd: tuple[str, ...] = ()  # more lines for sshd_config
    address: str = ""  # another one of this machine, as "::1"
    env: Mapping[str, str] = field(default_factory=dict)
    inventory: Mapping[str, object] = field(default_factory=dict)  # keys for the inventory, over ours
    bare: bool = False  # True: nothing of ours is there yet, also in a lab whose hosts have this build

    @property
    def ordinary(self) -> bool:
        """Whether this build runs there as it would after a deployment."""
        return self.python and not (self.bare or self.scripts or self.mount or "HOME" in self.env)


class Host:
    """Made by Lab.add(), started already."""

    def __init__(
        self, name: str, base: Path, run: Path, mark: str, identity: Path, settings: Settings
    ) -> None:
        self.name = name
        self.base = base  # everything of this host, home included
        self.home = base / "home"
        self.run = run  # XDG_RUNTIME_DIR over there: short, for socket names
        self.mark = "LAB_HOST=" + mark
        self.identity = identity  # the private key that may log in
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.settings = settings
        self.real = SSHD is not None
        self.port = 0
        self.key = base / "host_key"
        self.log = base / "sshd.log"
        self._sshd: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._proxy: Proxy | None = None
        for directory in (self.home, self.tmp):
            directory.mkdir(parents=True, exist_ok=True)
        run.mkdir(mode=0o700, exist_ok=True)
        if not self.key.exists():
            make_key(self.key, f"host-{name}")
        self.path = search_path(base, self.settings.python, self.settings.scripts)
        self.network = Network() if settings.network else None
        self.address = self.network.address if self.network else self.settings.address or "127.0.0.1"

    # ------------------------------------------------------------------ facts

    @property
    def tmp(self) -> Path:
        """TMPDIR of the host."""
        return self.base / "tmp"

    @property
    def pid(self) -> int:
        """The listening sshd's; 0 when stopped."""
        return self._sshd.pid if self._sshd else 0

    @property
    def inventory(self) -> dict[str, object]:
        """Return the keys of its table in the inventory that say how quine runs there."""
        other = {"python": OTHER} if OTHER and self.settings.python else {}
        return {**other, **self.settings.inventory}

    @property
    def root(self) -> Path:
        """The host's file system as its own processes see it (a private mount is visible only there)."""
        return Path(f"/proc/{self.pid}/root") if self.settings.mount else Path("/")

    def path_of(self, path: str | Path) -> Path:
        """Return the path, as this process sees it, of a path below the host's home; private mounts included."""
        return self.root / (self.home / path).relative_to("/")

    @property
    def proxy(self) -> Proxy:
        """The line to this host that can be slowed, cut, silenced. See Lab.alias() to go through it."""
        if self._proxy is None:
            self._proxy = Proxy(self.port, self.address)
        return self._proxy

    @property
    def has_proxy(self) -> bool:
        return self._proxy is not None

    @property
    def fds(self) -> set[int]:
        """Descriptors that this process holds for the host."""
        held = {part.fd for part in (self._proxy, self.network) if part}
        if self._sshd and self._sshd.stderr and not self._sshd.stderr.closed:
            held.add(self._sshd.stderr.fileno())
        return held

    @property
    def children(self) -> set[int]:
        """Return the child processes of this process that serve the host."""
        return {pid for pid in (self.pid, self._proxy.pid if self._proxy else 0) if pid}

    def processes(self) -> list[Process]:
        """Return the processes on the host, without sshd itself."""
        return processes.marked(self.mark)

    def jobs(self) -> list[Process]:
        """Return the same without the node, its dial, its guard and spare."""
        return [process for process in self.processes() if not process.stays]

    def sessions(self) -> list[int]:
        """Return the sshd processes of the connections that are open."""
        return processes.descendants(self.pid, "sshd") if self.pid and self.real else []

    def connections(self) -> int:
        """How many logins were accepted since the lab came up."""
        with self._news:
            return sum("Accepted publickey" in line for line in self._lines)

    def wait_log(self, text: str, seconds: float = 30, after: int = 0) -> str:
        """The first line of sshd's log that holds `text`, skipping `after` lines; waits for it."""

        def seen() -> str:
            return next((line for line in self._lines[after:] if text in line), "")

        with self._news:
            if not self._news.wait_for(seen, seconds):
                raise TimeoutError(f"{self.name}: no {text!r} in the log of sshd within {seconds} s")
            return seen()

    # ------------------------------------------------------------ start, stop

    def start(self) -> None:
        """Start sshd; on the same port as before, if there was one."""
        if self._sshd is not None:
            return
        for _ in range(TRIES):
            port = self.port or free_port()
            if self._launch(port):
                self.port = port
                return
            if not any("Cannot bind" in line for line in self._lines[-5:]):
                break
        raise RuntimeError(f"{self.name}: sshd does not start:\n" + "\n".join(self._lines[-20:]))

    def _launch(self, port: int) -> bool:
        config = self.base / "sshd_config"
        config.write_text(self._config(port))
        if self.real:
            command = [str(SSHD), "-D", "-e", "-f", str(config)]
        else:
            command = [sys.executable, str(Path(__file__).with_name("fallback.py")), str(config)]
        if self.settings.mount:
            options = self.settings.mount
            mount = f'mount -t tmpfs -o "{options}" lab "$0" && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, str(self.home), *command]
        if self.network:
            command = [*self.network.enter(), *command]
        if (
            not self.settings.mount
            and shutil.which("setpriv")
            and threading.current_thread() is threading.main_thread()
        ):
            # should this process be killed, its hosts go with it
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        self._sshd = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
        before = len(self._lines)
        self._reader = threading.Thread(target=self._read, args=(self._sshd,), name=f"lab-{self.name}-log")
        self._reader.start()
        with self._news:
            self._news.wait_for(lambda: any(_STARTED(line) for line in self._lines[before:]), START)
            if any("Server listening" in line for line in self._lines[before:]):
                return True
        self.stop()
        return False

    def _read(self, sshd: subprocess.Popen[bytes]) -> None:
        assert sshd.stderr is not None
        with self.log.open("a") as log:
            for raw in sshd.stderr:
                line = raw.decode(errors="replace").rstrip()
                log.write(line + "\n")
                log.flush()
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._lines.append(_END)
            self._news.notify_all()

    def kill_sessions(self) -> int:
        """SIGKILL the sshd process of every open connection; the listener stays. Returns how many."""
        if not self.real:
            os.kill(self.pid, signal.SIGUSR1)
            return 1
        pids = self.sessions()
        for pid in pids:
            processes.kill(pid)
        return len(pids)

    def stop(self) -> None:
        """Kill sshd at once, listener and sessions. Other processes of the host go on (see `crash`)."""
        sshd, self._sshd = self._sshd, None
        if sshd is None:
            return
        if sshd.poll() is None:
            os.kill(sshd.pid, signal.SIGSTOP)  # so that no session is born while we count them
            for pid in processes.descendants(sshd.pid, "sshd") if self.real else []:
                processes.kill(pid)
            sshd.kill()
        sshd.wait()
        if self._reader is not None:
            self._reader.join()
        if sshd.stderr is not None:
            sshd.stderr.close()

    def crash(self) -> None:
        """The machine is gone: sshd and everything that ran there die by SIGKILL."""
        self.stop()
        self.kill_processes()

    def kill_processes(self) -> None:
        """SIGKILL everything that runs there, node included; sshd stays."""
        if left := processes.kill_marked(self.mark):
            raise RuntimeError(f"{self.name}: these do not die: {[str(process) for process in left]}")

    def close(self) -> None:
        self.crash()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self.network is not None:
            self.network.close()

    # ---------------------------------------------------------------- innards

    def environment(self) -> dict[str, str]:
        """Return the environment of a session on the host."""
        name, _, value = self.mark.partition("=")
        run, _, number = RUN.partition("=")
        return {
            "HOME": str(self.home),
            "PATH": self.path,
            "XDG_RUNTIME_DIR": str(self.run),
            "TMPDIR": str(self.tmp),
            name: value,
            run: number,
            **self.settings.env,
        }

    def _config(self, port: int) -> str:
        env = " ".join(quoted(f"{name}={value}") for name, value in self.environment().items())
        lines = [
            f"ListenAddress {f'[{self.address}]' if ':' in self.address else self.address}:{port}",
            f"HostKey {quoted(str(self.key))}",
            f"AuthorizedKeysFile {quoted(str(self.identity) + '.pub')}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "PidFile none",
            "LogLevel VERBOSE",
            "Subsystem sftp internal-sftp",
            f"SetEnv {env}",
            *self.settings.sshd,
        ]
        if self.settings.shell or self.settings.banner:
            banner, login = self.base / "banner", self.base / "login"
            banner.write_text(self.settings.banner)
            shell = self.settings.shell or "/bin/sh"
            login.write_text(f'cat {shlex.quote(str(banner))}\nexec {shell} -c "$SSH_ORIGINAL_COMMAND"\n')
            lines.append(f"ForceCommand exec /bin/sh {shlex.quote(str(login))}")
        return "\n".join(lines) + "\n"


_END = "(sshd ended)"


def _STARTED(line: str) -> bool:
    return "Server listening" in line or line == _END


def quoted(text: str) -> str:
    """For sshd_config."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

"""A stand-in for sshd where there is none: asyncssh's server, told by the sshd_config that `host.py` writes.

It starts commands as sshd does (login shell with -c, the environment of SetEnv) and says the same
two log lines. It is not OpenSSH: no MaxSessions, no MaxStartups. Tests that need those ask `Host.real`.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import signal
import sys
from pathlib import Path

import asyncssh


def settings(path: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return (keyword -> words, environment) of an sshd_config."""
    words = {line.split()[0]: shlex.split(line)[1:] for line in path.read_text().splitlines() if line}
    raw = dict(line.split(" ", 1) for line in path.read_text().splitlines() if " " in line)
    if "ForceCommand" in raw:
        words["ForceCommand"] = [raw["ForceCommand"]]
    return words, dict(word.split("=", 1) for word in words.get("SetEnv", []))


async def copy(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    """Copy until one end closes. Output for a client that has gone is read and dropped."""
    lost = False
    while data := await source.read(1 << 16):
        if not lost:
            try:
                sink.write(data)
                await sink.drain()
            except (OSError, asyncssh.Error):
                lost = True


async def serve(path: Path) -> None:
    words, extra = settings(path)
    account = pwd.getpwuid(os.getuid())
    connections: set[asyncssh.SSHServerConnection] = set()

    class Server(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            self.connection = conn
            connections.add(conn)

        def auth_completed(self) -> None:
            print(f"Accepted publickey for {account.pw_name}", file=sys.stderr, flush=True)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self.connection)

    async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        env = {"USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell, **extra}
        command = process.command or ""
        if forced := words.get("ForceCommand"):
            env["SSH_ORIGINAL_COMMAND"], command = command, forced[0]
        child = await asyncio.create_subprocess_exec(
            account.pw_shell,
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=account.pw_dir,
            start_new_session=True,
        )
        await process.redirect(stdin=child.stdin)
        assert child.stdout and child.stderr
        # Not by redirect: the status would close the channel before what the command said has been read
        await asyncio.gather(copy(child.stdout, process.stdout), copy(child.stderr, process.stderr))
        status = await child.wait()
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)

    address, _, port = words["ListenAddress"][0].rpartition(":")
    try:
        await asyncssh.listen(
            address,
            int(port),
            server_factory=Server,
            server_host_keys=words["HostKey"],
            authorized_client_keys=words["AuthorizedKeysFile"][0],
            process_factory=handle,
            encoding=None,
        )
    except OSError as error:
        sys.exit(f"Cannot bind any address: {error}")

    def abort() -> None:
        for connection in list(connections):
            connection.abort()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, abort)
    print(f"Server listening on {address} port {port}.", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

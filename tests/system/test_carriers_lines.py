"""Other carriers than asyncssh over hard lines: a chain of jumps, a server that takes few at a time, a long break."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.host import Host
from tests.lab.lab import SSH_CONFIG
from tests.support.waiting import read_until, until
from tests.system.breaks import down, proxy_process

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
VAIN = 7  # dials of a link that is down, up to the longest pause between two of them
LEASE = 120  # seconds: a dial is three logins, one after the other, and the machine may be busy
DIALS = 8  # at once, more than may shake hands at a time


@pytest.fixture(params=["inventory", "configuration"])
def chain(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of h1, reached through h3 and then h2."""
    config = lab.home / ".ssh" / "config"
    if request.param == "inventory":
        lab.alias("hop", "h2", transport="openssh", jump="h3")
        yield lab.alias("behind", "h1", transport="openssh", jump="hop", lease=LEASE)
        return
    jumps = {"behind": ("h1", "hop"), "hop": ("h2", "first"), "first": ("h3", "none")}
    tables = [
        f"Host {name}\n  HostName 127.0.0.1\n  Port {lab[of].port}\n  ProxyJump {jump}\n"
        for name, (of, jump) in jumps.items()
    ]
    known = f"Host *\n  IdentityFile {lab.identity}\n  UserKnownHostsFile {lab.home}/.ssh/known_hosts\n"
    config.write_text("".join(tables) + known + SSH_CONFIG)
    none = dict.fromkeys(("address", "port", "user", "identity"))
    try:
        yield lab.alias("behind", "h1", **none, transport="openssh", lease=LEASE)
    finally:
        config.write_text(SSH_CONFIG)


def test_a_chain_of_jumps_that_breaks_in_the_middle(lab: Lab, chain: str) -> None:
    hosts = [lab[name] for name in ("h1", "h2", "h3")]
    before = [host.connections() for host in hosts]
    once = [count + 1 for count in before]
    with proxy_process(lab, "run", "--on", chain, "--", "cat") as process:
        assert process.stdin and process.stdout
        for number, word in enumerate((b"whole\n", b"broken\n")):
            process.stdin.write(word)
            process.stdin.flush()
            read_until(process.stdout.fileno(), word)
            if number == 0:
                until(lambda: [host.connections() for host in hosts] == once, "a login each in the logs")
                assert lab["h2"].kill_sessions()
        assert process.communicate(timeout=120) == (b"", b"")
        assert process.returncode == 0
    until(
        lambda: all(host.connections() > count + 1 for host, count in zip(hosts, before, strict=True)),
        "another login each in the logs",
    )


def test_a_full_server_is_asked_again(lab: Lab, odd_host: Callable[..., Host]) -> None:
    """MaxStartups: sshd drops a connection while another one has not logged in yet."""
    host = odd_host("full", sshd=("MaxStartups 1:100:1",), inventory={"transport": "openssh"})
    with socket.create_connection((host.address, host.port)) as first:
        assert first.recv(4) == b"SSH-"  # it is counted now
        process = lab.popen(["hosts", "check", "full"], stderr=subprocess.PIPE)
        host.wait_log("MaxStartups throttling")
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, b"")


def test_many_dials_at_a_server_that_takes_few(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("full", sshd=("MaxStartups 2:100:2",), bare=False)
    for number in range(DIALS):
        lab.alias(f"many{number}", "full", transport="openssh", env={"NUMBER": str(number)})
    far = 'quine run --quiet --on many% -- sh -c "echo \\$NUMBER; exit 7"; echo % $? >&2'
    done = lab.sh(f"seq 0 {DIALS - 1} | xargs -P {DIALS} -I% sh -c '{far}'", timeout=240)
    assert sorted(done.stderr.decode().splitlines()) == [f"{number} 7" for number in range(DIALS)]
    assert sorted(done.stdout.decode().split()) == [str(number) for number in range(DIALS)]


@pytest.mark.parametrize("transport", ["openssh", "command"])
def test_a_break_that_outlasts_many_dials(lab: Lab, transport: str, tmp_path: Path) -> None:
    proxy = lab["h1"].proxy
    far = lab.alias("away", "h1", proxy, transport=transport, lease=600)

    def vain() -> int:
        logs = Path(lab.env["XDG_RUNTIME_DIR"]).glob("quine-*/*.log")
        return sum(path.read_text().count(f"{far}: not back yet: ") for path in logs)

    script = f"echo up; cat; echo ran >>{tmp_path}/ran; exit 7"
    with proxy_process(lab, "run", "--on", far, "--", "sh", "-c", script) as process:
        assert process.stdin and process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        before = vain()
        with down(proxy):
            process.stdin.write(b"meanwhile\n")
            process.stdin.flush()
            until(lambda: vain() >= before + VAIN, f"{VAIN} dials were in vain")
        read_until(process.stdout.fileno(), b"meanwhile\n")
        assert process.communicate(timeout=120) == (b"", b"")
        assert process.returncode == 7
    assert (tmp_path / "ran").read_text() == "ran\n"

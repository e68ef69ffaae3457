"""The lab itself: hosts are real, separate, can be broken and mended, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, Settings, processes
from tests.lab.host import Host
from tests.lab.machine import readable
from tests.lab.network import can_separate

pytestmark = pytest.mark.skipif(not Path("/usr/bin/ssh").exists(), reason="needs the ssh client")


# It names itself after its last exec: in the middle of one a process has no environment to be found by.
LOITER = "setsid sh -c 'echo $$; exec >/dev/null 2>&1; kill -STOP $$' </dev/null &"


def ssh(lab: Lab, name: str, command: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*lab.ssh(name), command], capture_output=True, env=lab.env, timeout=120, stdin=subprocess.DEVNULL
    )


def test_a_session_gets_the_environment_of_its_host_and_hosts_have_their_own_key_and_home(lab: Lab) -> None:
    keys, homes = set(), set()
    for name in ("h1", "h2"):
        host = lab[name]
        out = ssh(lab, name, 'echo "$HOME|$PATH|$XDG_RUNTIME_DIR|$TMPDIR|$LAB_HOST"').stdout.decode().strip()
        assert out == f"{host.home}|{host.path}|{host.run}|{host.tmp}|{lab.id}-{name}"
        assert len(str(host.run)) < 60  # room for a socket's name
        keys.add((host.base / "host_key.pub").read_text().split()[1])
        homes.add(host.home)
    assert len(keys) == len(homes) == 2


def test_the_inventory_names_every_host_and_alias(lab: Lab) -> None:
    lab.alias("h1-other", of="h1", via=4444, tags=["a", "b"], identity=None)
    hosts = tomllib.loads(lab.inventory.read_text())["hosts"]
    assert hosts["h1"]["port"] == lab["h1"].port and hosts["h1"]["identity"] == str(lab.identity)
    assert hosts["h1-other"] == {
        "address": "127.0.0.1",
        "port": 4444,
        "user": lab["h1"].user,
        "tags": ["a", "b"],
    }


def test_the_origin_inherits_no_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("SSH_AUTH_SOCK", "x")
    assert "x" not in lab.env.values()


def test_a_job_is_found_by_its_mark_and_dies_with_the_machine(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"])
    pid = int(ssh(lab, "h1", LOITER).stdout)
    assert pid in [job.pid for job in lab["h1"].jobs()]
    lab["h1"].crash()
    assert processes.find(pid) is None
    assert not lab["h1"].processes()


def test_a_killed_session_ends_its_client_and_not_the_listener(lab: Lab) -> None:
    host = lab["h1"]
    with subprocess.Popen(
        [*lab.ssh("h1"), "echo here; exec cat"], stdin=-1, stdout=-1, env=lab.env
    ) as client:
        assert client.stdout is not None and client.stdout.readline() == b"here\n"
        assert len(host.sessions()) >= 1
        assert host.kill_sessions() >= 1
        assert client.wait(120) == 255
    assert not processes.wait_gone(host.jobs(), 90)
    assert ssh(lab, "h1", "true").returncode == 0


def test_a_stopped_host_refuses_and_comes_back_at_its_port(lab: Lab) -> None:
    host = lab["h2"]
    port = host.port
    host.stop()
    assert ssh(lab, "h2", "true").returncode == 255
    host.start()
    assert host.port == port
    assert ssh(lab, "h2", "true").returncode == 0


def test_a_host_without_python(odd_host: Callable[..., Host], lab: Lab) -> None:
    odd_host("bare", python=False)
    assert ssh(lab, "bare", "command -v python3 || echo none; command -v awk").stdout.startswith(b"none\n/")


def test_a_host_with_scripts_and_a_noisy_profile(odd_host: Callable[..., Host], lab: Lab) -> None:
    odd_host("odd", scripts={"python3": "#!/bin/sh\necho Python 2.7\n"}, banner='it\'s "us"\n')
    assert ssh(lab, "odd", "python3 -V").stdout == b'it\'s "us"\nPython 2.7\n'


def test_a_host_with_a_full_disk(odd_host: Callable[..., Host], lab: Lab) -> None:
    host = odd_host("full", mount="size=64k")
    assert ssh(lab, "full", "head -c 1000000 /dev/zero > $HOME/a").returncode != 0
    assert host.path_of("a").stat().st_size < 65537
    assert not (host.home / "a").exists()  # the mount is the host's alone


@pytest.mark.long
@pytest.mark.skipif(not can_separate(), reason="needs root, iproute2 and network namespaces")
def test_a_host_with_a_network_of_its_own(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab([])
    host = lab.add("far", Settings(network=True))
    assert host.network is not None
    name = host.network.name
    with subprocess.Popen(
        [*lab.ssh("far"), "ip -brief address; exec cat"], stdin=-1, stdout=-1, env=lab.env
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        assert client.stdout.readline().startswith(b"lo ")
        assert host.address.encode() in client.stdout.readline()
        host.network.down()
        client.stdin.write(b"a\n")
        client.stdin.flush()
        assert not readable(client.stdout.fileno(), 0.3)
        with pytest.raises(TimeoutError):  # not refused, not unreachable: vanished
            socket.create_connection((host.address, host.port), timeout=0.3)
        host.network.up()
        assert client.stdout.readline() == b"a\n"
        client.stdin.close()
        assert client.wait(120) == 0
    port = host.port
    host.stop()
    host.start()
    assert host.port == port and ssh(lab, "far", "true").returncode == 0
    lab.close()
    assert name not in os.listdir("/sys/class/net")


def echo_server() -> tuple[socket.socket, threading.Thread]:
    """Serves one connection after another, those of a proxy that are half open beside each other."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=server.accept()[:1]))
                threads[-1].start()
        for thread in threads:
            thread.join(60)

    thread = threading.Thread(target=accept)
    thread.start()
    return server, thread


@pytest.fixture
def line() -> object:
    """A connection to an echo server through a proxy."""
    from tests.lab import Proxy

    server, thread = echo_server()
    proxy = Proxy(server.getsockname()[1])
    client = socket.create_connection(("127.0.0.1", proxy.port))
    client.settimeout(60)
    yield proxy, client
    client.close()
    proxy.close()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(60)


def test_a_proxy_delays_without_throttling(line) -> None:  # type: ignore[no-untyped-def]
    proxy, client = line
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.delay(0.05)
    start = time.monotonic()
    client.sendall(b"b")
    assert client.recv(1) == b"b"
    assert time.monotonic() - start >= 0.1
    # 8 MB at 100 ms: with a window of a few hundred KB this would take seconds
    data = os.urandom(8 << 20)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    got = bytearray()
    while len(got) < len(data):
        got += client.recv(1 << 20)
    sender.join()
    assert got == data
    assert proxy.accepted() == 1 and proxy.carried() == 2 * (len(data) + 2)


def test_a_proxy_cuts(line) -> None:  # type: ignore[no-untyped-def]
    proxy, client = line
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_proxy_cuts_at_a_byte(line) -> None:  # type: ignore[no-untyped-def]
    """Bytes of both ways count together, so those of the echo count as well."""
    proxy, client = line
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.cut_after(7, 1, 12)
    client.sendall(b"12345")  # five there, two back
    assert received(client) == b"12"
    assert proxy.cuts() == 1
    for sent, came in ((b"1", b""), (b"123456789", b"123"), (b"123456789", b"123456789")):
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as again:
            again.sendall(sent)
            if sent == came:  # the plan is done
                again.shutdown(socket.SHUT_WR)
            assert received(again) == came
    assert proxy.cuts() == 3 and proxy.accepted() == 4
    proxy.cut_after(1)
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as again:
        again.sendall(b"a")
        assert again.recv(1) == b"a"


def received(client: socket.socket) -> bytes:
    """All that comes until the end, be it a reset."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            got += data
    return got


def test_a_half_open_connection_is_silent_and_new_ones_work(line) -> None:  # type: ignore[no-untyped-def]
    proxy, client = line
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    assert proxy.half_open() == 1
    client.sendall(b"b")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as other:
        other.sendall(b"c")
        assert other.recv(1) == b"c"
    assert not readable(client.fileno(), 0.2)
    client.shutdown(socket.SHUT_WR)
    assert not readable(client.fileno(), 0.2)
    proxy.heal()
    assert received(client) == b"b"


def test_a_proxy_is_silent_and_heals(line) -> None:  # type: ignore[no-untyped-def]
    proxy, client = line
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    proxy.blackhole()
    client.sendall(b"b")
    assert not readable(client.fileno(), 0.2)
    proxy.heal()
    assert client.recv(1) == b"b"


def test_a_proxy_refuses_newcomers_only(line) -> None:  # type: ignore[no-untyped-def]
    proxy, client = line
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))
    client.sendall(b"a")
    assert client.recv(1) == b"a"


def test_a_proxy_outlives_a_newcomer_that_comes_as_it_refuses() -> None:
    """One look finds the order and the newcomer, and takes them in that order."""
    from tests.lab.proxy import _Line

    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = _Line(("127.0.0.1", 1), theirs, 0)
        socket.create_connection(line.address).close()
        line.obey("refuse", True)
        line.accept()
        assert line.accepted == 0
        line.selector.close()


def test_a_proxy_passes_each_half_close(line) -> None:  # type: ignore[no-untyped-def]
    _, client = line
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b"last" and client.recv(100) == b""


def test_ssh_through_a_slow_line(lab: Lab) -> None:
    lab.slow("h3", 0.02)
    lab["h3"].port, port = lab["h3"].proxy.port, lab["h3"].port
    try:
        assert ssh(lab, "h3", "echo far").stdout == b"far\n"
    finally:
        lab["h3"].port = port


def test_a_lab_leaves_nothing_behind(tmp_path: Path) -> None:
    with Lab(["a"], directory=tmp_path / "kept") as kept, Lab(["a"]) as gone:
        kept.alias("slow", of="a", via=kept["a"].proxy)
        for lab in (kept, gone):
            assert ssh(lab, "a", LOITER).stdout
        marks = [lab["a"].mark for lab in (kept, gone)]
    assert not any(processes.marked(mark) for mark in marks)
    assert not gone.directory.exists()
    key = (tmp_path / "kept" / "a" / "host_key.pub").read_text()
    with Lab(["a"], directory=tmp_path / "kept") as again:
        assert (again["a"].base / "host_key.pub").read_text() == key
        assert ssh(again, "a", "true").returncode == 0


def test_without_sshd_a_stand_in_serves(own_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.host.SSHD", None)
    lab = own_lab([])
    host = lab.add("h1", Settings(banner="hello\n"))
    assert not host.real
    done = subprocess.run(
        [*lab.ssh("h1"), "echo 'a  b'; cat; exit 7"], input=b"in", capture_output=True, env=lab.env
    )
    assert done.stdout == b"hello\na  b\nin" and done.returncode == 7

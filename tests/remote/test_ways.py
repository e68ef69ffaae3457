"""An edit of ~/.ssh/config counts for the next job, while jobs that run go on over the link that they have."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

import deploy.inventory
from quine.base.cli_options import MOUNT, MOUNT_NEEDED
from quine.remote import ways
from quine.remote.placement import Placer
from tests.lab import Lab
from tests.lab.lab import SSH_CONFIG
from tests.support.loads import idle
from transport.errors import Misconfigured
from transport.node.host import Target
from transport.spawn import Spawn

pytestmark = [pytest.mark.skipif(not os.path.exists("/usr/sbin/sshd"), reason="needs sshd")]


class Origin:
    """The user's ~/.ssh/config, and a host `one` of the inventory that has only its name there."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ssh = lab.home / ".ssh"
        lab.alias("one", "h1", address=None, port=None, user=None, identity=None)

    def table(self, host: str, more: str = "") -> str:
        port, key = self.lab[host].port, self.lab.identity
        return f" HostName 127.0.0.1\n Port {port}\n IdentityFile {key}\n{more}"

    def write(self, text: str, name: str = "config") -> None:
        aside = self.ssh / "aside"
        aside.write_text(text + SSH_CONFIG)
        aside.rename(self.ssh / name)

    def where(self) -> str:
        """Return the host that a command on `one` runs on."""
        told = self.lab.run(["run", "--on", "one", "--", "sh", "-c", "echo $LAB_HOST"], check=True)
        return told.stdout.decode().strip().rpartition("-")[2]


@pytest.fixture
def origin(lab: Lab) -> Iterator[Origin]:
    yield Origin(lab)
    (lab.home / ".ssh" / "config").chmod(0o644)
    (lab.home / ".ssh" / "config").write_text(SSH_CONFIG)
    lab.forget_aliases()
    lab.run(["node", "--stop", "--force"])


@contextmanager
def running(lab: Lab) -> Iterator[None]:
    """A job on `one` that has begun before the edits within, and ends as if there had been none."""
    with lab.popen(["run", "--on", "one", "--", "cat"], stdin=PIPE, stdout=PIPE) as job:
        assert job.stdin and job.stdout
        try:
            job.stdin.write(b"before\n")
            job.stdin.flush()
            assert job.stdout.readline() == b"before\n", (lab.home / ".ssh" / "config").read_text()
            yield
            out, _ = job.communicate(b"after\n")
        except BaseException:
            job.kill()
            raise
        assert (out, job.returncode) == (b"after\n", 0)


def test_an_edit_leads_the_next_job_elsewhere_by_the_program_ssh(origin: Origin) -> None:
    lab = origin.lab
    lab.alias("one", "h1", address=None, port=None, user=None, identity=None, transport="openssh")
    origin.write("Host one\n" + origin.table("h1"))
    with running(lab):
        origin.write("Host one\n" + origin.table("h2"))
        assert origin.where() == "h2"


def test_edits_of_each_kind(origin: Origin) -> None:
    one, two = (origin.table(host) for host in ("h1", "h2"))
    lab, only = origin.lab, "Match originalhost one exec true\n"
    origin.write("Host one\n" + one)
    with running(lab):
        origin.write("Host one\n" + two)
        assert origin.where() == "h2"
        origin.write("Host one\n" + one)
        assert origin.where() == "h1"
    # nobody is dialled where nothing changes for the host
    before = lab["h1"].connections()
    origin.write("# about it\nHost other\n Port 1\nHost one\n" + one)
    assert origin.where() == "h1" and lab["h1"].connections() == before
    # a file that comes to be included
    (origin.ssh / "conf.d").mkdir(exist_ok=True)
    origin.write(f"Include {origin.ssh}/conf.d/*\nHost one\n" + one)
    assert origin.where() == "h1"
    origin.write("Host one\n" + two, "conf.d/new")
    try:
        assert origin.where() == "h2"
    finally:
        (origin.ssh / "conf.d" / "new").unlink()
        (origin.ssh / "conf.d").rmdir()
    # a jump host that moves
    by_hop = "Host one\n" + origin.table("h1", " ProxyJump hop\n")
    origin.write(by_hop + "Host hop\n" + two)
    assert origin.where() == "h1"
    before = lab["h3"].connections()
    origin.write(by_hop + "Host hop\n" + origin.table("h3"))
    assert origin.where() == "h1" and lab["h3"].connections() == before + 1
    # within what a command decides
    origin.write(only + one)
    assert origin.where() == "h1"
    origin.write(only + two)
    assert origin.where() == "h2"
    # one that makes the configuration wrong
    (origin.ssh / "config").chmod(0o666)
    done = lab.run(["run", "--on", "one", "--", "true"])
    assert done.returncode == 69 and b"bad permissions of" in done.stderr


def test_a_batch_keeps_its_way_while_the_configuration_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ways, "LOOK", 0)
    inventory, config = tmp_path / "inventory.toml", tmp_path / ".ssh" / "config"
    inventory.write_text("[hosts.one]\n")
    config.parent.mkdir()
    config.write_text("Host one\n Port 7\n")
    place = Placer()

    def key(late: bool) -> str:
        return place(Spawn(["x"], where="one", context={"inventory": str(inventory), "late": late}), idle).key

    first = key(late=True)
    config.write_text("Host one\n Port seven\n")
    assert key(late=True) == first
    config.write_text("Host one\n Port 8\n")
    second = key(late=True)
    assert second != first
    config.write_text("Host one\n Port eight\n")
    assert key(late=False) != second


@pytest.mark.parametrize("way", ["option", "agent"])
def test_a_host_that_cannot_mount_is_the_last_one_for_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    inventory = tmp_path / "inventory.toml"
    inventory.write_text("[hosts.one]\n[hosts.two]\n[hosts.three]\n")
    place, context = Placer(), {"inventory": str(inventory)}

    def target(where: str = "any", mount: bool = True) -> Target:
        spawn = Spawn(["x"], where=where, context=context)
        if mount and way == "option":
            spawn.argv, spawn.own = ["run", "--mount", "--", "x"], True
        elif mount:
            spawn.env[MOUNT] = MOUNT_NEEDED
        return place(spawn, idle)

    async def meet(where: str, why: object) -> None:
        met = target(where).met
        assert met
        met({"system": "Linux x86_64", "mount": why})

    asyncio.run(meet("one", "there is no /dev/fuse"))
    asyncio.run(meet("two", ""))
    assert (target().name, target(mount=False).name, target("one").name) == ("two", "one", "one")
    asyncio.run(meet("one", ""))
    assert target().name == "one"


def test_a_batch_keeps_its_hosts_while_the_inventory_is_missing_empty_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may move it away first, or empty it. A wrong one is read once, not for each job."""
    inventory = tmp_path / "inventory.toml"
    inventory.write_text("[hosts.one]\n")
    place, read = Placer(), []
    load = deploy.inventory.load
    monkeypatch.setattr(deploy.inventory, "load", lambda *rest: (read.append(1), load(*rest))[1])

    def name(late: bool) -> str:
        return place(
            Spawn(["x"], where="any", context={"inventory": str(inventory), "late": late}), idle
        ).name

    assert name(late=True) == "one"
    for make in (inventory.unlink, inventory.touch, lambda: inventory.write_text("[hosts.")):
        make()
        for _ in range(3):
            assert name(late=True) == "one"
            with pytest.raises(Misconfigured):
                name(late=False)
    assert len(read) == 2
    inventory.write_text("[hosts.three]\n")
    assert name(late=True) == name(late=False) == "three"

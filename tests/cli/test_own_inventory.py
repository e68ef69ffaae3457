"""`quine hosts add|import|trust`: the tables that are written, the file they go to, and the trust in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy import paths, trust
from deploy.host import Host
from deploy.inventory import load
from quine.base.allowed_hosts import in_tree
from quine.base.errors import Denied, Failure, Misconfigured
from quine.cli import own_inventory
from transport import inherit

SSH = "Host h1 h2.lan *.lan any\n  User ada\nHost böse\nInclude more.conf\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("QUINE_INVENTORY", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def own(home: Path) -> Path:
    return home / ".config" / "quine" / "inventory.toml"


def test_the_first_host_makes_the_users_own_inventory(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.umask(before := os.umask(0))
    try:
        os.umask(0)
        assert own_inventory.main(["add", "gpu1", "me@[::1]:2200"], None) == 0
    finally:
        os.umask(before)
    text = '[hosts.gpu1]\naddress = "::1"\nuser = "me"\nport = 2200\n'
    assert own(home).read_text() == text
    assert capfd.readouterr() == (f"{own(home)}: added\n{text}", "")
    modes = [path.stat().st_mode & 0o777 for path in (own(home), own(home).parent, own(home).parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    assert load(None, os.environ).host("gpu1") == Host("gpu1", address="::1", user="me", port=2200)
    # the next one leaves all else as it is
    own(home).write_text("# mine\n[defaults]\nslots = 2 # few\n\n[hosts.old]\n# end")
    own_inventory.main(["add", "db.1"], None)
    own_inventory.main(["add", "web", "10.0.0.1"], None)
    assert own(home).read_text() == (
        "# mine\n[defaults]\nslots = 2 # few\n\n[hosts.old]\n# end\n"
        '\n[hosts."db.1"]\n\n[hosts.web]\naddress = "10.0.0.1"\n'
    )


@pytest.mark.parametrize(
    ("words", "text", "why"),
    [
        (["gpu1"], "[hosts.gpu1]\n", "[hosts.gpu1]: is there already"),
        (["any"], "", "'any' is a word of WHERE"),
        (["-x"], "", "'-x' is not a name"),
        (["a b"], "", "'a b' is not a name"),
        ([], "", "hosts add takes a name"),
        (["a", "b", "c"], "", "hosts add takes a name"),
        (["a", "me@h:x"], "", "'me@h:x' is not USER@HOST[:PORT]"),
        (["a", "me@h:70000"], "", "[hosts.a]: port: more than 65535"),
        (["a", "-oProxyCommand=x"], "", "[hosts.a]: address: '-oProxyCommand=x' is not an address"),
        (["a", "-l@h"], "", "[hosts.a]: user: '-l' is not a user name"),
        (["a"], "hosts = {}\n", "not TOML"),
        (["a"], "[hosts.b]\nprot = 1\n", "[hosts.b]: prot: unknown key"),
    ],
)
def test_a_wrong_table_is_not_written(home: Path, words: list[str], text: str, why: str) -> None:
    own(home).parent.mkdir(parents=True)
    own(home).write_text(text)
    with pytest.raises(Misconfigured) as caught:
        own_inventory.main(["add", *words], None)
    assert why in caught.value.detail and own(home).read_text() == text


def test_a_file_that_cannot_be_written_to(home: Path) -> None:
    own(home).parent.mkdir(parents=True)
    own(home).parent.rename(home / "elsewhere")
    own(home).parent.write_text("a file")
    with pytest.raises(Failure, match="not a directory") as caught:
        own_inventory.main(["add", "a"], None)
    assert caught.value.status == 69
    with pytest.raises(Misconfigured, match="is JSON"):
        own_inventory.main(["add", "a"], Path("hosts.json"))


def test_a_trusted_file_stays_trusted_and_another_is_left_alone(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    near = home / "work" / "inventory.toml"
    near.write_text("[hosts.a]\n")
    own_inventory.main(["add", "b"], None)
    assert near.read_text() == "[hosts.a]\n" and list(load(own(home), {}).hosts) == ["b"]
    assert capfd.readouterr().err.count(f"{near} is not read: you have not trusted it") == 1
    own_inventory.main(["trust"], None)
    own_inventory.main(["add", "c"], None)
    assert paths.find(os.environ) == (str(near), b"[hosts.a]\n\n[hosts.c]\n", None)
    # an edit by hand is not taken along: it is shown first
    near.write_text(near.read_text() + "[hosts.d]\n")
    own_inventory.main(["add", "e"], near)
    assert trust.former(str(near)) == b"[hosts.a]\n\n[hosts.c]\n"
    capfd.readouterr()
    own_inventory.main(["trust"], None)
    said = capfd.readouterr().out
    assert "\n+[hosts.d]\n" in said and "\n+[hosts.e]\n" in said and "\n+[hosts.c]\n" not in said
    named = home / "named.toml"
    own_inventory.main(["add", "f"], named)
    assert named.read_text() == "[hosts.f]\n" and trust.former(str(named)) is None


def test_import_takes_the_names_of_ssh(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(SSH.replace("Include", "Match all\nInclude"))
    (home / ".ssh" / "more.conf").write_text("Host h3\nHost h?\n")
    own(home).parent.mkdir(parents=True)
    own(home).write_text("[hosts.h1]\n")
    own_inventory.main(["import"], None)
    assert own(home).read_text() == '[hosts.h1]\n\n[hosts."h2.lan"]\n\n[hosts.h3]\n'
    said = capfd.readouterr()
    assert said.out == f'{own(home)}: added\n[hosts."h2.lan"]\n\n[hosts.h3]\n'
    assert [line.split(" is ")[0] for line in said.err.splitlines()] == [
        "quine: note: Host any",
        "quine: note: Host böse",
    ]
    own_inventory.main(["import"], None)
    assert capfd.readouterr().out == f"{own(home)}: nothing to add\n"
    (home / ".ssh" / "config").chmod(0o666)
    with pytest.raises(Misconfigured, match="bad permissions"):
        own_inventory.main(["import"], None)


SAME = """
Host db1 db1.example.com
  HostName 10.0.0.2
Host github.com gh
  HostName github.com
Host database
  HostName 10.0.0.2
Host ada-of-db
  HostName 10.0.0.2
  User ada
Host second
  HostName 10.0.0.2
  Port 2222
Host behind
  HostName 10.0.0.2
  ProxyJump web1
Host web1 web2
  User deploy
Host repos
  HostName repos.lan
  User git
Host asks
  HostName 10.0.0.2
Match originalhost asks exec "true"
  Port 2200
"""


def test_import_makes_one_host_of_the_names_of_one_machine(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two would have a command of `each` run twice there. A name that may lead elsewhere is a machine of its own."""
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(SAME)
    own_inventory.main(["import"], None)
    tables = ("ada-of-db", "second", "behind", "web1", "web2", "asks")
    text = own(home).read_text()
    assert text == (
        "# left out of ~/.ssh/config: github.com, gh, repos: git is served there, and no command runs\n\n"
        "[hosts.db1]\n# the same machine: db1.example.com, database\n\n"
    ) + "\n".join(f"[hosts.{name}]\n" for name in tables)
    assert list(load(own(home), {}).hosts) == ["db1", *tables]
    capfd.readouterr()
    # a machine that has a table under any of its names gets no other one
    own(home).write_text(text.replace("db1]", "database]").replace("[hosts.web2]\n", ""))
    own_inventory.main(["import"], None)
    assert capfd.readouterr().out == f"{own(home)}: added\n[hosts.web2]\n"
    own_inventory.main(["import"], None)
    said = capfd.readouterr()
    assert said.out == f"{own(home)}: nothing to add\n"
    assert said.err.count("is left out: git is served there") == 3


def test_of_hosts_that_are_added_at_the_same_time_none_is_lost(home: Path) -> None:
    names = [f"h{number}" for number in range(12)]
    adding = [threading.Thread(target=own_inventory.main, args=(["add", name], None)) for name in names]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert set(load(own(home), {}).hosts) == set(names)


@pytest.mark.parametrize("words", [["add", "a"], ["import"], ["trust"]])
def test_an_agent_allows_itself_no_hosts(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """By the memory file that the kernel shows above it, whatever its environment says."""
    held = os.memfd_create("quine-ledger")
    try:
        plain = ["-m", "quine"]
        marked = [
            "-c",
            "from transport import inherit; inherit.stand_apart(); import quine.__main__ as m; m.main()",
        ]
        for program in (plain, marked):  # a command can say that it is a daemon
            command = [sys.executable, "-P", *program, "hosts", *words]
            env = {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
            done = subprocess.run(command, env=env, capture_output=True)
            assert (done.returncode, done.stdout) == (77, b""), done.stderr
            assert f"quine hosts {words[0]} is not for agents and jobs" in done.stderr.decode()
        assert not in_tree()  # the process itself begins a tree
    finally:
        os.close(held)
    held = inherit.write({"token": "x"})
    monkeypatch.setenv(inherit.VARIABLE, str(held))
    try:
        with pytest.raises(Denied):
            own_inventory.main(words, None)
    finally:
        os.close(held)
    assert not own(home).exists()

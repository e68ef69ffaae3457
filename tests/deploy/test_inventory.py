"""The inventory: accepted entries, errors for refused ones, and the meaning of a WHERE."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from deploy import paths, trust
from deploy.host import KEYS, Host
from deploy.inventory import MOST_FOUND, ConfigError, Inventory, jump_of, load
from deploy.onward import tables
from quine.base.cli_options import MOUNT, MOUNT_NEEDED, MOUNT_WANTED
from quine.remote.placement import settle
from tests.support.loads import idle, jobs
from transport import rlimits
from transport.errors import Denied, Misconfigured, NoSuchHost, Unreachable
from transport.spawn import Spawn

ROOT = Path(__file__).parents[2]

FLEET = """
[defaults]
user = "me"
slots = 4
[hosts.gpu1]
tags = ["gpu", "a100"]
[hosts.gpu2]
tags = ["gpu"]
slots = 2
[hosts.bad3]
tags = ["gpu"]
[hosts.db1]
tags = ["db"]
slots = 0
"""


def inventory(tmp_path: Path, text: str) -> Inventory:
    path = tmp_path / "inventory.toml"
    path.write_text(text)
    return load(path, {})


@pytest.fixture
def fleet(tmp_path: Path) -> Inventory:
    return inventory(tmp_path, FLEET)


def names(hosts: list[Host]) -> str:
    return " ".join(host.name for host in hosts)


def test_the_example_names_every_key_and_is_valid() -> None:
    path = ROOT / "inventory.example.toml"
    known = load(path, {})
    assert set(known.hosts) == {"bastion", "gpu1", "db1", "old", "box", "cluster"}
    text = path.read_text()
    for key in set(KEYS) - {"name"}:
        assert re.search(rf"^{key} = ", text, re.MULTILINE), f"{key} is not in the example"


def test_defaults_are_overridden_by_a_host(fleet: Inventory) -> None:
    assert [host.slots for host in fleet.hosts.values()] == [4, 2, 4, 0]
    assert fleet.host("gpu2").user == "me"
    bare = Host(name="x")
    assert (bare.destination, bare.slots, bare.workdir, bare.lease) == ("x", 0, "~/quine", 600)


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("gpu1", "gpu1"),
        ("any", "gpu1 gpu2 bad3 db1"),
        ("@gpu", "gpu1 gpu2 bad3"),
        ("@gpu!bad3", "gpu1 gpu2"),
        ("@gpu!@a100", "gpu2 bad3"),
        ("db1,gpu1", "gpu1 db1"),
        ("!bad3", "gpu1 gpu2 db1"),
        ("!bad3!db1", "gpu1 gpu2"),
        ("@gpu,@db!bad3", "gpu1 gpu2 db1"),
        ("@gpu!bad3,@db", "gpu1 gpu2 db1"),
        ("any!local", "gpu1 gpu2 bad3 db1"),
        (" gpu1 , gpu2 ", "gpu1 gpu2"),
    ],
)
def test_where_means(fleet: Inventory, where: str, meant: str) -> None:
    assert names(fleet.matching(where)) == meant


@pytest.mark.parametrize("where", ["gpu9", "@cpu", "", ",", "gpu1!gpu1", "any!any", "!nobody", "gpu1,nobody"])
def test_where_that_means_nobody_names_those_it_knows(fleet: Inventory, where: str) -> None:
    with pytest.raises(NoSuchHost, match="known: gpu1, gpu2, bad3, db1; tags: @a100, @db, @gpu") as caught:
        fleet.matching(where)
    assert caught.value.status == 69


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("gpu11", "gpu1"),
        ("GPU1", "gpu1"),
        ("all", "any"),
        ("ALL", "any"),
        ("*", "any"),
        ("gpu1 gpu2", "gpu1,gpu2"),
        ("@db gpu1", "@db,gpu1"),
        ("@GPU", "@gpu"),
    ],
)
def test_a_near_miss_is_guessed(fleet: Inventory, where: str, meant: str) -> None:
    with pytest.raises(NoSuchHost) as caught:
        fleet.matching(where)
    assert caught.value.hint == f"did you mean {meant}?"
    assert fleet.matching(meant)


def test_this_machine_is_never_mixed_in(fleet: Inventory) -> None:
    with pytest.raises(NoSuchHost, match="mixes this machine"):
        fleet.select("local,gpu1", idle)
    with pytest.raises(NoSuchHost, match="local is this machine"):
        fleet.select("local", idle)


def test_without_an_inventory_nobody_is_known() -> None:
    for where in ("any", "@gpu", "me@a:22"):
        with pytest.raises(NoSuchHost, match=r"^there is no inventory, so '.*' means no host"):
            Inventory({}).select(where, idle)
    with pytest.raises(NoSuchHost, match=r"^no such host: 'db1'; there is no inventory"):
        Inventory({}).select("db1", idle)


def test_select_takes_the_one_with_most_free_slots(fleet: Inventory) -> None:
    assert fleet.select("@gpu", idle).name == "gpu1"
    assert fleet.select("@gpu", jobs(gpu1=1)).name == "bad3"
    assert fleet.select("@gpu", jobs(gpu1=3, bad3=3)).name == "gpu2"
    assert fleet.select("any", jobs(db1=100)).name == "db1", "no limit is most"
    assert fleet.select("@gpu", jobs(gpu1=5, gpu2=2, bad3=9)).name == "gpu2", "all are full: the least"
    assert fleet.select("any", jobs(db1=1 << 30)).name != "db1", "unless it would refuse the job"


def test_few_meanings_of_where_are_remembered(fleet: Inventory) -> None:
    for number in range(2 * MOST_FOUND):
        where = "gpu1" + ",gpu2" * (number % 50) + ",@gpu" * (number // 50)
        assert fleet.select(where, idle).name == "gpu1"
    assert len(fleet._found) <= MOST_FOUND


def test_a_host_that_needs_what_is_not_built_takes_no_part_in_the_choice(tmp_path: Path) -> None:
    known = inventory(
        tmp_path,
        "[hosts.a]\ntransport = 'slurm'\n[hosts.b]\nlimits = { pids = 9 }\n"
        "[hosts.c]\ninference = 'direct'\nslots = 2\n[hosts.d]\nslots = 1\n",
    )
    assert known.select("any", idle).name == "c"
    for name, why in (
        ("a", 'transport = "slurm" is not built yet'),
        ("b", "limit pids needs a cgroup: not built yet"),
    ):
        with pytest.raises(Misconfigured) as caught:
            known.select(name, idle)
        assert (caught.value.status, caught.value.detail, caught.value.host) == (2, why, name)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("1k", 1024), ("8G", 8 << 30), ("8GiB", 8 << 30), ("8gb", 8 << 30), ("1.5G", 3 << 29)],
)
def test_every_size_that_an_inventory_takes_can_be_set(tmp_path: Path, text: str, number: int) -> None:
    """Inventory and node use one table of names and one parser: a valid entry is no error on the host."""
    for name in rlimits.RLIMITS:
        known = inventory(tmp_path, f"[hosts.a]\nlimits = {{ {name} = '{text}' }}")
        spawn = Spawn(["x"])
        settle(spawn, known.host("a"))
        assert rlimits.parse(spawn.limits) == [(rlimits.number(name), number)]


def test_a_mount_of_the_defaults_is_one_that_a_host_can_do_without(tmp_path: Path) -> None:
    """That of a host's own table is needed, as that of an option, which it does not weaken."""
    known = inventory(
        tmp_path, "[defaults]\nmount = true\n[hosts.a]\n[hosts.b]\nmount = true\n[hosts.c]\nmount = false"
    )
    sent = tmp_path / "inventory.json"
    sent.write_text(json.dumps(tables(known.host("a"), [known.host(name) for name in "abc"], known)))
    for each in (known, load(sent, {})):
        found = []
        for name, spawn in (
            *((name, Spawn(["x"])) for name in "abc"),
            ("a", Spawn(["--", "work"], own=True, env={MOUNT: MOUNT_NEEDED})),
            ("a", Spawn(["run", "--mount", "--", "x"], own=True)),
        ):
            settle(spawn, each.host(name))
            found.append(("--mount" in spawn.argv, spawn.env.get(MOUNT)))
        assert found == [
            *((True, MOUNT_WANTED), (True, MOUNT_NEEDED), (False, None)),
            *((False, MOUNT_NEEDED), (True, None)),
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hosts.a]\nprot = 1", r"\[hosts.a\]: prot: unknown key"),
        ("[defaults]\nuse = 1", r"\[defaults\]: use: unknown key"),
        ("[host.a]", r"\[host\]: unknown table"),
        ("hosts = 1", "hosts: must be a table"),
        ("[hosts]\na = 1", r"\[hosts.a\]: must be a table"),
        ("[hosts.a]\nport = 0", r"\[hosts.a\]: port: less than 1"),
        ("[hosts.a]\nport = '22'", r"\[hosts.a\]: port: not a whole number"),
        ("[hosts.a]\nport = true", r"\[hosts.a\]: port: not a whole number"),
        ("[hosts.a]\nslots = -1", r"\[hosts.a\]: slots"),
        ("[hosts.a]\nlease = inf", r"\[hosts.a\]: lease"),
        ("[hosts.a]\ntags = 'gpu'", r"\[hosts.a\]: tags"),
        ("[hosts.a]\ntags = [1]", r"\[hosts.a\]: tags.0"),
        ("[hosts.a]\ntags = ['a,b']", r"\[hosts.a\]: tags.0"),
        (
            "[hosts.a]\naddress = '-oProxyCommand=x'",
            r"\[hosts.a\]: address: '-oProxyCommand=x' is not an address",
        ),
        ('[hosts.a]\naddress = "h\\u0007"', r"\[hosts.a\]: address"),
        ("[hosts.a]\naddress = 'a\\nb'", r"\[hosts.a\]: address"),
        ("[hosts.a]\nuser = '-l'", r"\[hosts.a\]: user"),
        ("[hosts.-a]", "is not a name"),
        ("[hosts.'a b']", "is not a name"),
        ('[hosts."a\\u001b"]', "is not a name"),
        ("[hosts.any]", "any is a word of WHERE"),
        ("[hosts.local]", "local is a word of WHERE"),
        ("[hosts.a]\nname = 'b'", r"\[hosts.a\]: name: unknown key"),
        ("[hosts.a]\nlimits = { ram = 1 }", "unknown limit 'ram'; known are .*stack, mem, pids"),
        ("[hosts.a]\nlimits = { mem = 'much' }", "'much' is neither a number nor a size"),
        ("[hosts.a]\nlimits = { mem = -1 }", "limit mem: '-1' is neither"),
        ("[hosts.a]\nlimits = { as = '1.5' }", "limit as: '1.5' is neither"),
        ("[hosts.a]\nlimits = { as = '9999999T' }", "limit as: '9999999T' is too much"),
        ("[hosts.a]\nenv = { A = 1 }", r"\[hosts.a\]: env.A"),
        ("[hosts.a]\nenv = { 'A=B' = '1' }", "cannot be an environment variable"),
        ("[hosts.a]\ninference = 'maybe'", r"\[hosts.a\]: inference"),
        ("[hosts.a]\ntransport = 'rsh'", r"\[hosts.a\]: transport"),
        ("[hosts.a]\ntransport = 'command'", r'\[hosts.a\]: command: transport = "command" needs one'),
        ("[hosts.a]\ntransport = 'command'\ncommand = []", r"\[hosts.a\]: command: .* needs one"),
        ("[hosts.a]\ntransport = 'command'\ncommand = 'sh'", r"\[hosts.a\]: command: .*list"),
        (
            "[hosts.a]\ntransport = 'command'\ncommand = ['sh']\nport = 1",
            r"\[hosts.a\]: port: .* does not use",
        ),
        ("[hosts.a]\ncommand = ['sh']", r'\[hosts.a\]: command: only transport = "command" has one'),
        ("[hosts.a]\nidentity = ''", r"\[hosts.a\]: identity"),
        ("[hosts.a]\njump = 'b'", r"\[hosts.a\]: jump: no such host: 'b'"),
        ("[hosts.a]\njump = 'me@h:99999'", r"\[hosts.a\]: jump: 'me@h:99999'"),
        ("[hosts.a]\njump = '-x@h'", r"\[hosts.a\]: jump"),
        ("[hosts.a]\njump = 'b'\n[hosts.b]\njump = 'a'", "goes in a circle: a -> b -> a"),
        ("[hosts.a]\nmay_fork = ['@gpu']", r"\[hosts.a\]: may_fork: no host has the tag @gpu"),
        ("[hosts.a]\n[hosts.a]", "not TOML: .*twice"),
        ("[hosts.a", "not TOML: expected"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        inventory(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/inventory.toml: ")
    assert caught.value.status == 2


def test_an_inventory_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such inventory"):
        load(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="no such inventory"):
        load(None, {"QUINE_INVENTORY": str(tmp_path / "none.toml")})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot be read"):
        load(tmp_path / "binary.toml", {})


def test_where_the_inventory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path / "home")}
    assert paths.find(env).path is None
    assert load(None, env).hosts == {}
    config = tmp_path / "home" / ".config" / "quine" / "inventory.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[hosts.far]")
    assert paths.find(env).path == str(config)
    near = tmp_path / "inventory.toml"
    near.write_text("[hosts.near]")
    assert list(load(None, env).hosts) == ["far"]
    trust.trust(str(near), near.read_bytes(), env)
    assert list(load(None, env).hosts) == ["near"]
    assert paths.find({**env, "QUINE_INVENTORY": "~/x"}).path == str(Path("~/x").expanduser())


SSH = """
Host prod *.lan web[1] !not
  User ada
  Include below
Host GPU gpu1
  HostName 10.0.0.9
"""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """An inventory beside a configuration of ssh, which names more hosts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(SSH)
    (tmp_path / ".ssh" / "below").write_text("Host never\nHost prod\n Port 7\n")
    return inventory(tmp_path, FLEET)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("prod", "prod"), (" prod , db1", "db1 prod"), ("GPU", "GPU"), ("gpu1", "gpu1"), ("any!prod", ""),
        ("me@10.0.0.1", "me@10.0.0.1"), ("me@[::1]:2200,prod", "me@[::1]:2200 prod"), ("a@b@c:22", "a@b@c:22"),
        ("prod,db1!prod", "db1"),
    ],
)  # fmt: skip
def test_a_where_that_was_typed_names_hosts_without_a_table(named: Inventory, where: str, names: str) -> None:
    found = {host.name for host in named.naming(where).matching(where)}
    assert found == set(names.split()) if names else found == set(named.hosts)


def test_a_host_without_a_table_is_the_one_that_was_named(named: Inventory) -> None:
    host = named.naming("me@[::1]:2200").host("me@[::1]:2200")
    assert (host.user, host.address, host.port, host.may_fork) == ("me", "::1", 2200, ())
    for where in ("me@gpu1", "me@gpu1:22"):  # which the table of gpu1 would not reach
        with pytest.raises(NoSuchHost) as caught:
            named.naming(where).matching(where)
        assert "in the table [hosts.gpu1] of" in caught.value.hint
    both = named.naming("prod,me@far")
    assert both.host("prod") == Host("prod")  # all else by ssh's configuration
    for where in ("any", "@gpu", "!gpu1"):
        assert {host.name for host in both.matching(where)} <= named.hosts.keys()
    # from there an agent may use that host, and no other
    idle_there = both.select("prod", idle, asking="prod")
    assert idle_there.name == "prod"
    for where in ("me@far", "gpu1"):
        with pytest.raises(Denied, match="allowed: prod"):
            both.select(where, idle, asking="prod")


@pytest.mark.parametrize(
    "where",
    [
        "x.lan",
        "*.lan",
        "web1",
        "not",
        "never",
        "PROD",
        "gpu",
        "-o@h",
        "me@-oX",
        "me@h:0",
        "me@h:99999",
        "me@",
        "@h",
    ],
)
def test_patterns_and_slips_name_nothing(named: Inventory, where: str) -> None:
    with pytest.raises(NoSuchHost):
        named.naming(where).matching(where)


def test_a_configuration_that_cannot_be_used_is_told_where_it_would_count(
    named: Inventory, tmp_path: Path
) -> None:
    (tmp_path / ".ssh" / "config").chmod(0o666)
    assert named.naming("any,gpu1") is named
    with pytest.raises(Unreachable, match="bad permissions"):
        named.naming("prod")


def test_a_jump_is_a_host_or_a_place(tmp_path: Path) -> None:
    known = inventory(tmp_path, "[hosts.a]\njump = 'b'\n[hosts.b]\njump = 'me@[::1]:2200'\n[hosts.c]")
    assert jump_of(known.host("a"), known) == known.host("b")
    place = jump_of(known.host("b"), known)
    assert place is not None and (place.user, place.destination, place.port) == ("me", "::1", 2200)
    assert jump_of(known.host("c"), known) is None


@pytest.mark.parametrize(
    "line",
    [
        "cache = 'relative/x'", "cache = '~me/x'", "cache = '/a b'", 'cache = "/a$(id)"', 'cache = "/a\'b"',
        "cache = '/a!b'",
        "binary = 'quine'", "binary = '/opt/a b'",
        "python = '-c'", "python = 'python3 -x'", "python = '$HOME/python'", "modules = ['a;b']", "modules = ['']",
        'cache = "/a\\nb"',
    ],
)  # fmt: skip
def test_what_reaches_a_shell_over_there_is_plain(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError):
        inventory(tmp_path, f"[hosts.a]\n{line}\n")


def test_places_and_pythons(tmp_path: Path) -> None:
    text = "[hosts.a]\ncache = '/scratch/me/q'\npython = '~/py/bin/python3.12'\nmodules = ['python/3.12', 'gcc']\n"
    host = inventory(tmp_path, text).host("a")
    assert (host.cache, host.python, host.modules) == (
        "/scratch/me/q",
        "~/py/bin/python3.12",
        ("python/3.12", "gcc"),
    )


def test_keys_of_ssh_in_the_defaults_do_not_hinder_a_command(tmp_path: Path) -> None:
    text = "[defaults]\nuser = 'me'\n[hosts.a]\n[hosts.b]\ntransport = 'command'\ncommand = ['sh']\n"
    known = inventory(tmp_path, text)
    assert known.host("b").command == ("sh",) and not known.host("b").unbuilt()

"""The inventory by which one host dials others: no key, no command of this machine, and ways as resolved here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.host import KEYS, Host
from deploy.inventory import Inventory, load
from deploy.onward import OURS, tables
from transport.errors import Misconfigured

CONFIG = """\
Host short
  HostName long.example
  Port 2201
  User ada
Host inner
  ProxyJump gate
Host gate
  HostName gate.example
Host login
  ProxyJump gate
Host deep
  ProxyJump gate,second
Host chained
  ProxyJump inner
Host odd
  ProxyCommand nc %h %p
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(CONFIG)


def made(hosts: dict[str, dict[str, Any]], start: str, name: str) -> dict[str, Any]:
    every = {each: Host(each, user="me", **keys) for each, keys in hosts.items()}
    inventory = Inventory(every)
    found = tables(every[start], [every[name]], inventory)
    (table,) = found["hosts"].values()
    return table  # type: ignore[no-any-return]


def test_names_are_resolved_and_keys_stay() -> None:
    every = {"start": Host("start"), "short": Host("short", identity="~/.ssh/key", slots=3, tags=("a", "b"))}
    found = tables(every["start"], [every["short"]], Inventory(every))
    way = {"transport": "openssh", "user": "ada", "address": "long.example", "port": 2201}
    assert found == {"hosts": {"short": {"slots": 3, "tags": ("a", "b"), **way}}}


def test_a_host_without_a_table_gets_one_that_the_other_end_reads(tmp_path: Path) -> None:
    known = Inventory({"start": Host("start")}).naming("bob@short:7,short")
    found = tables(known.host("start"), [known.host("bob@short:7"), known.host("short")], known)
    (tmp_path / "inventory.json").write_text(json.dumps(found))
    there = load(tmp_path / "inventory.json", {})
    assert [(host.name, host.user, host.address, host.port) for host in there.hosts.values()] == [
        ("bob@short:7", "bob", "long.example", 7),
        ("short", "ada", "long.example", 2201),
    ]
    assert [host.name for host in there.matching("any!short")] == ["bob@short:7"]


@pytest.mark.parametrize(
    ("start", "name", "jump"),
    [
        ("start", "inner", "me@gate.example:22"),
        ("gate", "inner", None),  # it is the gate
        ("login", "inner", None),  # it is behind the same gate
        ("start", "jumped", "me@second.example:2202"),
        ("second", "jumped", None),
        ("login", "deep", "me@second:22"),
    ],
)
def test_a_jump_host_on_the_way_to_the_dialling_one_is_left_out(
    start: str, name: str, jump: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transport.carrier.ssh.config.Config.local_user", "me")
    hosts: dict[str, dict[str, Any]] = {each: {} for each in ("start", "gate", "login", "inner", "deep")}
    hosts |= {"second": {"address": "second.example", "port": 2202}, "jumped": {"jump": "second"}}
    assert made(hosts, start, name).get("jump") == jump


def test_the_dialling_host_reaches_itself_without_ssh() -> None:
    assert made({"start": {"slots": 2}}, "start", "start") == {
        "slots": 2,
        "transport": "command",
        "command": ["env"],
    }


@pytest.mark.parametrize(
    ("name", "keys", "why"),
    [
        ("odd", {}, "it is reached by a ProxyCommand of this machine"),
        ("deep", {}, "it is behind 2 jump hosts, and start can pass one"),
        ("chained", {}, "it is behind inner, which is itself reached by a ProxyJump"),
        ("last", {"jump": "odd"}, "it is reached by a ProxyCommand of this machine"),
    ],
)
def test_a_way_that_is_of_this_machine_is_refused(name: str, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made({"start": {}, "odd": {}, name: keys}, "start", name)
    assert (str(refused.value), refused.value.status) == (why, 2) and refused.value.hint


def test_each_key_of_a_table_is_of_the_host_or_of_the_way() -> None:
    """A new key has to be sorted: one that names a file of this machine must not go."""
    about_the_host = {
        *("tags", "slots", "workdir", "cache", "binary", "python", "modules", "same_paths", "env", "limits"),
        *(
            "inference",
            "fs",
            "mount",
            "about",
            "lease",
            "partition",
            "nodes",
            "time",
            "constraint",
            "account",
        ),
    }
    assert set(KEYS) == about_the_host | set(OURS)


def test_an_inventory_in_json_is_read_as_one_in_toml(tmp_path: Path) -> None:
    toml, text = tmp_path / "inventory.toml", tmp_path / "inventory.json"
    toml.write_text('[defaults]\nslots = 2\n[hosts.a]\ntags = ["x", "y"]\nenv = { K = "v" }\n')
    text.write_text(
        json.dumps({"defaults": {"slots": 2}, "hosts": {"a": {"tags": ["x", "y"], "env": {"K": "v"}}}})
    )
    assert load(text, {}).hosts == load(toml, {}).hosts
    for wrong in ("{", "[]", '{"hosts": {"a": {"slots": "2"}}}', '{"other": {}}'):
        text.write_text(wrong)
        with pytest.raises(Misconfigured) as refused:
            load(text, {})
        assert str(refused.value).startswith(str(text))

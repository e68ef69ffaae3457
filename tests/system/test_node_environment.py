"""The environment of a node: the user's, whoever starts it, with what every login has."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from quine.remote.node_entry import complete_login
from tests.lab import Lab
from tests.support.agents import OK, QUINE, Agents, Started, says, sh, until
from tests.support.rights import ordinary
from transport import address, node_socket


@pytest.fixture
def runtime(agents: Agents) -> Iterator[str]:
    """A runtime directory without a node; its name is short, because of the socket."""
    folder = tempfile.mkdtemp(prefix="qn-")
    agents.env["XDG_RUNTIME_DIR"] = folder
    yield folder
    agents.quine("node", "--stop", "--force")
    shutil.rmtree(folder)


@pytest.mark.parametrize("before", ["", "env -u QUINE_CREDENTIALS_FD "])
def test_a_command_does_not_choose_the_carriers(agents: Agents, runtime: str, before: str) -> None:
    places = {name: agents.directory / name for name in ("good", "evil")}
    for place in places.values():
        place.mkdir()
        program = place / "carrier"
        program.write_text(f"#!/bin/sh\ntouch {place}/ran\nexit 1\n")
        program.chmod(0o700)
    inventory = agents.directory / "hosts.toml"
    inventory.write_text('[hosts.box]\ntransport = "command"\ncommand = ["carrier"]\n')
    env = {"PATH": f"{places['good']}:{os.environ['PATH']}", "QUINE_INVENTORY": str(inventory)}
    quine = f'{before}env PATH="{places["evil"]}:$PATH" quine run --on box -- true; true'
    done = agents.run(says(sh(quine)), says(OK), env=env)
    assert done.returncode == 0
    assert [name for name, place in places.items() if Path(place / "ran").exists()] == ["good"], (
        agents.results()
    )


@pytest.mark.parametrize("way", ["by hand", "by a command"])
def test_a_node_is_open_to_its_user_whatever_secrets_started_it(
    agents: Agents, runtime: str, way: str
) -> None:
    """Else its mark is not seen by an ordinary user, whose jobs there are taken for processes without a node."""
    agents.env |= {"https_proxy": "http://ada:pw@127.0.0.1:9", "MY_TOKEN": "t-1234567"}
    env = agents.env

    def below(*words: str) -> list[str]:
        more = {"cwd": agents.directory, "env": env, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([*ordinary(), *words], check=True, **more).stdout.split()  # type: ignore[call-overload]

    if way == "by hand":
        with Started([*ordinary(), *QUINE, "node"], env=env, stderr=subprocess.DEVNULL) as node:
            until(lambda: list(Path(runtime).rglob("*.sock")))
            shown = below("ls", "-l", f"/proc/{node.pid}/fd")
            node.terminate()
    else:
        below(*QUINE, "run", "--on", "local", "--", "true")
        facts = json.loads(agents.quine("node", "--status", "--json").stdout)
        shown = below("ls", "-l", f"/proc/{facts['pid']}/fd")
    assert "/memfd:quine-apart" in shown


def test_a_way_without_a_login_has_its_variables_too(own_lab: Callable[..., Lab]) -> None:
    """As sshd gives them. GNU parallel starts `$SHELL script` over there."""
    lab = own_lab(["h1"])
    lab.by_command("bare", "h1")
    user = pwd.getpwuid(os.getuid())
    shown = lab.run(
        ["run", "--on", "bare", "--", "sh", "-c", 'echo "$SHELL $USER $LOGNAME $HOME"'], check=True
    )
    assert shown.stdout.decode().split() == [user.pw_shell, user.pw_name, user.pw_name, str(lab["h1"].home)]


@pytest.mark.parametrize(
    ("of", "shell"), [("/bin/zsh", "/bin/zsh"), ("/usr/sbin/nologin", "/bin/sh"), ("", "/bin/sh")]
)
def test_an_account_that_nobody_logs_in_to_has_a_shell(
    monkeypatch: pytest.MonkeyPatch, of: str, shell: str
) -> None:
    user = pwd.struct_passwd(("u", "x", 7, 7, "", "/u", of))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    monkeypatch.setattr(os, "environ", {"USER": "given", "LOGNAME": ""})
    complete_login()
    assert os.environ == {"USER": "given", "LOGNAME": "u", "HOME": "/u", "SHELL": shell}


def test_a_user_without_a_name_has_what_the_way_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "environ", {"HOME": "/"})
    complete_login()
    assert os.environ == {"HOME": "/"}


@pytest.mark.parametrize("missing", ["", None])
def test_a_client_without_a_home_finds_its_node(monkeypatch: pytest.MonkeyPatch, missing: str | None) -> None:
    """The node had that of the account, and listened at a name of which the client did not know."""
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    names = node_socket.node_name(), address.user_directory("cache")
    monkeypatch.delenv("HOME")
    if missing is not None:
        monkeypatch.setenv("HOME", missing)
    assert (node_socket.node_name(), address.user_directory("cache")) == names

"""Hosts that have no table, named by a WHERE of the user: by ssh's configuration, or as user@host:port. Real sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.lab import CARRIER
from tests.support.agents import OK, call, says, sh
from tests.support.remote_agents import environment, results

pytestmark = pytest.mark.skipif(CARRIER != "ssh", reason="a host without a table has no carrier of its own")

NONE = {"QUINE_INVENTORY": None}
NAME = ["sh", "-c", "echo $QUINE_NODE_NAME"]


@pytest.fixture
def place(lab: Lab) -> Iterator[str]:
    """h1 as user@host:port; ssh's configuration names it `named`, and knows the way to the former."""
    host, config = lab["h1"], lab.home / ".ssh" / "config"
    before = config.read_text()
    config.write_text(
        f"IdentityFile {lab.identity}\n{before}"
        f"Host named name*\n HostName {host.address}\n Port {host.port}\n User {host.user}\n"
    )
    try:
        yield f"{host.user}@{host.address}:{host.port}"
    finally:
        config.write_text(before)


def test_a_host_is_used_without_an_inventory(lab: Lab, place: str) -> None:
    user, _, rest = place.partition("@")
    for words, said in (
        (["run", "--on", "named", "--", *NAME], "named\n"),
        (["run", "--on", place, "--", *NAME], f"{place}\n"),
        (["run", "--on", f"any,{place}", "--", *NAME], f"{place}\n"),
        (["rsh", "named", "echo $QUINE_NODE_NAME"], "named\n"),
        (["rsh", "-p", rest.partition(":")[2], f"{user}@{rest.partition(':')[0]}", *NAME[2:]], f"{place}\n"),
        (["xargs", "--on", "named", "-k", "--", "echo", "{}", ":::", "1", "2"], "1\n2\n"),
        (["each", "named", "--", *NAME], "==> named <==\nnamed\n"),
        (["ps", "--on", "named"], ""),
        (["hosts", "check", "named", "--json"], '{"name":"named"'),
    ):
        done = lab.run(words, env=NONE)
        assert done.returncode == 0, (words, done.stderr)
        assert done.stdout.decode().startswith(said), (words, done.stdout)
    job = lab.run(["run", "--detach", "--on", "named", "--", "sh", "-c", "exit 7"], env=NONE).stdout.decode()
    done = lab.run(["wait", job.strip()], env=NONE)  # its host is remembered, as it was named
    assert (done.returncode, done.stderr) == (7, b"")
    for where, why in (
        ("any", "there is no inventory"),
        ("names", "no such host: 'names'"),
        ("Named", "no such host: 'Named'"),
        ("@named", "there is no inventory"),
    ):
        done = lab.run(["run", "--on", where, "--", "true"], env=NONE)
        assert done.returncode == 69 and why in done.stderr.decode(), (where, done.stderr)
    done = lab.run(["run", "named", "--", *NAME], env=NONE)
    assert done.returncode == 127 and b"hint: to run it on that host: quine run --on named -- " in done.stderr
    for words in (["run", "--on", "names"], ["xargs", "--on", "names"], ["each", "names"]):
        done = lab.run([*words, "--", "true"], env=NONE)
        error, hint = done.stderr.decode().splitlines()
        assert "; ~/.ssh/config names named" in error and hint == "quine: hint: did you mean named?"


def test_below_a_job_there_are_the_hosts_that_the_user_named(lab: Lab, place: str) -> None:
    inner = ["quine", "run", "--on", "named", "--", *NAME]
    # the job knows its own host, and no other
    assert lab.run(["run", "--on", "named", "--", *inner], env=NONE).stdout == b"named\n"
    listed = lab.run(["run", "--on", "named", "--", "quine", "hosts"], env=NONE).stdout.decode()
    assert [line.split()[0] for line in listed.splitlines()] == ["HOST", "named"]
    for where, other in (("named", place), (place, "named")):
        denied = lab.run(["run", "--on", where, "--", "quine", "run", "--on", other, "--", "true"], env=NONE)
        assert denied.returncode == 77, denied.stderr
        assert f"may_fork does not allow {other!r} from here; allowed: {where}" in denied.stderr.decode()
    # here the configuration of ssh names nothing to a job, whatever it makes of its environment
    for before in ([], ["env", "-u", "QUINE_CREDENTIALS_FD"]):
        done = lab.run(["run", "--on", "local", "--", *before, *inner], env=NONE)
        assert done.returncode == 69, done.stderr
        assert b"no such host: 'named'" in done.stderr and done.stdout == b""
        assert done.stderr.endswith(b"the user adds some: quine hosts import\n")


def test_an_agent_goes_there_and_may_fork_to_that_host(lab: Lab, place: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = environment(
        lab,
        data,
        says(call("fork", intent="child", host="named", wait=True), match="^look"),
        says(call("fork", intent="child", host=place, wait=True), match="^look"),
        says(sh("echo $QUINE_NODE_NAME >&4"), match="^look"),
        says(OK, match="^look"),
        says(OK, match="^child"),
        says(sh("echo item >&4"), match="^item"),
        says(OK, match="^item"),
    )
    done = lab.run(["--on", "named", "look"], env={**env, **NONE})
    assert (done.returncode, done.stdout) == (0, b"named\n"), done.stderr
    allowed, denied = results(data, "look")[:2]
    assert "[EXIT CODE] 0\n" in allowed and f"may_fork does not allow {place!r} from here" in denied
    done = lab.run(["xargs", "--on", "named", "item {}", ":::", "1"], env={**env, **NONE})
    assert (done.returncode, done.stdout) == (0, b"item\n"), done.stderr
    for words, there in (
        (["--on", "named", "item 2"], []),
        (["run", "--on", place, "--", "true"], ["--on", place]),
    ):
        at = 1 if words[0] == "run" else 0
        job = lab.run([*words[:at], "--detach", *words[at:]], env={**env, **NONE}, check=True).stdout.decode()
        done = lab.run(["wait", *there, job.strip()], env={**env, **NONE})
        assert (done.returncode, done.stderr) == (0, b""), words


def test_an_agent_here_has_the_hosts_of_the_inventory_alone(lab: Lab, place: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = environment(
        lab,
        data,
        says(
            sh(f"quine run --on named -- true; echo $?; env -i {os.environ.get('X', '')} HOME=$HOME PATH=$PATH "
               "XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR quine run --on named -- true; echo $?"),
            call("fork", intent="x", host="named", wait=True),
            match="^look",
        ),
        says(OK, match="^look"),
    )  # fmt: skip
    assert lab.run(["look"], env={**env, **NONE}).returncode == 0
    shell, forked = results(data, "look")[:2]
    assert "[STDOUT]\n69\n69\n" in shell
    assert "no such host: 'named'" in forked and "the user adds some: quine hosts import" in forked + shell

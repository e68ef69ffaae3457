"""The files tier wherever an agent or a command is: on a host, on a host of a host, moved there, detached, direct."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import OK, QUINE, Agents, call, says, sh, until
from tests.support.remote_agents import environment, results, warm

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
PROGRAM = """import json, os, sys
sys.path.insert(0, sys.argv[1])
from quine.files.select import tier_here
tier = tier_here()
verb, path = sys.argv[2], sys.argv[3]
if verb in ("put", "all"):
    with tier.create(path) as writer:
        writer.write(sys.stdin.buffer.read())
        writer.commit()
if verb == "extend":
    with tier.open(path) as reader, tier.create(sys.argv[4]) as writer:
        writer.write(b"".join(iter(reader.read, b"")) + sys.argv[5].encode())
        writer.commit()
if verb in ("get", "all"):
    with tier.open(path) as reader:
        for block in iter(reader.read, b""):
            sys.stdout.buffer.write(block)
if verb in ("about", "all", "extend"):
    sys.stdout.flush()
    print(json.dumps({"kind": type(tier).__name__, "url": tier.url_of(path), "fs": os.environ.get("QUINE_FS")}))
"""


def files(*words: str) -> str:
    """A command that does this with the tier of where it runs."""
    return shlex.join([sys.executable, "-P", "-c", PROGRAM, str(ROOT), *words])


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-c", PROGRAM, str(ROOT), *words]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def reach(lab: Lab) -> Lab:
    lab.alias("f2", "h2")
    lab.alias("f1", "h1", may_fork=["f2"])
    warm(lab, "f1", "f2")
    return lab


# -- commands ----------------------------------------------------------------------------------------


def test_a_command_on_a_host_has_the_tier_of_its_caller(lab: Lab, root: Path, data: Path) -> None:
    for options, env, where in (
        ([], {"QUINE_FS": f"origin:{root}"}, root),
        (["--fs", f"origin:{root}"], {}, root),
        (["--fs", "origin:in it"], {}, lab.work / "in it"),
        ([], {"QUINE_DATA_DIR": str(data)}, data / "fs"),
    ):
        words = ["run", *options, "--on", "h1", "--"]
        done = lab.run([*words, *command("all", "a/b")], env=env, input=b"\0material\xff")
        assert (done.returncode, done.stderr) == (0, b"")
        assert (where / "a" / "b").read_bytes() == b"\0material\xff"
        got, told = done.stdout[:10], json.loads(done.stdout[10:])
        assert got == b"\0material\xff", "and is read again over there"
        assert (told["kind"], told["fs"]) == ("Remote", None)
        assert told["url"].startswith("file://") and Path(told["url"][7:]) == where / "a" / "b"


def test_a_command_here_has_it_too(lab: Lab, root: Path) -> None:
    env = {"QUINE_FS": f"origin:{root}"}
    for words, kind in ((["run"], "Unreserved"), (["run", "--on", "local"], "Remote")):
        done = lab.run([*words, "--", *command("all", "a")], env=env, input=words[-1])
        assert (done.returncode, done.stderr) == (0, b"") and (root / "a").read_text() == words[-1]
        assert json.loads(done.stdout.removeprefix(words[-1].encode()))["kind"] == kind
    done = lab.run(["run", "--fs", "origin:x", "--", "sh", "-c", "echo $QUINE_FS"], check=True)
    assert done.stdout.decode().strip() == f"origin:{lab.work}/x"


def test_a_command_of_a_command(lab: Lab, root: Path) -> None:
    """A proxy that is itself a job asks its own origin."""
    inner = ["quine", "run", "--on", "local", "--", *command("put", "deep")]
    env = {"QUINE_FS": f"origin:{root}"}
    done = lab.run(["run", "--on", "h1", "--", *inner], env=env, input="material")
    assert (done.returncode, done.stderr) == (0, b"") and (root / "deep").read_text() == "material"


def test_a_store_that_cannot_be_opened_is_told_over_there(lab: Lab) -> None:
    words = ["run", "--on", "h1", "--fs", "s3://", "--", *command("get", "a")]
    done = lab.run(words)
    assert (
        done.returncode == 1 and b"no name of a bucket" in done.stderr and b"Misconfigured" not in done.stderr
    )
    assert lab.run(["run", "--on", "h1", "--fs", "s3://", "--", "true"]).returncode == 0


# -- agents ------------------------------------------------------------------------------------------


def test_agents_compose_by_files_wherever_they_are(reach: Lab, data: Path, root: Path) -> None:
    env = environment(
        reach,
        data,
        says(sh(f"echo of root | {files('put', 'root')}"), match="^root"),
        says(call("fork", intent="child", host="f1", wait=True), match="^root"),
        says(sh(f"{files('get', 'child')} >&4; {files('get', 'grandchild')} >&4"), OK, match="^root"),
        says(sh(files("extend", "root", "child", "of child\n")), match="^child"),
        says(call("fork", intent="grandchild", host="f2", wait=True), match="^child"),
        says(OK, match="^child"),
        says(sh(files("extend", "child", "grandchild", "of grandchild\n")), OK, match="^grandchild"),
    )
    done = reach.run(["root"], env={**env, "QUINE_FS": f"origin:{root}"})
    assert (done.returncode, done.stderr) == (0, b""), results(data, "child")
    of_child = "of root\nof child\n"
    assert done.stdout.decode() == of_child + of_child + "of grandchild\n"
    assert sorted(path.name for path in root.iterdir() if path.is_file()) == ["child", "grandchild", "root"]
    for mission in ("child", "grandchild"):
        assert any('"kind": "Remote"' in result for result in results(data, mission))


def test_the_next_life_elsewhere_reaches_it(reach: Lab, data: Path, root: Path) -> None:
    env = environment(
        reach,
        data,
        says(
            sh(f"echo first | {files('put', 'a')}"),
            call("exec", host="f1", wisdom={"n": "1"}),
            wisdom="^\\{\\}$",
        ),
        says(sh(f"{{ {files('get', 'a')}; echo second; }} | {files('put', 'b')}"), OK, wisdom="."),
    )
    done = reach.run(["--fs", f"origin:{root}", "work"], env=env)
    assert (done.returncode, done.stderr) == (0, b"") and (root / "b").read_text() == "first\nsecond\n"


@pytest.mark.long
def test_a_detached_agent_reaches_it(reach: Lab, data: Path, root: Path) -> None:
    env = environment(reach, data, says(sh(f"echo found | {files('put', 'a')}"), OK))
    done = reach.run(["--detach", "--on", "f1", "--fs", f"origin:{root}", "work"], env=env, check=True)
    assert reach.run(["wait", done.stdout.decode().strip()], env=env).returncode == 0
    until(lambda: (root / "a").read_text() == "found\n")


# -- hosts with access of their own ------------------------------------------------------------------


def test_a_host_with_access_of_its_own_opens_the_store(reach: Lab, root: Path, data: Path) -> None:
    reach.alias("d1", "h1", fs="direct", may_fork=["f2"])
    env = {"QUINE_FS": f"file://{root}"}
    words = ["run", "--on", "d1", "--"]
    told = json.loads(reach.run([*words, *command("about", "")], env=env, check=True).stdout)
    assert (told["kind"], told["fs"]) == ("Unreserved", f"file://{root}")
    # A directory of the origin is none of theirs, and a quota is counted at the origin.
    for env in (
        {"QUINE_FS": f"origin:{root}"},
        {"QUINE_FS": f"file://{root}", "QUINE_FS_QUOTA": "1G"},
    ):
        told = json.loads(reach.run([*words, *command("about", "")], env=env, check=True).stdout)
        assert (told["kind"], told["fs"]) == ("Remote", None)
    # The password of a URL stays at the origin; a job with access to the store has a password of its own.
    env = {"QUINE_FS": "ftp://me:hunter2hunter2@store.example/x"}
    seen = reach.run([*words, "sh", "-c", "echo $QUINE_FS; env"], env=env, check=True).stdout
    assert seen.startswith(b"ftp://me@store.example/x\n") and b"hunter2" not in seen
    # Children on other hosts ask the origin, through a proxy that opens the store itself.
    script = environment(
        reach,
        data,
        says(call("fork", intent="child", host="f2", wait=True), OK, match="^root"),
        says(sh(f"echo material | {files('put', 'a')}; {files('about', '')}"), OK, match="^child"),
    )
    env = {**script, "QUINE_FS": f"file://{root}"}
    assert reach.run(["--on", "d1", "root"], env=env).returncode == 0
    assert (root / "a").read_text() == "material\n"
    assert '"kind": "Remote"' in results(data, "child")[-1]


def test_hosts_that_relay_are_told_nothing(lab: Lab, root: Path) -> None:
    env = {
        "QUINE_FS": "s3://bucket/x",
        "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
        "QUINE_FS_OPTIONS": '{"key": "hunter2"}',
    }
    seen = lab.run(
        ["run", "--on", "h1", "--", "sh", "-c", "env; cat /proc/self/environ"], env=env, check=True
    ).stdout
    assert b"hunter2" not in seen and b"bucket" not in seen and b"QUINE_FS" not in seen
    assert os.environ.get("QUINE_FS") is None


def test_a_plain_run_pays_nothing_for_files(lab: Lab) -> None:
    from tests.support.imports import HEAVY, imported_by

    def modules(*words: str) -> set[str]:
        done = lab.run(words, env={"PYTHONPROFILEIMPORTTIME": "1"}, check=True)
        return {
            line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines() if b"|" in line
        }

    found = modules("run", "--on", "h1", "--", "true")
    assert "quine.files.select" in found
    assert not found & {
        "quine.files.wire.server",
        "quine.files.stores.registry",
        "quine.files.api",
        "transport.rpc.incoming",
    }
    assert not imported_by(lab, "run", "--on", "h1", "--", *command("about", "")) & HEAVY


def test_a_detached_command_is_told_that_its_origin_is_gone(lab: Lab, root: Path, tmp_path: Path) -> None:
    """The command must not write into an unrelated directory of the host instead."""
    for on in ("h1", "local"):
        env = {"QUINE_FS": f"origin:{root}", "QUINE_DATA_DIR": str(tmp_path / "data")}
        words = ["run", "--detach", "--on", on, "--", *command("put", "a")]
        job = lab.run(words, env=env, input="x", check=True).stdout.decode().strip()
        status = lab.run(["wait", "--on", on, job] if on != "local" else ["wait", job]).returncode
        if on == "local":
            assert status == 0 and (root / "a").read_text() == "x"
            continue
        assert status == 1 and not root.exists()
        said = lab.run(["logs", "--stderr", "--on", on, job], check=True).stdout
        assert b"has no origin that it could ask" in said


@pytest.mark.long
def test_a_quota_is_that_of_the_tree_wherever_its_agents_are(reach: Lab, data: Path, root: Path) -> None:
    def some(name: str) -> str:
        return f"head -c 400000 /dev/zero | {files('put', name)} && echo ALL IN"

    env = environment(
        reach,
        data,
        says(sh(some("root")), call("fork", intent="child", host="f1", wait=True), OK, match="^root"),
        says(sh(some("child")), call("fork", intent="grandchild", host="f2", wait=True), OK, match="^child"),
        says(sh(some("grandchild")), OK, match="^grandchild"),
    )
    for on in ([], ["--on", "f1"]):
        data, root = data.with_name(f"data-{len(on)}"), root.with_name(f"shared-{len(on)}")
        env |= {"QUINE_DATA_DIR": str(data), "QUINE_FS": f"origin:{root}", "QUINE_FS_QUOTA": "1M"}
        done = reach.run([*on, "root"], env=env)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "ALL IN" in results(data, "root")[0] and "ALL IN" in results(data, "child")[-2]
        last = results(data, "grandchild")[-1]
        assert "ALL IN" not in last and "the tree has 800000 of 1048576 bytes" in last
        assert sorted(path.name for path in root.iterdir() if path.is_file()) == ["child", "root"]


SHOWN = """import quine.base.cli_options, quine.jobs.client, quine.remote.compose
def show(spawn, values, services, *more, **others):
    print(services._environ["QUINE_FS"], services._environ["AWS_SECRET_ACCESS_KEY"], spawn.context["fs"], spawn.env)
    return 0
quine.jobs.client.show = show
quine.remote.compose.agent_elsewhere("work", quine.base.cli_options.RunOptions(on="h1"))
"""


def test_the_proxy_of_an_agent_has_the_keys_of_the_store_and_the_agent_has_not(tmp_path: Path) -> None:
    place = Agents(tmp_path)
    place.script(says(OK))
    env = place.env | {
        "QUINE_FS": "s3://me:hunter2hunter2@bucket/x",
        "AWS_SECRET_ACCESS_KEY": "swordfish1234",
        "QUINE_FS_TAPES": "off",
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, "-P", "-c", SHOWN]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, timeout=100)
    assert done.stdout.split() == [
        b"s3://me:hunter2hunter2@bucket/x",
        b"swordfish1234",
        b"s3://me@bucket/x",
        b"{}",
    ]


def test_what_is_no_url_is_told_before_anything_starts(tmp_path: Path) -> None:
    place = Agents(tmp_path)
    place.script(says(OK))
    for words, env in (
        (["--fs", "/srv/files", "work"], {}),
        (["work"], {"QUINE_FS": "files"}),
        (["run", "--fs=/srv/files", "--", "true"], {}),
    ):
        done = subprocess.run(
            [*QUINE, *words], env=place.env | env, cwd=tmp_path, capture_output=True, timeout=100
        )
        assert (
            done.returncode == 2
            and b"the files tier needs a URL" in done.stderr
            and b"hint: origin:" in done.stderr
        )
    assert not place.data.exists()

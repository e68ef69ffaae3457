"""Options of a child of `fork` that runs on another machine, and the variables that its parent has exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.agents import OK, call, says, section, sh
from tests.support.remote_agents import environment, results, tapes, with_rights


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def fork(*children: dict[str, Any]) -> dict[str, Any]:
    return call("fork", children=[{"intent": "child", **child} for child in children], wait=True)


def used(line: dict[str, Any], prompt: int, reply: int = 0) -> dict[str, Any]:
    return {**line, "usage": {"input": prompt, "output": reply}}


def test_variables_directory_model_and_limits(lab: Lab, data: Path) -> None:
    """And what is of this machine, or a secret, stays here. Where there is no such directory nothing starts."""
    before = "export A='a b' MY_TOKEN=secret HOME=/of/this/machine; LOCAL=1"
    show = 'echo "$A|$B|$LOCAL|$MY_TOKEN|$QUINE_MODEL_ID" >&4; pwd >&4; ulimit -Hn >&4; cd; pwd >&4'
    child = {"host": "h1", "env": {"B": "2"}, "cwd": "/usr", "model": "small", "limits": {"nofile": "200"}}
    env = environment(
        lab, data,
        says(sh(before), fork(child), match="^root"),
        says(fork({"host": "h1", "cwd": "/no/such/place"}), match="^root"), says(OK, match="^root"),
        says(sh(show), match="^child"), says(OK, match="^child"),
    )  # fmt: skip
    done = lab.run(["root"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    home = lab["h1"].home
    _, told, refused = results(data, "root")
    assert refused.startswith("[EXIT CODE] 69\n")
    assert "/no/such/place" in refused and "it never started" in refused
    assert section(told, "STDOUT") == f"a b|2|||\n/usr\n200\n{home}\n"
    meta = tapes(data)["child"][0]["data"]
    assert (meta["node"], meta["model_id"]) == ("h1", "small")


def test_env_passes_a_secret_to_an_agent_over_there(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data,
        says(sh('echo "$MY_TOKEN|$DATABASE_URL|$OTHER_TOKEN" >&4; echo $MY_TOKEN'), match="^root"),
        says(OK, match="^root"),
    )  # fmt: skip
    given = {"MY_TOKEN": "t-0123456789", "DATABASE_URL": "pg://ada:pw-0123456789@db", "OTHER_TOKEN": "t-1"}
    words = ["--on", "h1", "--env", "MY_TOKEN", "--env", "DATABASE_URL", "root"]
    done = lab.run(words, env={**env, **given})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"t-0123456789|pg://ada:pw-0123456789@db|\n"
    assert section(results(data, "root")[0], "STDOUT") == "<secret>\n"


def test_turns_tokens_and_time(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data,
        used(says(fork({"host": "h1", "tokens": 20_000, "turns": 9, "deadline": 500}), match="^root"), 3000),
        used(says(OK, match="^root"), 3000),
        *(used(says(sh("true"), match="^child"), 9000) for _ in range(5)),
    )  # fmt: skip
    done = lab.run(["--max-tokens", "100000", "root"], env=env)
    assert done.returncode == 0, done.stderr
    first = results(data, "child")[1]
    assert "[TURNS LEFT] 8\n" in first and "[TOKENS LEFT] 11000\n" in first
    assert 0 < int(first.split("[TIME LEFT] ")[1].split()[0]) <= 500
    outcome = tapes(data)["child"][-1]["data"]
    assert (outcome["termination_mode"], outcome["tokens_in"] <= 20_000) == ("budget", True)
    (result,) = results(data, "root")
    assert "[EXIT CODE] 77" in result and "[TOKENS LEFT] 79000" in result
    assert "[TIME LEFT]" not in result


def test_the_children_of_an_agent_over_there(lab: Lab, data: Path) -> None:
    """One beside it and one on a third host: model, variables and tokens hold, and the origin is asked for both."""
    with_rights(lab)
    show = sh('echo "$A $QUINE_NODE_NAME" >&4')
    env = environment(
        lab, data,
        says(sh("export A=1"),
             fork({"tokens": 20_000, "model": "m1"}, {"intent": "far", "host": "b2", "tokens": 30_000, "model": "m2"}),
             match="^root"),
        says(OK, match="^root"),
        used(says(show, match="^child"), 5000), used(says(OK, match="^child"), 5000),
        used(says(show, match="^far"), 12_000), used(says(show, match="^far"), 12_000),
        *(used(says(show, match="^far"), 12_000) for _ in range(5)),
    )  # fmt: skip
    done = lab.run(["--on", "b1", "root"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    result = results(data, "root")[1]
    assert "[STDOUT]\n1 b1\n" in result and "[STDOUT]\n1 b2\n" in result
    assert "[TOKENS LEFT]" not in result, "the tree has no limit"
    found = tapes(data)
    assert {name: tape[0]["data"]["model_id"] for name, tape in found.items()} == {
        "root": "script", "child": "m1", "far": "m2"
    }  # fmt: skip
    far = found["far"][-1]["data"]
    assert far["termination_mode"] == "budget" and far["tokens_in"] <= 30_000
    assert found["child"][-1]["data"]["exit_code"] == 0


def test_money_over_there(lab: Lab, data: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\nscript = { input = 10, output = 100 }\n")
    env = environment(
        lab, data,
        says(fork({"intent": "near", "cost": 0.5}, {"intent": "dark", "cost": 0.5, "model": "unknown"}),
             match="^root"),
        says(OK, match="^root"),
        *(used(says(sh("true"), match="^near"), 10_000, 1000) for _ in range(5)), says(OK, match="^dark"),
    )  # fmt: skip
    done = lab.run(["--on", "h1", "root"], env={**env, "QUINE_PRICES": str(prices)})
    assert done.returncode == 0, done.stderr
    found = tapes(data)
    assert found["near"][-1]["data"]["termination_mode"] == "budget"
    assert found["near"][-1]["data"]["tokens_in"] <= 20_000
    assert found["dark"][-1]["data"]["exit_code"] == 2
    assert "the price of unknown is not known" in results(data, "root")[0]

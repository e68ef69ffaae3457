"""fork: options of one child, from its model to the limits of the kernel; and variables exported in `sh`."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from quine.agent.session import SessionSpec
from quine.agent.tools import child_options
from quine.agent.tools.child_options import Options
from quine.agent.tools.exported import NOTHING, Exported
from quine.base.sessions import new_session
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from tests.support.agents import OK, Agents, call, says, section, sh

PRICES = "[models]\nscript = { input = 10, output = 100 }\ndear = { input = 10, output = 100 }\n"


def fork(*children: dict[str, Any], **more: Any) -> dict[str, Any]:
    return call("fork", children=[{"intent": "child", **child} for child in children], wait=True, **more)


def used(line: dict[str, Any], prompt: int, reply: int) -> dict[str, Any]:
    return {**line, "usage": {"input": prompt, "output": reply}}


def child_of(agents: Agents, command: str, *before: dict[str, Any], **child: Any) -> str:
    """Return the stdout of a child with these options that runs `command`, after its parent has run `before`."""
    parent = [sh(each) for each in before]
    agents.run(
        says(*parent, fork(child), match="^work"), says(OK, match="^work"),
        says(sh(command), OK, match="^child"),
    )  # fmt: skip
    return section(agents.results()[-1], "STDOUT")


# -- model, turns ------------------------------------------------------------------------------------


def test_a_model_of_its_own(agents: Agents) -> None:
    """Its own children and what is nested in it have the same one; its siblings and its parent do not."""
    agents.run(
        says(fork({"model": "small"}, {"intent": "other"}), match="^work"), says(OK, match="^work"),
        says(sh("echo $QUINE_MODEL_ID >&4"), call("fork", intent="grand", wait=True),
             match="^child", wisdom="^{}$"),
        says(call("exec", wisdom={"n": "1"}), match="^child", wisdom="^{}$"),
        says(OK, match="^child", wisdom="1"),
        says(OK, match="^grand"), says(OK, match="^other"),
    )  # fmt: skip
    models = [(tape[0]["data"]["mission"], tape[0]["data"]["model_id"]) for tape in agents.tapes()]
    assert sorted(models) == [
        ("child", "small"), ("child", "small"), ("grand", "small"), ("other", "script"), ("work", "script"),
    ]  # fmt: skip
    assert "small\n" in agents.results()[0]


def test_turns_are_counted_by_its_own_limit_and_never_by_more(agents: Agents) -> None:
    agents.run(
        says(fork({"turns": 1}, {"intent": "greedy", "turns": 99}), match="^work"), says(OK, match="^work"),
        says(sh("true"), match="^child"), says(sh("true"), match="^child"),
        says(sh("true"), match="^greedy"), says(OK, match="^greedy"),
        env={"QUINE_MAX_TURNS": "7"},
    )  # fmt: skip
    assert "all 1 turns are used" in agents.results()[0]
    assert agents.tape("child")[0]["data"]["limits"]["turns"] == 1
    assert agents.tape("greedy")[0]["data"]["limits"]["turns"] == 7
    assert "[TURNS LEFT] 6" in agents.results("greedy")[1]


# -- budget ------------------------------------------------------------------------------------------


def test_tokens_of_its_own(agents: Agents) -> None:
    agents.script(
        used(says(fork({"tokens": 20_000}), match="^work"), 3000, 0), used(says(OK, match="^work"), 3000, 0),
        *(used(says(sh("true"), match="^child"), 9000, 0) for _ in range(5)),
    )  # fmt: skip
    done = agents.run(options=("--max-tokens", "100000"))
    assert done.returncode == 0
    assert "[TOKENS LEFT] 11000" in agents.results("child")[1]
    assert agents.outcome("child")["termination_mode"] == "budget"
    assert agents.outcome("child")["tokens_in"] <= 20_000
    assert "[EXIT CODE] 77" in agents.results()[0]
    assert "[TOKENS LEFT] 79000" in agents.results()[0]


def test_what_is_below_a_child_pays_from_its_budget(agents: Agents) -> None:
    """A grandchild by fork, one that asks for more, and one that is nested in its shell."""
    agents.script(
        used(says(fork({"tokens": 30_000}), match="^work"), 3000, 0), used(says(OK, match="^work"), 3000, 0),
        used(says(fork({"intent": "grand", "tokens": 90_000}), match="^child"), 5000, 0),
        used(says(sh("quine nested"), match="^child"), 5000, 0), used(says(OK, match="^child"), 5000, 0),
        used(says(sh("true"), match="^grand"), 5000, 0), used(says(OK, match="^grand"), 0, 5000),
        used(says(sh("true"), match="^nested"), 2000, 0), used(says(OK, match="^nested"), 0, 2000),
    )  # fmt: skip
    done = agents.run(options=("--max-tokens", "100000"))
    assert done.returncode == 0, done.stderr
    assert "[TOKENS LEFT] 20000" in agents.results("grand")[1]
    assert "[TOKENS LEFT] 8000" in agents.results("nested")[0], (
        "less 15000 of its parent and 5000 of the other"
    )


def test_money_of_its_own_needs_a_price(agents: Agents) -> None:
    prices = agents.directory / "prices.toml"
    prices.write_text(PRICES)
    agents.script(
        says(fork({"cost": 0.5, "model": "unknown"}), match="^work"),
        says(fork({"cost": 0.5, "model": "dear"}), match="^work"), says(OK, match="^work"),
        *(used(says(sh("true"), match="^child"), 10_000, 1000) for _ in range(5)),
    )  # fmt: skip
    done = agents.run(env={"QUINE_PRICES": str(prices)})
    assert done.returncode == 0, done.stderr
    refused, result = agents.results()
    assert refused.startswith("[FORK ERROR] the price of unknown is not known")
    assert "[EXIT CODE] 77" in result
    assert "[COST LEFT]" not in result, "its parent has no limit"
    assert "[COST LEFT] 0.3000 US dollars" in agents.results("child")[1]
    assert agents.outcome("child")["termination_mode"] == "budget"


@pytest.mark.clock
def test_time_of_its_own(agents: Agents) -> None:
    agents.run(
        says(fork({"deadline": 2}), match="^work"), says(sh("true"), OK, match="^work"),
        says(sh("sleep 71311"), match="^child"), says(call("exit", status=3, stderr="half"), match="^child"),
    )  # fmt: skip
    assert agents.results()[0].startswith("[EXIT CODE] 3\n")
    assert "[TIME LEFT]" not in agents.results()[0], "its parent has no deadline"
    assert "[INTERRUPTED]" in agents.results("child")[1]
    assert "[TIME LEFT] 0 s" in agents.results("child")[1]


def test_a_ledger_is_only_narrowed() -> None:
    ledger = Ledger.create(Limits(tokens=1000, cost=1.0, deadline=100.0))
    assert child_options.ledger_of(ledger, Options(turns=3)) is ledger
    for options, narrow in (
        (Options(tokens=300, cost=0.5, deadline=10.0), True),
        (Options(tokens=3000, cost=5.0, deadline=1000.0), False),
    ):
        mark = child_options.ledger_of(ledger, options).mark
        assert mark.tokens == (300 if narrow else 1000)
        assert mark.cost == (0.5 if narrow else 1.0)
        assert (mark.deadline < ledger.mark.deadline) == narrow
    assert ledger.mark.tokens == 1000
    os.close(ledger.fd)


# -- variables, directory ----------------------------------------------------------------------------


def test_variables(agents: Agents) -> None:
    """They reach its commands, its own children, and no sibling."""
    agents.run(
        says(fork({"env": {"A": "a b", "PATH": "/nowhere"}}, {"intent": "other"}), match="^work"),
        says(OK, match="^work"),
        says(sh('echo "[$A]" >&4; command -v quine >/dev/null || echo no quine >&4'),
             call("fork", intent="grand", wait=True), OK, match="^child"),
        says(sh('echo "[$A]"'), OK, match="^grand"), says(sh('echo "[$A]" >&4'), OK, match="^other"),
    )  # fmt: skip
    result = agents.results()[0]
    assert "[STDOUT]\n[a b]\n" in result
    assert "[STDOUT]\n[]\n" in result
    assert "no quine" not in result
    assert any("[a b]" in result for result in agents.results("grand")), agents.results("child")


BAD = {
    "a secret": ({"env": {"GITHUB_TOKEN": "x"}}, "env: GITHUB_TOKEN looks like a secret"),
    "a password": ({"env": {"DB": "pg://me:x@h"}}, "env: DB looks like a secret"),
    "lineage": ({"env": {"QUINE_DEPTH": "0"}}, "env: QUINE_DEPTH is quine's"),
    "a limit": ({"env": {"QUINE_MAX_TOKENS": "9"}}, "env: QUINE_MAX_TOKENS is quine's"),
    "no name": ({"env": {"A=B": "x"}}, "env: 'A=B' is no name of a variable"),
    "an empty name": ({"env": {"": "x"}}, "env: '' is no name of a variable"),
    "a NUL": ({"env": {"A": "x\0y"}}, "env: A holds a NUL character"),
    "too long": ({"env": {"A": "x" * 131072}}, "env: A is too long: 131075 bytes"),
    "a number": ({"env": {"A": 1}}, "children[1].env.A must be a string"),
    "an unknown limit": ({"limits": {"files": "1"}}, "limits: unknown limit 'files'"),
    "no amount": ({"limits": {"nofile": "many"}}, "limits: limit nofile: 'many' is neither a number"),
    "a directory that is not there": ({"cwd": "nope"}, "cwd nope: no such file or directory"),
    "a file": ({"cwd": "script.jsonl"}, "cwd script.jsonl: not a directory"),
    "no turns": ({"turns": 0}, "children[1].turns must be between 1 and"),
    "no money": ({"cost": 0}, "children[1].cost must be between"),
    "no time": ({"deadline": -1}, "children[1].deadline must be between"),
    "too few tokens": ({"tokens": 100}, "[FORK ERROR] 100 tokens are too few: its first reply needs about "),
    "a surrogate": ({"model": "\ud800"}, "model holds half of a surrogate pair"),
}


def test_a_bad_option_starts_no_child(agents: Agents) -> None:
    agents.run(says(*(fork({}, bad) for bad, _ in BAD.values())), says(OK))
    for result, (bad, words) in zip(agents.results(), BAD.values(), strict=True):
        assert words in result, (bad, result)
    assert len(agents.tapes()) == 1
    assert not list(agents.data.glob("jobs/*"))


def test_its_directory(agents: Agents) -> None:
    (agents.directory / "d" / "e").mkdir(parents=True)
    assert child_of(agents, "pwd >&4", "cd d", cwd="e") == f"{agents.directory}/d/e\n"


def test_limits_of_the_kernel(agents: Agents) -> None:
    """They are lowered, and an amount above that of the parent changes nothing."""
    command = "ulimit -n >&4; ulimit -Hn >&4; ulimit -c >&4"
    agents.run(
        says(fork({"limits": {"nofile": "100", "core": "0"}}), fork({"limits": {"nofile": "4M"}}), match="^work"),
        says(sh("ulimit -Hn"), OK, match="^work"),
        says(sh(command), OK, match="^child"),
    )  # fmt: skip
    low, same, ours = agents.results()
    assert section(low, "STDOUT") == "100\n100\n0\n"
    assert section(same, "STDOUT").split()[1] == section(ours, "STDOUT").strip()


# -- what was exported in sh -------------------------------------------------------------------------

SHELLS = [path for path in ("/bin/sh", "/bin/bash") if os.path.exists(path)]


@pytest.mark.parametrize("program", SHELLS)
def test_what_was_exported_reaches_a_child(agents: Agents, program: str) -> None:
    agents.env |= {"QUINE_SHELL": program, "GONE": "1", "KEPT": "2", "CHANGED": "3"}
    show = r"""for n in A KEPT CHANGED GONE LOCAL QUINE_DEPTH MY_TOKEN; do
        eval "printf '%s=<%s>\n' $n \"\$$n\"" >&4; done; printf %s "$B" | od -An -tx1 >&4"""
    before = r"""A='two
lines'; export A; LOCAL=1; unset GONE; CHANGED=4; export QUINE_DEPTH=77 MY_TOKEN=secret
B=$(printf '\303\050'); export B"""
    out = child_of(agents, show, before)
    assert out == (
        "A=<two\nlines>\nKEPT=<2>\nCHANGED=<4>\nGONE=<>\nLOCAL=<>\nQUINE_DEPTH=<1>\nMY_TOKEN=<>\n c3 28\n"
    )


@pytest.mark.skipif("/bin/bash" not in SHELLS, reason="no bash here")
def test_a_function_that_bash_exports_reaches_a_child(agents: Agents) -> None:
    agents.env |= {"QUINE_SHELL": "/bin/bash"}
    assert child_of(agents, "greet you >&4", "greet() { echo hello $1; }; export -f greet") == "hello you\n"


HOSTILE = {
    "a cat of its own": "cat() { echo FORGED=1; }; PATH=.:$PATH; "
    "printf '#!/bin/sh\\necho FORGED=1\\n' >cat; chmod +x cat",
    "errexit": "set -e",
    "nounset": "set -u",
    "no globs": "set -f; IFS=/",
    "a trap": "trap 'echo trapped' EXIT",
    "descriptors closed": "exec 1>&- 2>&-",
    "half a megabyte": "n=0; while [ $n -lt 8 ]; do "
    "export BIG$n=$(head -c 60000 /dev/zero | tr '\\0' x); n=$((n+1)); done",
}


def test_a_shell_in_any_state_tells_its_variables_and_goes_on(agents: Agents) -> None:
    """Children of one agent, each with a shell of its own in one of these states."""
    lines = []
    for n, state in enumerate(HOSTILE.values()):
        steps = sh(f"{state}; X=kept"), sh("export A=1"), fork({}), sh("echo $X; false; echo $?"), OK
        lines.append(says(*steps, match=f"^way {n}"))
    ways = [{"intent": f"way {n}"} for n in range(len(HOSTILE))]
    agents.run(
        says(call("fork", children=ways, context="none", wait=True), OK, match="^work"),
        *lines,
        {**says(sh("echo [$A][$FORGED] >&4"), OK, match="^child"), "repeat": True},
        env={"QUINE_MAX_AGENTS": "0"},
    )
    for n, way in enumerate(HOSTILE):
        _, _, result, after = agents.results(f"way {n}")
        assert section(result, "STDOUT") == "[1][]\n", way
        assert section(after, "STDOUT").startswith("kept\n"), way


def test_a_shell_that_cannot_say_it_starts_no_child(agents: Agents) -> None:
    """More than a process can be given: no command runs any more, and no child would know what was meant."""
    size = "x=$(head -c 130000 /dev/zero | tr '\\0' x)"
    fill = f"{size}; n=0; while [ $n -lt 99 ]; do eval export BIG$n=$x; n=$((n+1)); done"
    agents.run(
        says(sh(fill), fork({}), match="^work"),
        says(sh("n=0; while [ $n -lt 99 ]; do unset BIG$n; n=$((n+1)); done"), fork({}), match="^work"),
        says(OK, match="^work"), says(OK, match="^child"),
    )  # fmt: skip
    _, refused, _, fine = agents.results()
    assert refused.startswith("[FORK ERROR] the shell does not show its variables, nothing was started")
    assert fine.startswith("[EXIT CODE] 0")


def test_each_fork_sees_the_variables_of_its_time(agents: Agents) -> None:
    agents.run(
        says(sh("export A=1"), fork({}), match="^work"), says(sh("A=2"), fork({}), match="^work"),
        says(sh("exit 3"), fork({}), match="^work"),
        says(OK, match="^work"), says(sh("echo [$A] >&4"), OK, match="^child"),
    )  # fmt: skip
    # a shell that has died has exported nothing
    assert [section(agents.results()[n], "STDOUT") for n in (1, 3, 5)] == ["[1]\n", "[2]\n", "[]\n"]


def test_without_a_command_nothing_is_asked(agents: Agents) -> None:
    """An agent that has run no command forks without a shell."""
    log = agents.directory / "log"
    (agents.directory / "shell").write_text(f'#!/bin/sh\necho started >>{log}\nexec /bin/sh "$@"\n')
    (agents.directory / "shell").chmod(0o755)
    agents.run(
        says(fork({}), match="^work"), says(OK, match="^work"), says(OK, match="^child"),
        env={"QUINE_SHELL": str(agents.directory / "shell")},
    )  # fmt: skip
    assert agents.results()[0].startswith("[EXIT CODE] 0")
    assert not log.exists()


# -- the description ---------------------------------------------------------------------------------


def spec_of(**more: Any) -> SessionSpec:
    session = new_session()
    return SessionSpec(session, session, "m", **more)


def test_variables_of_this_machine_do_not_go_to_another_one() -> None:
    parent = spec_of(env={"OLD": "1", "GONE": "2", "PATH": "/here"})
    ours = {"HOME": "/h", "LD_PRELOAD": "x", "SSH_AUTH_SOCK": "/s", "https_proxy": "http://ada:pw@proxy"}
    known = Exported({"A": "1", **ours}, frozenset({"GONE"}))
    options = Options(env={"TMPDIR": "/scratch"})
    there = child_options.applied(parent, options, known, "h1")
    assert isinstance(there, SessionSpec)
    assert there.env == {"OLD": "1", "A": "1", "TMPDIR": "/scratch"}
    here = child_options.applied(parent, options, known, "local")
    assert isinstance(here, SessionSpec)
    assert here.env == {"OLD": "1", "PATH": "/here", "TMPDIR": "/scratch", **known.changed}


def test_too_many_variables_for_another_machine() -> None:
    known = Exported({f"A{n}": "x" * 100_000 for n in range(6)}, frozenset())
    assert "too long in all" in str(child_options.applied(spec_of(), Options(), known, "h1"))
    assert isinstance(child_options.applied(spec_of(), Options(), known, "local"), SessionSpec)


def test_limits_of_the_kernel_add_up() -> None:
    parent = spec_of(rlimits={"nofile": "1k", "core": "0"})
    child = child_options.applied(
        parent, Options(limits={"nofile": "2000", "as": "1G", "core": "1"}), NOTHING, "h1"
    )
    assert isinstance(child, SessionSpec)
    assert child.rlimits == {"nofile": "1k", "core": "0", "as": "1G"}


def test_the_description_crosses_as_json() -> None:
    spec = spec_of(env={"A": "\udcff\n"}, rlimits={"nofile": "9"})
    assert SessionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    for bad in ({"env": {"A": 1}}, {"env": {"A=": "x"}}, {"env": {"A": "\0"}}, {"rlimits": {"nofile": 1}}):
        with pytest.raises(ValueError, match="not a life"):
            SessionSpec.from_json({**spec.to_json(), **bad})

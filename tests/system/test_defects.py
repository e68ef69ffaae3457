"""The defects of the reference implementation, one after the other, and what keeps each of them away (1 to 10).

Each docstring says what goes wrong there. docs/reference/conformance.md lists them all with their tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.agents import OK, QUINE, Agents, call, left, says, section, sh
from tests.support.provider import reused
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said, Silent

NONE, SOME = r"^\{\}$", "."
DONE = Said(calls=(OK,))


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider(chat) as made:
        yield made


@pytest.fixture
def provider(server: Provider) -> Iterator[Provider]:
    with reused(server) as provider:
        yield provider


def at(provider: Provider) -> dict[str, str]:
    return {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": f"{provider.base}/v1", "QUINE_API_KEY": KEY,
            "QUINE_MODEL_ID": "m"}  # fmt: skip


def test_defect_01_children_after_exec_have_their_own_missions(agents: Agents) -> None:
    """The mission kept for the life after exec stays in the environment and becomes the mission of every child."""
    agents.run(
        says(call("exec", wisdom={"n": "1"}), match="^work", wisdom=NONE),
        says(sh("quine nested"), match="^work", wisdom=SOME),
        says(call("fork", intent="cloned", wait=True), match="^work", wisdom=SOME),
        says(call("fork", intent="fresh", wait=True, context="none"), match="^work", wisdom=SOME),
        says(OK, match="^work", wisdom=SOME),
        says(OK, match="^(nested|cloned|fresh)"),
        env={"QUINE_ORIGINAL_INTENT": "forged"},
    )
    missions = [tape[0]["data"]["mission"] for tape in agents.tapes()]
    assert missions == ["work", "work", "nested", "cloned", "fresh"]
    assert all(tape[-1]["data"]["exit_code"] == 0 for tape in agents.tapes())


def test_defect_02_a_child_can_have_its_parents_material(agents: Agents) -> None:
    """The stdin of a forked child is /dev/null although it is said to be inherited."""
    done = agents.run(
        says(call("fork", intent="child", wait=True, stdin="inherit"), match="^work"),
        says(sh("quine inner"), sh("read x <&3; echo parent $x >&4"), OK, match="^work"),
        says(sh("read x <&3; echo child $x >&4"), OK, match="^child"),
        says(sh("read x <&3; echo inner $x >&4"), OK, match="^inner"),
        input=b"one\ntwo\nthree\n",
    )
    forked, nested, _ = agents.results()
    assert section(forked, "STDOUT") == "child one\n"
    # as POSIX says: a command reads what the shell gives it, and 0 is empty
    assert section(nested, "STDOUT") == "inner\n"
    assert done.stdout == b"parent two\n"


def test_defect_03_a_clone_knows_what_its_parent_read(agents: Agents, provider: Provider) -> None:
    """The tape of the parent is copied for the child, and nothing ever reads the copy: a clone knows nothing."""
    provider.plan = [
        Said(calls=(sh("echo only-the-parent-has-read-this"),)),
        Said(calls=(call("fork", intent="the errand", wait=True),)),
        DONE,
        DONE,
    ]
    assert agents.run(env=at(provider)).returncode == 0
    parent, child = (body["messages"] for body in provider.bodies[1:3])
    assert "only-the-parent-has-read-this" in parent[-1]["content"]
    assert child[: len(parent)] == parent
    assert "the errand" in child[-1]["content"]


def test_defect_04_a_command_that_reads_stdin_does_not_hang(agents: Agents) -> None:
    """`cat /dev/stdin` reads the pipe through which the shell gets its commands: it waits for ever."""
    done = agents.run(
        says(sh("cat /dev/stdin; cat; cat -; read x; echo read $?")),
        says(sh("sleep 71488", timeout=0.2), sh("echo alive >&4")),
        says(OK),
        input=b"material\n",
    )
    read, slept, _ = agents.results()
    assert section(read, "STDOUT") == "read 1\n"
    assert slept.startswith("[EXIT CODE] 124\n")
    assert (done.returncode, done.stdout) == (0, b"alive\n")


def test_defect_05_a_killed_child_is_reported_as_killed(agents: Agents) -> None:
    """A killed child is `[EXIT CODE] -1`, and its parent waits on for a grandchild that holds the pipe."""
    agents.run(
        says(call("fork", intent="child", wait=True), sh("kill $(cat pid)"), match="^work"),
        says(OK, match="^work"),
        says(sh("setsid sleep 71487 >&4 2>&5 & echo $! >pid; kill -KILL $PPID; sleep 71487"), match="^child"),
    )
    result = agents.results()[0]
    assert result.startswith("[EXIT CODE] 137\n")
    assert "\n[SIGNAL] KILL" in result


def test_defect_05_a_child_is_ended_with_all_that_it_started(agents: Agents) -> None:
    """Ending a child ends its process alone; its grandchildren go on."""
    agents.run(
        says(call("fork", children=[{"intent": "slow"}, {"intent": "fast"}], mode="race"), match="^work"),
        says(OK, match="^work"),
        says(call("fork", intent="grand", wait=True), match="^slow"),
        says(sh("sleep 71486 & set -m; sleep 71486 & set +m; touch up; wait"), match="^grand"),
        says(sh("while ! [ -e up ]; do sleep 0.02; done"), OK, match="^fast"),
    )
    slow, fast = agents.results()[0].split("--- CHILD ")[1:]
    assert "[SIGNAL] TERM" in slow
    assert "[WINNER]" in fast
    assert not left("sleep", "71486")


def test_defect_06_one_data_directory_wherever_a_command_goes(agents: Agents) -> None:
    """The default data directory is relative and handed on so: after `cd` children count and write elsewhere."""
    del agents.env["QUINE_DATA_DIR"]
    agents.data = agents.directory / ".quine"
    agents.run(
        says(sh("mkdir d; cd d; quine nested; echo $?"), match="^work", wisdom=NONE),
        says(call("fork", intent="cloned", wait=True), match="^work", wisdom=NONE),
        says(call("exec", wisdom={"n": "1"}), match="^work", wisdom=NONE),
        says(sh("cd /; quine again; echo $?"), OK, match="^work", wisdom=SOME),
        says(OK, match="^(nested|cloned|again)"),
    )
    missions = [tape[0]["data"]["mission"] for tape in agents.tapes()]
    assert missions == ["work", "nested", "cloned", "work", "again"]
    assert list((agents.directory / "d").iterdir()) == []


def test_defect_07_exec_gives_back_no_depth(agents: Agents) -> None:
    """exec sets the depth to 0: an agent that execs before each fork can go down without end."""
    agents.run(
        says(call("fork", intent="child", wait=True), OK, match="^work"),
        says(call("exec", wisdom={"n": "1"}), match="^child", wisdom=NONE),
        says(call("fork", intent="too deep", wait=True), sh("quine deeper"), OK, match="^child", wisdom=SOME),
        env={"QUINE_MAX_DEPTH": "2"},
    )
    last = agents.tapes()[-1]
    forked, nested = (e["data"]["content"] for e in last if e["type"] == "tool_result")
    assert last[0]["data"]["depth"] == 1
    assert forked.startswith("[FORK ERROR] too deep")
    assert nested.startswith("[EXIT CODE] 77")


def test_defect_07_exec_keeps_one_place(agents: Agents) -> None:
    """exec leaks the place of the old life in the count of agents: after some of them nothing can be forked."""
    lives = [
        says(call("exec", wisdom={"n": str(n + 1)}), match="^work", wisdom=f'"n":"{n}"' if n else NONE)
        for n in range(3)
    ]
    done = agents.run(
        *lives,
        says(call("fork", intent="child", wait=True), sh("quine child; echo $? >&4"), OK, match="^work", wisdom="3"),
        says(OK, match="^child"),
        env={"QUINE_MAX_AGENTS": "2"},
    )  # fmt: skip
    assert done.stdout == b"0\n"
    last = agents.tapes()[3]
    assert [e["data"]["content"][:13] for e in last if e["type"] == "tool_result"] == ["[EXIT CODE] 0"] * 2


def test_defect_07_places_are_counted_without_a_race(agents: Agents) -> None:
    """Agents are counted and then added: many at one time all see a free place. And a killed one keeps its own."""
    done = agents.run(
        says(
            sh("touch log; for i in 1 2 3 4 5 6 7 8; do quine child & pids=\"$pids $!\"; done\n"
               "while [ $(wc -l <log) -lt 8 ]; do for pid in $pids; do kill -0 $pid 2>/dev/null || "
               "{ wait $pid; case $? in 77) echo refused >>log;; esac; pids=$(echo \" $pids \" | "
               "sed \"s/ $pid / /\"); }; done; sleep 0.05; done; touch go; wait; sort log | uniq -c >&4"),
            match="^work"),
        says(OK, match="^work"),
        says(sh("echo lives >>log; while ! [ -e go ]; do sleep 0.01; done"), OK, match="^child"),
        env={"QUINE_MAX_AGENTS": "4"},
    )  # fmt: skip
    assert done.stdout.split() == [b"3", b"lives", b"5", b"refused"]


def test_defect_07_an_inference_that_is_cut_off_gives_its_place_back(
    agents: Agents, provider: Provider
) -> None:
    """A signal during an inference leaves the lock behind: the places for inferences run out."""
    pid = "$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' data/jobs/*/job)"
    provider.plan = [
        Said(calls=(call("fork", intent="child"), sh(f"read x <&3; kill -KILL {pid}"))),
        Silent(Said("let me")),
        DONE,
    ]
    env = {**at(provider), "QUINE_MAX_CONCURRENT": "1"}
    with agents.start("work", stdin=subprocess.PIPE, env=env) as process:
        assert provider.silent.wait(120)
        process.communicate(b"go\n", timeout=120)
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_defect_08_the_next_life_reads_on_where_this_one_stopped(agents: Agents, kind: str) -> None:
    """The prompt's way to read stdin takes more than it shows, or a file again from its beginning."""
    material = b"".join(b"line %d\n" % n for n in range(1, 5001))
    (agents.directory / "in").write_bytes(material)
    agents.script(
        says(sh("read a <&3; read b <&3; echo $a $b >&4"), sh("head -c 7 <&3 >&4"),
             sh("dd bs=7 count=1 <&3 >&4 2>/dev/null"), call("exec", wisdom={"n": "1"}), wisdom=NONE),
        says(sh("cat <&3 | (head -n 1; wc -l) >&4; cat <&3 | wc -c >&4"), OK, wisdom=SOME),
    )  # fmt: skip
    with open(agents.directory / "in", "rb") as file:
        stdin = file if kind == "file" else subprocess.PIPE
        with agents.start("work", stdin=stdin) as process:
            out, _ = process.communicate(None if kind == "file" else material, timeout=120)
    first, second, third, fourth, _, rest = out.decode().splitlines()
    assert [first, second, third, fourth] == ["line 1 line 2", "line 3", "line 4", "line 5"]
    assert rest == "0"
    told = agents.tapes()[0]
    assert "/dev/stdin" not in told[1]["data"]["content"] + told[2]["data"]["content"]
    assert "/dev/fd" not in told[1]["data"]["content"] + told[2]["data"]["content"]
    assert "other programs may read further than they show" in told[1]["data"]["content"]


def test_defect_09_a_line_may_be_long(agents: Agents) -> None:
    """A line of more than a megabyte is taken for a crash of the shell, and makes a tape that cannot be read."""
    size = 3 << 20
    done = agents.run(
        says(sh(f"X=kept; head -c {size} /dev/zero | tr '\\0' x")),
        says(sh("echo $X >&4")),
        says(OK),
        env={"QUINE_OUTPUT_TRUNCATE": str(size), "QUINE_CONTEXT_WINDOW": "0"},
    )
    assert (done.returncode, done.stdout) == (0, b"kept\n")
    assert len(section(agents.results()[0], "STDOUT")) == size
    shown = subprocess.run(
        [*QUINE, "tape", "show"], cwd=agents.directory, env=agents.env, capture_output=True
    )
    assert shown.returncode == 0
    assert b"outcome" in shown.stdout


def test_defect_09_binary_output_is_not_split_into_lines(agents: Agents) -> None:
    r"""Output is read line by line: `\r\n`, NUL and a missing newline are not what the command wrote."""
    agents.run(says(sh(r"printf 'a\r\n\0b\r\rc\n\nd'")), says(OK))
    assert section(agents.results()[0], "STDOUT") == "a\r\n\0b\r\rc\n\nd"


def test_defect_10_output_of_the_background_is_neither_lost_nor_mistaken(agents: Agents) -> None:
    """Output of the background between two commands is lost, or stands in the next result as if it were its own."""
    os.mkfifo(agents.directory / "go")
    agents.run(
        says(sh("(read x <go; echo late; echo gone >ended) & echo now"), match="^work"),
        says(call("fork", intent="child", wait=True), match="^work"),
        says(sh("echo next"), OK, match="^work"),
        says(sh("echo x >go; while ! [ -s ended ]; do :; done"), OK, match="^child"),
    )
    now, _, following = agents.results()
    assert section(now, "STDOUT") == "now\n"
    assert section(following, "STDOUT") == "next\n"
    assert following.count("[BACKGROUND OUTPUT]\nlate\n") == 1


def test_defect_10_nothing_of_a_command_lies_in_the_temporary_directory(agents: Agents) -> None:
    """stderr of commands goes through files in /tmp that all can read, and that a crash leaves there."""
    temporary = agents.directory / "tmp"
    temporary.mkdir()
    agents.script(
        says(sh("seq 9999 >&2; while ! [ -e data/outputs/*/*.stderr ]; do :; done; ls -A $TMPDIR | wc -l >&4; "
                "echo $$ >&4; exec sleep 71485"))
    )  # fmt: skip
    with agents.start("work", env={"TMPDIR": str(temporary)}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        shell = int(process.stdout.readline())
        process.kill()
        with contextlib.suppress(ProcessLookupError):  # the kernel's TERM for its group may have been quicker
            os.kill(shell, signal.SIGKILL)
        process.communicate(timeout=120)
    assert list(temporary.iterdir()) == []
    kept = list((agents.data / "outputs").rglob("*.stderr"))
    assert [oct(path.stat().st_mode) for path in kept] == ["0o100600"]

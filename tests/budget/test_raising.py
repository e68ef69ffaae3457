"""`quine budget raise` from inside: refused however the command has left its environment, descriptors and parent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from quine.base.cli_options import RunOptions
from quine.base.errors import TRY_AGAIN, Failure
from quine.base.sessions import new_session
from quine.broker import asking
from quine.broker.asking import Raise
from quine.budget import caller, purse
from quine.budget.purse import Purse
from quine.budget.shared_counters import Numbers, SharedCounters
from quine.cli.budget import raising
from quine.cli.budget.listing import Found
from tests.lab import Lab

DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(3, 1024)
os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
"""
WAYS = {
    "plain": "$RAISE",
    "another session": "setsid -w $RAISE",
    "no variable": "env -u QUINE_CALLER $RAISE",
    "no environment": "env -i PATH=$PATH HOME=$HOME XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR $RAISE",
    "a daemon": 'python3 daemon.py "$RAISE; echo \\$? >ended"; until [ -s ended ]; do sleep 0.02; done; '
    "(exit $(cat ended))",
    "a job here": "quine run --on local -- $RAISE",
    "a job here without the variable": "quine run --on local -- env -u QUINE_CALLER $RAISE",
    "a daemon of a job here": 'quine run --on local -- python3 "$PWD/daemon.py" "$RAISE; echo \\$? >$PWD/over"; '
    "until [ -s over ]; do sleep 0.02; done; (exit $(cat over))",
    "detached": "quine wait $(quine run --detach -- env -u QUINE_CALLER $RAISE)",
    "an agent": "quine work >&2; (exit $(cat said))",
    "a host": "quine run --on h1 -- env HOME=$HOME XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR $PWD/here $RAISE",
}


def test_no_command_below_a_budget_raises_it(lab: Lab) -> None:
    """A host here is the same kernel, and the command there may look at this machine's budgets: it is a job, too."""
    (lab.work / "daemon.py").write_text(DAEMON)
    (lab.work / "here").write_text(f'#!/bin/sh\nPATH={lab.env["PATH"]} exec "$@"\n')
    (lab.work / "here").chmod(0o755)
    raises = {
        "reply": {
            "text": "",
            "tool_calls": [{"name": "sh", "arguments": {"command": "$RAISE; echo $? >said"}}],
        }
    }
    ends = {"reply": {"text": "", "tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}}
    env = lab.script([raises, ends], "raises.jsonl")
    each = "".join(f"( {way} ); echo $?; " for way in WAYS.values())
    inner = 'export RAISE="quine budget raise $1 --max-tokens 90k"; ' + each
    (lab.work / "inner.sh").write_text(inner)
    script = """
        below='until [ -s id ]; do sleep 0.02; done; sh inner.sh $(cat id)'
        quine budget --max-tokens 9k -- sh -c "$below" >ends 2>errors &
        until quine budget show --json | grep -q inner.sh; do sleep 0.02; done
        quine budget show --json >shown
        sed 's/.*"id": *"\\([^"]*\\)".*/\\1/' shown >made && mv made id
        wait; cat ends
    """
    done = lab.sh(script, env=env, timeout=120)
    ends = dict(zip(WAYS, done.stdout.decode().split(), strict=True))
    errors = (lab.work / "errors").read_text()
    assert ends == dict.fromkeys(WAYS, "77"), errors
    assert (
        "a budget cannot be raised from inside" in errors
        and "a job of a node cannot raise a budget" in errors
    )


class Raised:
    """A purse of this process, which is raised as from outside."""

    def __init__(self) -> None:
        self.book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
        self.fd = purse.create(self.book, new_session(), "cmd", (9000, 0.0, 0.0), (1, 1))

    @property
    def now(self) -> Purse:
        found = purse.read(self.fd)
        assert found
        return found

    def to(self, tokens: str) -> int:
        return raising.change(RunOptions(max_tokens=tokens), [self.now.ident])

    def close(self) -> None:
        for fd in (self.fd, self.book.fd):
            os.close(fd)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Iterator[Raised]:
    monkeypatch.setattr(caller, "may_not_raise", lambda *_: "")
    monkeypatch.setattr(asking, "resume", mock.Mock())
    made = Raised()
    path, inode = f"/proc/self/fd/{made.fd}", os.fstat(made.fd).st_ino
    monkeypatch.setattr(raising, "matching", lambda ids: [Found(made.now, path, inode, made.book, True)])
    yield made
    made.close()


def test_a_budget_is_not_raised_while_its_broker_may_keep_the_former_limits(
    raised: Raised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is changed if a broker has raised it. A stranger may say so, too, and the silent one be the true one."""
    for tokens, asked, now in (
        ("10k", Raise(False, "", ["/x"]), 9000),
        ("10k", Raise(True, "", ["/x", "/y"]), 10_000),
    ):
        monkeypatch.setattr(asking, "raise_purse", lambda *_, asked=asked: asked)
        with pytest.raises(Failure, match="no answer from the broker /x") as failed:
            raised.to(tokens)
        assert failed.value.status == TRY_AGAIN and raised.now.tokens == now
    opposed = Raise(True, "", [], ("/z",))
    monkeypatch.setattr(asking, "raise_purse", lambda *_: opposed)
    with pytest.raises(Failure, match="a broker says that it is raised, and /z refuses"):
        raised.to("15k")
    for tokens, done in (("20k", True), ("30k", False)):
        monkeypatch.setattr(asking, "raise_purse", lambda *_, done=done: Raise(done, "", []))
        assert raised.to(tokens) == 0
    assert raised.now.tokens == 30_000

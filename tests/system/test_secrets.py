"""Canary keys: with the guest they work, and nowhere else are they seen, in no process, file, stream or tape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import processes
from tests.support.agents import OK, QUINE, call, sh
from tests.support.crowd import Crowd, meet
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

CANARIES = {
    "QUINE_API_KEY": KEY,
    **{
        name: f"canary-{number}-{name.lower()}"
        for number, name in enumerate((
            "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
            "GITHUB_TOKEN", "HF_TOKEN",
            "PGPASSWORD", "MYSQL_PWD", "DB_PASSWORD", "SSH_PASSPHRASE", "MY_SECRET", "NPMTOKEN",
        ))
    },
    "COPY": f"https://x:{KEY}@host",  # a name that says nothing
}  # fmt: skip
SECRETS = tuple(value.encode() for name, value in CANARIES.items() if name != "COPY")
NAP = "71793"  # seconds that only a test sleeps


class Tree(Crowd):
    """Agents with canaries, whose guest is a strict server: it answers only requests with the right key."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.plan: dict[str, list[Said | Fault]] = {}  # by "mission" or "mission/word in its wisdom"
        self.provider = Provider(chat, choose=self.choose)

    def __enter__(self) -> Tree:
        super().__enter__()
        self.provider.__enter__()
        base = {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{self.provider.base}/v1",
            "QUINE_MODEL_ID": "m",
        }
        self.env |= base | CANARIES
        return self

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)
        self.provider.__exit__(*why)

    def choose(self, seen: Seen) -> Said | Fault:
        """Return the next reply for the mission in the system prompt and for the text of the first message."""
        system, first, *rest = seen.body["messages"]
        fit = [name for name in self.plan if all(
            word in text for word, text in zip(name.split("/"), (system["content"], first["content"]), strict=False)
        )]  # fmt: skip
        mission = max(fit, key=len)
        ordinal = sum(message["role"] == "assistant" for message in rest)
        return self.plan[mission][ordinal]

    def in_processes(self) -> set[str]:
        """Where /proc shows a canary: environments and argument lists of all that the tree has started."""
        found = set()
        marked = processes.marked(self.mark, brokers=True)
        pids = {process.pid for process in marked}
        pids |= {pid for top in pids for pid in processes.descendants(top)}
        for pid in pids:
            for what in ("environ", "cmdline"):
                try:
                    text = Path(f"/proc/{pid}/{what}").read_bytes()
                except OSError:  # it has just ended
                    continue
                found |= {f"{what} of {pid}: {secret!r}" for secret in SECRETS if secret in text}
        assert pids
        return found

    def in_files(self) -> set[str]:
        """Which files below the directory of the test hold a canary."""
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        assert any(path.suffix == ".jsonl" for path in files)
        return {f"{path}: {secret!r}" for path in files for secret in SECRETS if secret in path.read_bytes()}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with Tree(tmp_path) as made:
        yield made


def said(*calls: dict[str, Any]) -> Said:
    return Said(calls=calls)


def fork(intent: str, **more: Any) -> dict[str, Any]:
    return call("fork", intent=intent, context="none", **more)


def leaves_nothing(tree: Tree, out: bytes, err: bytes) -> None:
    assert [secret for secret in SECRETS if secret in out + err] == []
    assert tree.gone()
    assert tree.in_files() == set()


@pytest.mark.long
def test_a_whole_tree(tree: Tree) -> None:
    """Root with a background job and a nested quine, a child, a grandchild; then the next life; then a foreign program.

    All of them reach the guest, which checks the key, and none of them shows one.
    """
    look = "env; set; export -p; cat /proc/self/environ; cat /proc/$PPID/environ /proc/$PPID/cmdline"
    foreign = (
        f"env; cat /proc/self/environ; {meet().replace('$PPID', '$$')}; quine nested-third && echo foreign"
    )
    tree.plan = {
        "root-errand": [
            said(fork("child-errand"), sh(f"sleep {NAP}1 & quine nested-first & {look}; {meet()}; wait %2")),
            said(call("exec", wisdom={"k": "second-life"})),
        ],
        "root-errand/second-life": [
            said(sh(f"{look}; quine nested-second; {meet()}")),
            said(call("exec", argv=["sh", "-c", foreign])),
        ],
        "child-errand": [said(sh(f"{look}; {meet()}"), fork("grandchild", wait=True)), said(OK)],
        "grandchild": [said(sh(f"{look}; {meet()}")), said(OK)],
        "nested-first": [said(sh(f"{look}; {meet()}")), said(OK)],
        "nested-second": [said(sh(look)), said(OK)],
        "nested-third": [said(sh(f"{look}; env >&4")), said(OK)],
    }
    with tree.start("root-errand", "-v", "--report", "report.json") as root:
        tree.arrive(3)
        assert tree.in_processes() == set()
        tree.let_go(3)
        tree.arrive(2)  # the grandchild, and the next life
        assert tree.in_processes() == set()
        tree.let_go(2)
        assert tree.arrive(1) == [str(root.pid)]  # the foreign program is the same process
        assert tree.in_processes() == set()
        tree.let_go(1)
        out, err = root.communicate(timeout=120)
    assert root.returncode == 0, err
    assert out.endswith(b"foreign\n") and b"QUINE_MODEL_ID=m" in out
    assert len(tree.tapes()) == 7
    leaves_nothing(tree, out, err)


@pytest.mark.parametrize("limit", ["20480", "100"], ids=["shown", "kept in a file"])
def test_an_agent_that_looks_for_its_secret(tree: Tree, limit: str) -> None:
    """It finds no key in inherited memory, and none is in its output, short or cut, or in that of a child."""
    tree.env["QUINE_OUTPUT_TRUNCATE"] = limit
    memos = "for fd in /proc/$PPID/fd/* /proc/$$/fd/*; do case $(readlink $fd) in /memfd:*) cat $fd; echo;; esac; done"
    look = f"{memos}; seq 99"
    tree.plan = {
        "root-errand": [
            said(
                sh(look),
                sh(f"x=$({look}); echo $x >&2"),
                fork("child-errand"),
                fork("child-errand", wait=True),
            ),
            said(OK),
        ],
        "child-errand": [said(sh(f"{look} >&4; {look} >&5")), said(OK)],
    }
    done = tree.run(mission="root-errand")
    assert done.returncode == 0, done.stderr
    assert KEY.encode() not in done.stdout + done.stderr
    first = tree.results("root-errand")[0]
    assert KEY not in first and ("lineage" in first or limit == "100")
    tapes = {
        path.name for path in tree.data.glob("*.jsonl") for secret in SECRETS if secret in path.read_bytes()
    }
    assert tapes == set()


def echoes(status: int, kind: str) -> Fault:
    """Some servers quote the key that they refuse."""
    return Fault(status, kind, {"retry-after-ms": "1"}, f"Incorrect API key provided: {KEY}. You can find it")


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (echoes(401, "auth"), 2),
        (echoes(404, "model"), 2),
        (echoes(400, "bad"), 1),
        (echoes(500, "server"), 75),
    ],
)
def test_a_server_that_quotes_the_key(tree: Tree, answer: Fault, code: int) -> None:
    tree.plan = {"root-errand": [answer]}
    done = tree.run(mission="root-errand", options=["-v", "--report", "report.json"])
    assert done.returncode == code
    assert b"Incorrect API key provided" in done.stderr
    leaves_nothing(tree, done.stdout, done.stderr)


def test_a_password_in_the_base(tree: Tree) -> None:
    """A proxy's, as in http://user:password@host: it is no more for commands and logs than any other."""
    password = "canary-of-a-proxy-5d1f"
    base = tree.provider.base.replace("http://", f"http://me:{password}@")
    tree.env["QUINE_API_BASE"] = base.rpartition(":")[0] + ":1/v1"  # where nobody listens
    with tree.start("root-errand", "-v") as process:
        assert process.stderr is not None
        early = [next(line for line in process.stderr if b"try 2" in line)]
        process.terminate()
        out, err = process.communicate(timeout=120)
    assert password.encode() not in b"".join([out, err, *early])
    assert [
        path
        for path in tree.directory.rglob("*")
        if path.is_file() and password.encode() in path.read_bytes()
    ] == []


@pytest.mark.long
@pytest.mark.parametrize("where", ["python", "subshell", "shells"])
def test_each_reaches_its_guest(tree: Tree, where: str) -> None:
    """A quine that is called from another language, from a subshell, and two shells further down."""
    quine = " ".join(QUINE)
    inner = {
        "python": f"python3 -c 'import os; os.system(\"exec {quine} inner-errand\")'",
        "subshell": f"(exec {quine} inner-errand)",
        "shells": f"sh -c 'sh -c \"{quine} inner-errand\"'",
    }[where]
    tree.plan = {
        "root-errand": [said(sh(inner)), said(OK)],
        "inner-errand": [said(sh("echo inner >&4")), said(OK)],
    }
    done = tree.run(mission="root-errand")
    assert done.returncode == 0, done.stderr
    assert "inner" in tree.results("root-errand")[0]
    leaves_nothing(tree, done.stdout, done.stderr)

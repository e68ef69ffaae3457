"""make mutants: change the product on purpose, and see that a test notices.

    python scripts/mutants.py                  every mutation of the table, and SAMPLE drawn ones of each module
    python scripts/mutants.py --table          the table alone
    python scripts/mutants.py --draw 50 --seed 7 transport/wire/flow.py
                                               fifty drawn mutations of one module

Two kinds of mutations. The table (`mutants.toml`) names changes that once survived: each must be noticed by the
tests that it names. Drawn ones come from the syntax tree of MODULES by a seed: a comparison turned round, a number
one off, a condition negated, a call or an assignment dropped. A survivor is printed as a diff with the seed; some
are equivalent to the original, which only a reader can tell, so drawn survivors do not fail the run.

A mutated tree is a copy with a virtual environment of its own, so that the processes which tests start are mutated,
too; several are worked in at one time. The test that notices a mutation is run without it, too: a test that fails by
itself has noticed nothing. The exit status is 1 when a mutation of the table survived or no longer applies.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
SAMPLE = 10  # drawn mutations of each module
HANGS = 120  # seconds of one test; a mutation that makes it hang is noticed
UNSOUND = "fails without it, too:"
JOBS = 2 * (os.cpu_count() or 2)  # at one time: their tests wait most of the time

# Module -> the tests that must notice a change of it, the quickest first.
MODULES = {
    "transport/wire/session.py": [
        "tests/transport/wire/test_session.py",
        "tests/transport/wire/test_resume.py",
        "tests/transport/rpc/test_streams.py",
    ],
    "transport/wire/outbox.py": [
        "tests/transport/wire/test_session.py",
        "tests/transport/rpc/test_streams.py",
    ],
    "transport/wire/flow.py": ["tests/transport/wire/test_flow.py", "tests/transport/wire/test_session.py"],
    "transport/wire/resume.py": ["tests/transport/wire/test_resume.py"],
    "transport/job/job.py": [
        "tests/transport/job/test_job.py",
        "tests/transport/node/test_node.py",
        "tests/cli/test_run.py",
        "tests/system/test_lease.py",
    ],
    "transport/launcher/launcher.py": [
        "tests/transport/launcher/test_launcher.py",
        "tests/transport/launcher/test_quick.py",
        "tests/transport/job/test_launching.py",
        "tests/transport/job/test_launcher_killed.py",
    ],
    "transport/rpc/services.py": [
        "tests/transport/rpc/test_services.py",
        "tests/transport/rpc/test_streams.py",
    ],
    "quine/budget/ledger.py": ["tests/budget/test_ledger.py", "tests/budget/test_agents.py"],
    "quine/tape/lines.py": [
        "tests/tape/test_tape.py",
        "tests/tape/test_masks.py",
        "tests/tape/test_verify.py",
    ],
    "quine/tape/redact.py": ["tests/tape/test_masks.py"],
    "quine/tape/writer.py": [
        "tests/tape/test_tape.py",
        "tests/tape/test_masks.py",
        "tests/tape/test_verify.py",
    ],
    "quine/files/layers/quota.py": ["tests/files/test_quota.py"],
    "quine/files/layers/account.py": ["tests/files/test_quota.py"],
    "quine/fanout/journal.py": ["tests/fanout/test_output.py", "tests/fanout/test_adoption.py"],
    "quine/fanout/joblog.py": [
        "tests/fanout/test_output.py",
        "tests/fanout/test_xargs.py",
        "tests/fanout/test_adoption.py",
    ],
    "quine/staging/apply.py": [
        "tests/staging/test_staging.py",
        "tests/staging/test_write_aside.py",
        "tests/staging/test_hosts.py",
    ],
    "quine/staging/store.py": ["tests/staging/test_staging.py", "tests/staging/test_hosts.py"],
    "quine/broker/admission.py": ["tests/broker/test_broker.py", "tests/broker/test_hostile.py"],
}


@dataclass(frozen=True)
class Mutation:
    """One change of one file. `text` is the whole file afterwards."""

    name: str
    file: str
    text: str
    tests: list[str]

    def diff(self) -> str:
        before = (ROOT / self.file).read_text()
        if self.name.startswith("drawn"):
            before = ast.unparse(ast.parse(before))  # as the change was made: without comments
        lines = difflib.unified_diff(before.splitlines(), self.text.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


# -- the table -------------------------------------------------------------------------------------


def table() -> Iterator[Mutation | str]:
    """Yield the mutations of the table; a text in place of one that no longer applies."""
    for name, entry in tomllib.loads(TABLE.read_text()).items():
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["old"]) != 1:
            yield f"{name}: {entry['file']} holds its text {text.count(entry['old'])} times, not once"
        else:
            yield Mutation(name, entry["file"], text.replace(entry["old"], entry["new"]), entry["tests"])


# -- drawn ones ------------------------------------------------------------------------------------

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the possible changes of one node: (attribute, value afterwards)."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _TURNED:
        yield "ops", [_TURNED[type(node.ops[0])](), *node.ops[1:]]
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        yield "op", _SWAPPED[type(node.op)]()
    if isinstance(node, ast.BoolOp):
        yield "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "value", node.value + 1
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "value", not node.value
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "test", ast.UnaryOp(ast.Not(), node.test)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for at, statement in enumerate(body):
            plain = isinstance(statement, (ast.Assign, ast.AugAssign)) or (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            )
            if plain:
                yield "body", [*body[:at], ast.Pass(), *body[at + 1 :]]


def drawn(file: str, count: int, seed: int) -> list[Mutation]:
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    places = [
        (f, i, n)
        for f, at in enumerate(functions)
        for i, node in enumerate(ast.walk(at))
        for n in _numbers(node)
    ]
    chosen = random.Random(f"{seed} {file}").sample(places, min(count, len(places)))
    found = []
    for function, index, number in chosen:
        mutated = copy.deepcopy(tree)
        inside = [n for n in ast.walk(mutated) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))][
            function
        ]
        node = list(ast.walk(inside))[index]
        name, value = list(_changes(node))[number]
        setattr(node, name, value)
        text = ast.unparse(ast.fix_missing_locations(mutated))
        found.append(Mutation(f"drawn {function}.{index}.{number}", file, text, MODULES[file]))
    return found


def _numbers(node: ast.AST) -> range:
    return range(len(list(_changes(node))))


# -- running them ----------------------------------------------------------------------------------


class Tree:
    """A copy of the checkout, with its virtual environment, in which one file at a time is changed."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        venv = Path(sys.prefix)
        shutil.copytree(venv, self.root / ".venv", symlinks=True, copy_function=_link)
        site = next((self.root / ".venv").glob("lib/python*/site-packages"))
        for path in [
            *(self.root / ".venv" / "bin").iterdir(),
            *site.glob("*.pth"),
            *site.glob("*quine*/*.json"),
        ]:
            _rewrite(path, str(venv.parent), str(self.root))

    def noticed(self, mutation: Mutation) -> str:
        """Return what notices it: the first line of pytest's about it; "" where all of its tests pass all the same."""
        target, said = self.root / mutation.file, self.root.with_name("said")
        target.write_text(mutation.text)
        try:
            status = self._test(mutation.tests, said)
        finally:
            shutil.copy2(ROOT / mutation.file, target)
        if status > 2:  # 1, 2: failed or interrupted; other statuses say that nothing was run
            raise SystemExit(f"{mutation.name}: pytest ended with {status}: {mutation.tests}")
        if not status:
            return ""
        lines = said.read_text(errors="replace").splitlines()
        says = [line for line in lines if line.startswith(("FAILED tests", "ERROR tests"))]
        if not says:
            return f"pytest ended with {status}"
        by = says[0].partition(" ")[2].partition(" - ")[0]
        return f"{UNSOUND} {by}" if self._test([by], said) else says[0]

    def _test(self, tests: list[str], said: Path) -> int:
        """Return the status of pytest. Its stdout is a file: a pipe would wait for what a failing test leaves."""
        command = [
            self.root / ".venv/bin/python",
            "-m",
            "pytest",
            f"--timeout={HANGS}",
            *("-q", "-x", "-n0"),
            *tests,
        ]
        with said.open("wb") as out:
            return subprocess.run(
                command, cwd=self.root, stdout=out, stderr=subprocess.DEVNULL, check=False
            ).returncode


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _rewrite(path: Path, old: str, new: str) -> None:
    """Replace a path in a text file, by a new file: this one is a hard link."""
    if path.is_symlink() or not path.is_file():
        return
    data = path.read_bytes()
    if old.encode() in data and b"\0" not in data:
        mode = path.stat().st_mode
        path.unlink()
        path.write_bytes(data.replace(old.encode(), new.encode()))
        path.chmod(mode)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "modules", nargs="*", choices=[[], *MODULES], help="modules to draw from; default: all"
    )
    parser.add_argument("--table", action="store_true", help="only the table")
    parser.add_argument(
        "--draw", type=int, default=SAMPLE, metavar="N", help=f"drawn of each module ({SAMPLE})"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help=f"at one time ({JOBS})")
    options = parser.parse_args()
    stale = [entry for entry in table() if isinstance(entry, str)]
    work = [] if options.modules else [entry for entry in table() if isinstance(entry, Mutation)]
    named = len(work)
    if not options.table:
        for file in options.modules or MODULES:
            work += drawn(file, options.draw, options.seed)
    survivors = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
        trees, own = itertools.count(), threading.local()

        def start() -> None:
            own.tree = Tree(Path(directory) / str(next(trees)))

        pool = ThreadPoolExecutor(options.jobs, initializer=start)
        stack.callback(pool.shutdown, cancel_futures=True)
        outcomes = pool.map(lambda mutation: own.tree.noticed(mutation), work)
        for number, (mutation, by) in enumerate(zip(work, outcomes, strict=True)):
            outcome = "noticed " if by and not by.startswith(UNSOUND) else "SURVIVED"
            print(f"{outcome}  {mutation.file}  {mutation.name}  {by[:100]}", flush=True)
            if outcome == "SURVIVED":
                survivors.append((number < named, mutation))
    for _, mutation in survivors:
        print(f"\n{mutation.file}, {mutation.name}, seed {options.seed}:\n{mutation.diff()}")
    for text in stale:
        print(f"stale: {text}")
    print(f"\n{len(work) - len(survivors)} of {len(work)} mutations noticed")
    return 1 if stale or any(is_named for is_named, _ in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())

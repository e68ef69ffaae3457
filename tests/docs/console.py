"""Console blocks of a document, run: one shell for a page, with the lab behind it, and the output compared.

    python -m tests.docs.console PAGE.md…             run them, and print what differs
    python -m tests.docs.console --update PAGE.md…    write into the page what the commands print

A block is fenced by ```console. A line that begins with `$ ` is a command, lines with `> ` behind it continue it, and
what follows is its output: stdout and stderr as they come.

Laws
1. Ids, times, dates, pids, ports, and sizes of disks and of builds are placeholders. `…` stands for any text of a line,
   and alone for any number of lines. Everything else has to be there as it is printed, up to the width of columns.
2. An id that was printed stands for itself afterwards: where a later command or output names it, or its beginning, the
   id of this run is meant.
3. The hosts are those of the lab under names that a reader understands: db1, gpu1, gpu2. The guest is
   examples/guest.jsonl.
4. A page may have a script that prepares its session, tests/docs/PAGE.sh, run in the same shell. An EXIT trap of the
   script undoes its changes.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
HOSTS = {
    "db1": ("h1", 'tags = ["db"]\nabout = "the database, logs in ~/logs"'),
    "gpu1": ("h2", 'tags = ["gpu"]\nslots = 8\nmay_fork = ["@gpu"]'),
    "gpu2": ("h3", 'tags = ["gpu"]\nslots = 8'),
}
PATIENCE = 120.0  # seconds for one command, on a busy machine
OPEN, CLOSE = "```console", "```"

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}(?:-[0-9a-f]{4}-[0-9a-f]{12})?"
BEGINNING = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){0,3}(?:-[0-9a-f]{12})?(?![0-9a-f-])")
# placeholders: each stands for any value of its kind, in a page and in the output
TOKEN = re.compile(
    rf"(?P<id>\b{UUID}(?![0-9a-f-]))"
    r"|(?P<hash>\b[0-9a-f]{64}\b|SHA256:[\w+/]{43})"
    r"|(?P<date>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)"
    r"|(?P<room>\b\d+ MB\b)"
    r"|(?P<size>\b\d+ kB, sha256 [0-9a-f]{16}\b)"
    r"|(?P<taken>\b\d+ ms\b)"
    r"|(?P<port>\b(?:port|pid) \d+\b)"
    r'|(?P<pid>"pid": ?\d+)'
    r"|(?P<address>\b\d+\.\d+\.\d+\.\d+(?::\d+)?)"
    r"|(?P<real>\b\d+\.\d+(?:e-?\d+)?\b)"
    r"|(?P<any>…)"
    r"|(?P<space>[ \t]+)"
)
PATTERNS = {
    "hash": r"(?:[0-9a-f]{64}|SHA256:[\w+/]{43})",
    "date": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?",
    "room": r"\d+ MB",
    "size": r"\d+ kB, sha256 [0-9a-f]{16}",
    "taken": r"\d+ ms",
    "port": r"(?:port|pid) \d+",
    "pid": r'"pid": ?\d+',
    "address": r"\d+\.\d+\.\d+\.\d+(?::\d+)?",
    "real": r"\d+(?:\.\d+)?(?:e-?\d+)?",
    "any": r"[^\n]*?",
    "space": r"[ \t]+",
}


@dataclass
class Command:
    """One command of a page, and its output in the page. `line` is its line, `end` the line after its output."""

    text: str
    output: list[str]
    line: int
    begin: int  # lines of its output, as indices of the page
    end: int


def commands(page: str) -> Iterator[Command]:
    """The commands of the console blocks of a page, in their order."""
    inside = indent = False
    found: Command | None = None
    continued = False
    for at, raw in enumerate(page.split("\n")):
        line = raw.removeprefix("    ") if indent else raw
        if not inside:
            inside = line.strip() == OPEN
            indent = inside and raw.startswith("    ")
            continue
        if line.startswith(CLOSE) or line.startswith("$ "):
            if found:
                found.end = at
                yield found
            found = None
        if line.startswith(CLOSE):
            inside = indent = False
        elif line.startswith("$ "):
            found, continued = Command(line[2:], [], at + 1, at + 1, at + 1), True
        elif found and continued and (line.startswith("> ") or line == ">"):
            found.text += "\n" + line[2:]
            found.begin = at + 1
        elif found:
            continued = False
            found.output.append(line)
        else:
            raise ValueError(f"line {at + 1}: a console block begins with a command")


@dataclass
class Ids:
    """Ids of a page and the ids of this run that they stand for."""

    known: dict[str, str] = field(default_factory=dict)

    def of(self, text: str) -> str | None:
        """Return the id of this run for an id of the page or for its beginning."""
        for written, real in self.known.items():
            if written.startswith(text):
                return real
        return None

    def put_into(self, text: str) -> str:
        return BEGINNING.sub(lambda match: self.of(match[0]) or match[0], text)

    def learn(self, written: str, real: str) -> bool:
        """Note the id of this run for a written one; return whether it agrees with the one noted before."""
        before = self.of(written)
        if before is None:
            self.known[written] = real
            return True
        if len(real) > len(before) and real.startswith(before):
            self.known = {key: real if value == before else value for key, value in self.known.items()}
        return before.startswith(real) or real.startswith(before)


def differs(expected: list[str], printed: str, ids: Ids) -> bool:
    """Whether an output is not the one that the page shows; learns its ids."""
    if expected[:1] and expected[0].startswith("NODE "):
        expected, printed = _sorted(expected), _shown(_sorted(printed.split("\n")[:-1]))
    pattern, written = "", []
    column: tuple[int, ...] = ()
    for line in expected:
        cells = list(re.finditer(r"\S+", line))
        if cells and cells[0][0] in ("NODE", "ID", "HOST"):
            column = tuple(at for at, cell in enumerate(cells) if cell[0] in ("PID", "USER"))
        else:
            for cell in (cells[at] for at in reversed(column) if at < len(cells)):
                line = f"{line[: cell.start()]}…{line[cell.end() :]}"
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
            continue
        line, last = line.rstrip(), 0
        for match in TOKEN.finditer(line):
            pattern += re.escape(line[last : match.start()])
            last = match.end()
            if match["id"]:
                written.append(match["id"])
                pattern += f"({UUID})"
            else:
                pattern += PATTERNS[str(match.lastgroup)]
        rest = line[last:]
        begun = BEGINNING.fullmatch(rest)
        pattern += re.escape(ids.of(rest) or rest if begun else rest) + r"[ \t]*\n"
    found = re.fullmatch(pattern, printed)
    return not found or not all(
        ids.learn(name, real) for name, real in zip(written, found.groups(), strict=True)
    )


def _sorted(tree: list[str]) -> list[str]:
    """`quine tape tree` with the rows by mission: children that began at the same time come in either order."""
    return tree[:1] + sorted(tree[1:], key=lambda line: (line.split()[5:], line.split()[:1]))


class Session:
    """One shell at the origin of a lab, in a directory of its own. A context manager."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.directory = lab.work / f"docs-{name}"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        inventory = lab.directory / "docs.toml"  # one for all pages, so that they share their links
        inventory.write_text(_inventory(lab))
        clone = lab.home / "src" / "quine"
        clone.parent.mkdir(exist_ok=True)
        if not clone.is_symlink():
            clone.symlink_to(ROOT)
        env = {
            **lab.env,
            "QUINE_INVENTORY": str(inventory),
            "QUINE_API_TYPE": "script",
            "QUINE_API_BASE": str(ROOT / "examples" / "guest.jsonl"),
            "PAGER": "cat",
            **{f"HOME_{name}": str(lab[of].home) for name, (of, _) in HOSTS.items()},
        }
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=self.directory,
            process_group=0,
        )
        self._mark = f"end-{os.urandom(8).hex()}"
        prepared = ROOT / "tests" / "docs" / f"{name}.sh"
        if prepared.exists() and (said := self.run(f". {prepared}")):
            raise AssertionError(f"{prepared}: {said}")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        assert process.stdin and process.stdout
        try:
            process.stdin.close()
            process.wait(PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            process.stdout.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, command: str) -> str:
        """Return the output of a command, stdout and stderr; `$?` is that of the command before."""
        quoted = "'" + command.replace("'", "'\\''") + "'"
        line = f'eval {quoted} </dev/null 2>&1; __s=$?; printf "\\n%s\\n" {self._mark}; (exit $__s)\n'
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        wanted, printed = f"\n{self._mark}\n".encode(), b""
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not printed.endswith(wanted):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"not done in {PATIENCE:.0f} s: {command}\n{printed.decode()}")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise AssertionError(f"the shell has ended: {command}\n{printed.decode()}")
                printed += data
        return printed.removesuffix(wanted).decode(errors="replace")


def _inventory(lab: Lab) -> str:
    text = f"[defaults]\nlease = {lab.lease}\n"
    for name, (of, more) in HOSTS.items():
        host = lab[of]
        text += (
            f'\n[hosts.{name}]\naddress = "{host.address}"\nport = {host.port}\nuser = "{host.user}"\n'
            f'identity = "{lab.identity}"\n{more}\n'
        )
    return text


def name_of(path: Path) -> str:
    return path.stem.lower()


def run(lab: Lab, path: Path, update: bool = False) -> list[str]:
    """Run the page. Returns what differs, a text for each command; with `update` the page is written anew instead."""
    page = path.read_text()
    lines, wrong, ids = page.split("\n"), [], Ids()
    changes: list[tuple[Command, list[str]]] = []
    with Session(lab, name_of(path)) as session:
        for command in commands(page):
            printed = session.run(ids.put_into(command.text))
            if printed and not printed.endswith("\n"):
                printed += "\n"
            if differs(command.output, printed, ids):
                changes.append((command, printed.split("\n")[:-1]))
                wrong.append(
                    f"{path.relative_to(ROOT)}:{command.line}: $ {command.text}\n"
                    f"--- the page\n{_shown(command.output)}+++ printed\n{printed}"
                )
    if update:
        for command, printed_lines in reversed(changes):
            indent = "    " if lines[command.line - 1].startswith("    ") else ""
            lines[command.begin : command.end] = [indent + line if line else line for line in printed_lines]
        path.write_text("\n".join(lines))
    return wrong


def _shown(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def main(words: list[str]) -> int:
    """Exit status."""
    update = words[:1] == ["--update"]
    status = 0
    with Lab(installed=True) as lab:
        for word in words[update:]:
            began = time.monotonic()
            wrong = run(lab, Path(word).resolve(), update)
            status |= bool(wrong)
            print("".join(f"{text}\n" for text in wrong) + f"{word}: {time.monotonic() - began:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`quine fs` as a user calls it, in a directory with a tier of its own.

Laws
1. A command runs in the process of the test, which costs a twentieth of a process: its streams, directory and
   environment are exchanged for those of the shelf. The main program does no more than to watch signals and to end.
2. `popen`, `apart` and `sh` start real processes, for tests of signals, pipes, races and of what others see.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any
from unittest import mock

from quine.__main__ import _mount
from quine.base.errors import Failure, complain
from quine.files.cli.main import perform
from tests.support.agents import QUINE

HOSTILE = (  # names that a filesystem allows
    b"a b", b"new\nline", b"-rf", b"--", b"caf\xc3\xa9", b"cafe\xcc\x81", b"\xff\xfe", b"star*", b"q?", b"[x]",
    b"back\\slash", b'quo"te\'s', b"~", b"%2e%2e", b".hidden", b"tier:x", b"\x1b[31m", b"\t", b"n" * 255, b"#",
    b"$HOME", b"...",
)  # fmt: skip


class Shelf:
    """Commands run in `directory`; the files of the tier lie in `tier`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tier = directory / "data" / "fs"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "XDG_STATE_HOME": f"{directory}-state",  # not in the trees that are copied
            "QUINE_DATA_DIR": str(directory / "data"),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        }

    def popen(self, *words: str | bytes | Path, **more: Any) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*QUINE, "fs", *words], cwd=self.directory, env=self.env, **(streams | more))

    def run(
        self, *words: str | bytes | Path, input: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in this process."""
        line = [os.fsdecode(word) for word in words]
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            tempfile.TemporaryFile() as given,
        ):
            given.write(input or b"")
            given.seek(0)
            with _standing(self.directory, self.env, given, out, err):
                try:
                    status = perform(line, _mount)
                except Failure as failure:
                    complain(failure.detail, failure.hint, failure.host)
                    status = failure.status
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(["quine", "fs", *line], status, out.read(), err.read())

    def apart(
        self, *words: str | bytes | Path, input: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a process of its own."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(*words, stdin=stdin) as process:
            out, err = process.communicate(input, timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ok(self, *words: str | bytes | Path, input: bytes | None = None) -> bytes:
        """Run a command that must succeed without messages; return its stdout."""
        done = self.run(*words, input=input)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout

    def fails(self, *words: str | bytes | Path, status: int = 1, input: bytes | None = None) -> str:
        """Run a command that must fail and print nothing on stdout; return its stderr."""
        done = self.run(*words, input=input)
        assert (done.returncode, done.stdout) == (status, b""), done
        assert done.stderr.startswith(b"quine: error: ")
        return done.stderr.decode()

    def sh(self, line: str) -> subprocess.CompletedProcess[bytes]:
        """Run a line of bash with pipefail, in which `fs` is the command."""
        words = " ".join(f"'{word}'" for word in [*QUINE, "fs"])
        code = f'set -o pipefail; fs() {{ {words} "$@"; }}\n{line}'
        return subprocess.run(
            ["bash", "-c", code],
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def parts(self) -> list[Path]:
        """Return the parts of unfinished files, in the tier and in the working directory."""
        kept = (
            [path for path in (self.tier / ".quine-parts").rglob("*") if path.is_file()]
            if self.tier.exists()
            else []
        )
        return kept + list(self.directory.rglob("*.part"))


@contextlib.contextmanager
def _standing(directory: Path, env: dict[str, str], *streams: IO[bytes]) -> Iterator[None]:
    """Exchange directory, environment and standard streams of this process."""
    with contextlib.ExitStack() as stack:
        for number, stream in enumerate(streams):
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(stream.fileno(), number)
        stack.enter_context(mock.patch.dict(os.environ, env, clear=True))
        stack.enter_context(contextlib.chdir(directory))
        said = stack.enter_context(open(1, "w", closefd=False))
        stack.enter_context(contextlib.redirect_stdout(said))
        yield


def snapshot(top: Path) -> dict[bytes, object]:
    """Return all entries below a directory: content, mode and time of files; directories."""
    found: dict[bytes, object] = {}
    for folder, directories, files in os.walk(os.fsencode(top)):
        directories[:] = [name for name in directories if name != b".quine-parts"]
        for name in directories:
            found[os.path.relpath(os.path.join(folder, name), os.fsencode(top))] = "directory"
        for name in files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            with open(path, "rb") as file:
                content = file.read()
            found[os.path.relpath(path, os.fsencode(top))] = (
                content,
                status.st_mode & 0o777,
                round(status.st_mtime, 3),
            )
    return found


def many(top: Path, names: Iterable[bytes]) -> None:
    """Empty files in a directory that is there. They are links to one: a disk at work takes its time for inodes."""
    first: bytes | None = None
    for name in names:
        path = os.path.join(os.fsencode(top), name)
        try:
            if first is not None:
                os.link(first, path)
                continue
        except OSError:  # as many links as the filesystem has
            pass
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        first = path


def fill(top: Path, files: dict[bytes, bytes]) -> None:
    """Make files and the directories above them; a path that ends with / is an empty directory."""
    for path, content in files.items():
        whole = os.path.join(os.fsencode(top), path)
        os.makedirs(whole if path.endswith(b"/") else os.path.dirname(whole), exist_ok=True)
        if not path.endswith(b"/"):
            with open(whole, "wb") as file:
                file.write(content)

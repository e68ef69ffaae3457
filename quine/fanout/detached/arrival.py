"""`quine xargs --sent`: a batch that another machine has sent is started here, as `--detach` starts one.

stdin has a line, the command line and an inventory as one JSON object, and behind it the inputs.

Laws
1. The inputs are copied whole, and all is checked, before the batch is started. One that was cut off starts nothing.
2. The line comes from the caller of this very build, who could run any command here.
"""

from __future__ import annotations

import os
from typing import Any

from quine.base.cli_options import RunOptions
from quine.base.cli_options import parse as parse_verb
from quine.base.errors import NOT_STARTED, Failure
from quine.fanout.detached.away import HOSTS, MARK
from quine.fanout.detached.checks import check_log
from quine.fanout.options import parse
from quine.jobs.job_files import Inputs, directory_of, nameless, raised
from transport import quickjson
from transport.writes import write_all

INVENTORY = "inventory.json"  # in the directory of the job
STEP = 1 << 20
CUT_OFF = "the batch did not arrive whole: its sender has gone"


def start(words: list[str]) -> int:
    """Start the batch, and print its id. Return the exit status."""
    from quine.jobs import detach

    options, (shown,) = parse_verb("run", words)
    return detach.batch(options, shown, Arrived(options), False)


class Arrived(Inputs):
    """The inputs of a batch that was sent, which are on stdin."""

    def __init__(self, options: RunOptions) -> None:
        super().__init__(lambda path_of: [])
        self._inventory = f"{directory_of(options.job)}/{INVENTORY}"
        self._hosts: dict[str, Any] = {}

    def take(self, jobs: str) -> list[str]:
        with open(0, "rb", closefd=False) as stdin:
            head = quickjson.loads(_line(stdin))
            self._hosts = head["hosts"]
            files = [(name, raised(_copied(jobs, stdin, size))) for name, size in head["inputs"]]
        paths = {HOSTS: self._inventory}
        for number, (name, fd) in enumerate(files):
            if name == "-":
                self.stdin = fd
            else:
                self.fds += (fd,)
                paths[str(number)] = f"/dev/fd/{fd}"
        argv = [_with_paths(word, paths) for word in head["argv"]]
        options, _, _ = parse(argv[1:])
        check_log(options)
        self._check_ssh()
        if self.stdin < 0:
            self.stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return argv

    def _check_ssh(self) -> None:
        """Raise Failure if the batch needs a program that this machine lacks."""
        from shutil import which

        by_ssh = [
            name for name, table in self._hosts.get("hosts", {}).items() if table["transport"] == "openssh"
        ]
        if by_ssh and not which("ssh"):
            raise Failure(
                NOT_STARTED,
                f"there is no ssh program, by which {', '.join(by_ssh[:3])} would be reached from here",
                "install OpenSSH there, or leave --on out: its jobs then run on that host itself",
                os.environ.get("QUINE_NODE_NAME", ""),
            )

    def keep(self, directory: str) -> None:
        if self._hosts:
            fd = os.open(
                f"{directory}/{INVENTORY}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(fd, "wb") as file:
                file.write(quickjson.dumps(self._hosts).encode())


def _line(stdin: Any) -> bytes:
    line: bytes = stdin.readline()
    if not line.endswith(b"\n"):
        raise Failure(NOT_STARTED, CUT_OFF)
    return line


def _copied(jobs: str, stdin: Any, size: int) -> int:
    """Copy the next `size` bytes into a file without a name, and return it, at its beginning."""
    fd = nameless(jobs)
    try:
        while size:
            data = stdin.read(min(STEP, size))
            if not data:
                raise Failure(NOT_STARTED, CUT_OFF)
            write_all(fd, data)
            size -= len(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _with_paths(word: str, paths: dict[str, str]) -> str:
    before, mark, rest = word.partition(MARK)
    number, _, after = rest.partition(MARK)
    return f"{before}{paths[number]}{after}" if mark else word

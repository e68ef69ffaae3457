"""The first evening: the commands of a new user after the installation, each one as the hint before it says.

Nothing is configured but what a machine has that never had quine: a model server on loopback, or ssh's configuration.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quine.cli import local_servers
from tests.lab import Lab
from tests.lab.lab import CARRIER
from tests.support.agents import OK, call
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said

MODEL = "qwen3:8b"
MISSION = "write a greeting into hello.txt, and print it"


class Ollama:
    """Its chat completions: no key, the models that it has, contents as text, the fields that it knows."""

    error, reply_json, reply_events = chat.error, chat.reply_json, chat.reply_events

    @staticmethod
    def check(headers: Mapping[str, str], path: str, body: Any) -> str | None:
        if "authorization" in headers:
            return "a key, and nobody has given one"
        if body.get("model") != MODEL:
            return f"model {body.get('model')!r} not found"
        if any(isinstance(message.get("content"), list) for message in body["messages"]):
            return "a list of parts, which loses its tool_call_id"
        return chat.check({"authorization": f"Bearer {KEY}"}, path, body)


GREETS = Said("", (call("sh", command="echo hello >hello.txt; cat hello.txt >&4"),))


@pytest.fixture
def ollama() -> Iterator[Provider]:
    with Provider(Ollama, GREETS, Said("", (OK,))) as provider:
        provider.facts = {
            "/v1/models": {
                "object": "list",
                "data": [{"id": MODEL, "object": "model", "owned_by": "library"}],
            },
            "/api/ps": {"models": [{"name": MODEL, "context_length": 16_384}]},
        }
        yield provider


class Person:
    """Types commands into a shell in an empty directory. `exports` are the variables that were set on the way."""

    def __init__(self, home: Path, port: int = 0) -> None:
        self.home = home
        self.typed = 0
        self.exports: dict[str, str] = {}
        bin = home / ".local" / "bin"
        bin.mkdir(parents=True)
        (home / "work").mkdir()
        # The usual port of the server may be taken on the machine of a test.
        ports = f"from quine.cli import local_servers; local_servers.PORTS = ({port},)" if port else ""
        program = (
            f"#!{sys.executable} -P\nimport sys\n{ports}\nfrom quine.__main__ import main\nsys.exit(main())\n"
        )
        (bin / "quine").write_text(program)
        (bin / "quine").chmod(0o755)
        self.environ = {
            "HOME": str(home),
            "PATH": f"{bin}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
            "QUINE_BROKER_IDLE": "0.5",
        }

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        self.typed += 1
        assert self.typed <= 5, "five commands at most"
        if line.startswith("export "):
            self.exports |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
            return subprocess.CompletedProcess(line, 0, "", "")
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.home / "work",
            env={**self.environ, **self.exports},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


def hinted(done: subprocess.CompletedProcess[str], pattern: str) -> str:
    """Return the command that the hint of a failed one names."""
    assert done.returncode and not done.stdout, done
    hints = [line for line in done.stderr.splitlines() if line.startswith("quine: hint: ")]
    found = re.search(pattern, hints[0])
    assert found, hints
    return found[0]


def test_a_laptop_with_ollama(ollama: Provider, tmp_path: Path) -> None:
    """Typed at once: the error names the server that answers here, its model, and the line that takes it."""
    person = Person(tmp_path, ollama.server_address[1])
    export = hinted(
        person.types(f"quine {shlex.quote(MISSION)}"), r"export QUINE_API_BASE=\S+ QUINE_MODEL_ID=\S+"
    )
    person.types(export)
    done = person.types(f"quine {shlex.quote(MISSION)}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert (person.home / "work" / "hello.txt").read_text() == "hello\n"
    assert person.typed == 3


def test_a_laptop_whose_user_knows_of_ollama(ollama: Provider, tmp_path: Path) -> None:
    """The model is what is missing: its names come from the server, by the command that the hint names."""
    person = Person(tmp_path, 1)
    person.types(f"export OLLAMA_HOST={ollama.base}")
    doctor = hinted(person.types(f"quine {shlex.quote(MISSION)}"), r"quine doctor --guest")
    told = person.types(doctor).stdout
    (models,) = [line for line in told.splitlines() if " models " in line]
    assert MODEL in models and "--model" in told
    done = person.types(f"quine --model {MODEL} {shlex.quote(MISSION)}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_the_ports_are_those_of_ollama_and_others() -> None:
    assert local_servers.PORTS[0] == 11434


@pytest.mark.skipif(CARRIER != "ssh", reason="a host without a table has no carrier of its own")
def test_three_hosts_of_ssh_without_an_inventory(lab: Lab, tmp_path: Path) -> None:
    names = ["web1", "web2", "db1"]
    config = lab.home / ".ssh" / "config"
    before = config.read_text()
    ways = [(name, lab[host]) for name, host in zip(names, ("h1", "h2", "h3"), strict=True)]
    added = "".join(f"Host {n}\n HostName {h.address}\n Port {h.port}\n User {h.user}\n" for n, h in ways)
    config.write_text(f"IdentityFile {lab.identity}\n{before}{added}")
    env = {"QUINE_INVENTORY": None, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    together = tmp_path / "together"
    together.mkdir()
    script = f'>{together}/$0; until test "$(ls {together} | wc -l)" = 3; do sleep 0.01; done; echo $QUINE_NODE_NAME'

    def types(*words: str) -> subprocess.CompletedProcess[str]:
        done = lab.run([*words], env=env, cwd=tmp_path)
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())

    batch = ["xargs", "--on", "any", "--", "sh", "-c", script, ":::", "a", "b", "c"]
    try:
        command = hinted(types(*batch), r"quine hosts import")
        imported = types(*shlex.split(command)[1:])
        assert imported.returncode == 0 and all(f"[hosts.{name}]" in imported.stdout for name in names)
        done = types(*batch)
        assert (done.returncode, sorted(done.stdout.split())) == (0, sorted(names)), done.stderr
    finally:
        config.write_text(before)

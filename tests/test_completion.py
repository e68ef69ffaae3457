"""Completion, as the shells themselves carry it out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from quine.completion import ACTIONS, SHELLS, script
from quine.exits import Misconfigured
from quine.options import TABLE, UNBUILT, VERBS

CASES = [
    ("quine ru", {"run"}, set()),
    ("quine ", {"run", "ps", "tape", "--on"}, {"xargs"}),
    ("quine --max-", {"--max-turns", "--max-cost", "--max-tokens"}, {"--on"}),
    ("quine run --", {"--on", "--cwd"}, {"--max-turns"}),
    ("quine ps --", {"--json", "--all", "--on"}, {"--stdin"}),
    ("quine tape ", {"ls", "verify", "replay"}, {"run"}),
    ("quine fs ", {"ls", "put", "sync"}, {"verify"}),
    ("quine fs ls --", {"--long", "--json"}, {"--if-absent"}),
    ("quine fs put --", {"--if-absent", "--recursive"}, {"--long"}),
    ("quine --completion ", set(SHELLS), {"run"}),
]

# A shell complains of a locale that is not installed.
PLAIN = {name: value for name, value in os.environ.items() if name != "BASH_ENV"} | {"LC_ALL": "C"}


def bash(line: str) -> set[str]:
    words = line.split(" ")
    code = (
        f"{script('bash')}\nCOMP_WORDS=({' '.join(words[:-1])} {words[-1]!r}); COMP_CWORD={len(words) - 1}; _quine\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], env=PLAIN, capture_output=True, check=True, timeout=120)
    assert not done.stderr
    return set(done.stdout.decode().split())


def fish(line: str) -> set[str]:
    code = f"{script('fish')}\ncomplete -C {line!r}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], env=PLAIN, capture_output=True, check=True, timeout=120
    )
    assert not done.stderr
    return {line.split("\t")[0] for line in done.stdout.decode().splitlines()}


@pytest.mark.parametrize(("line", "there", "absent"), CASES)
@pytest.mark.parametrize("shell", [bash, fish])
def test_what_is_offered(shell: object, line: str, there: set[str], absent: set[str]) -> None:
    assert callable(shell)
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"{shell.__name__} is not installed")
    if shell is fish and line in ("quine ", "quine --completion "):
        # Options come after a dash.
        there = {word for word in there if not word.startswith("--")} - set(SHELLS)
    offered = shell(line)
    assert there <= offered
    assert not absent & offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_it() -> None:
    code = f"autoload -U compinit && compinit -D -u\n{script('zsh')}\necho ${{_comps[quine]}}"
    done = subprocess.run(["zsh", "-f", "-c", code], env=PLAIN, capture_output=True, check=True, timeout=120)
    assert b"quine" in done.stdout


def test_every_verb_has_its_words() -> None:
    in_table = {verb for row in TABLE for verb in row[3].split()}
    assert {verb for verb in VERBS if verb not in UNBUILT} <= in_table | ACTIONS.keys()


def test_another_shell_is_refused() -> None:
    with pytest.raises(Misconfigured, match="no completion for tcsh"):
        script("tcsh")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quine", "--completion", "bash"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.decode() == script("bash")

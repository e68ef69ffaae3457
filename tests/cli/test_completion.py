"""Completion, as the shells themselves carry it out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.base.cli_options import TABLE, UNBUILT, VERBS
from quine.base.errors import Misconfigured
from quine.cli.completion import ACTIONS, SHELLS, script

CASES = [
    ("quine ru", {"run"}, set()),
    ("quine ", {"run", "ps", "tape", "xargs", "--on", "each"}, {"launch"}),
    ("quine each ", {"any", "gpu1", "@a100"}, {"local"}),
    ("quine each --", {"--fold", "--tag"}, {"--on", "any"}),
    ("quine each any -- quine-lo", {"quine-local-tool"}, set()),
    ("quine rsh ", {"gpu1", "db1"}, {"local"}),
    ("quine rsh -", {"-p", "-t", "--inventory"}, {"gpu1"}),
    ("quine xargs --", {"--retries", "--joblog", "--detach", "--from"}, {"--offset"}),
    ("quine xargs --on gpu1 -- quine-lo", {"quine-local-tool"}, set()),
    ("quine xargs --arg-file in", {"in.txt"}, set()),
    ("quine --max-", {"--max-turns", "--max-cost", "--max-tokens"}, {"--on"}),
    ("quine run --", {"--on", "--cwd"}, {"--max-turns"}),
    ("quine ps --", {"--json", "--all", "--on"}, {"--stdin"}),
    ("quine tape ", {"ls", "verify", "replay"}, {"run"}),
    ("quine tape ls --", {"--json", "--data-dir"}, {"--dry"}),
    ("quine tape replay --", {"--dry"}, {"--json"}),
    ("quine tape show 01", {"0123-7a9e"}, {"01-tape", "other"}),
    (
        "quine run --on ",
        {"any", "local", "gpu1", "db1", "@gpu", "@a100", "of-ssh", "too"},
        {"@-", "-", "*.lan"},
    ),
    ("quine run --on @ g", {"@gpu"}, {"gpu", "gpu1"}),
    ("quine hosts ", {"check", "add", "import", "trust"}, {"WHERE"}),
    ("quine hosts check ", {"any", "gpu1", "@gpu"}, {"local"}),
    ("quine deploy ", {"build", "gpu1", "@a100"}, {"local"}),
    ("quine doctor ", {"gpu1", "@a100"}, {"local", "build"}),
    ("quine wait ", {"running-1", "ended-2"}, {"ID"}),
    ("quine logs ", {"running-1", "ended-2"}, {"ID"}),
    ("quine kill ", {"running-1"}, {"ended-2", "ID"}),
    ("quine attach ", {"running-1"}, {"ended-2"}),
    ("quine kill --", {"--signal"}, {"running-1"}),
    ("quine run --files in", {"in.txt"}, set()),
    ("quine run --on gpu1 -- quine-lo", {"quine-local-tool"}, set()),
    ("quine run -- cat in", {"in.txt"}, {"quine-local-tool"}),
    ("quine fs ", {"ls", "put", "sync"}, {"verify"}),
    ("quine fs ls --", {"--long", "--json"}, {"--if-absent"}),
    ("quine fs put --", {"--if-absent", "--recursive"}, {"--long"}),
    ("quine --completion ", set(SHELLS), {"run"}),
]

QUINE = """\
#!/bin/sh
case "$*" in
hosts) echo 'HOST ADDRESS USER SLOTS THROUGH TAGS ABOUT
gpu1 1.2.3.4 me 8 - gpu,a100 eight of them
db1 db1 me 8 - - -' ;;
ps*) printf '%s\\n' 'ID HOST' 'running-1 local' ;;
esac
case "$*" in *--all) echo 'ended-2 local' ;; esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the shell stands: a file, a tape, a command, and a quine that lists two hosts and two jobs."""
    (tmp_path / "in.txt").touch()
    (tmp_path / ".quine").mkdir()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host of-ssh *.lan\n  User me\nhost too # of them\n")
    for name in ("0123-7a9e.jsonl", "0123-7a9e.log", "01\x1b[31m.jsonl", "01-tape.jsonl", "other.jsonl"):
        (tmp_path / ".quine" / name).touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("quine", QUINE), ("quine-local-tool", "#!/bin/sh\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tmp_path


def shell(words: list[str], place: Path) -> str:
    env = {**PLAIN, "HOME": str(place), "PATH": f"{place}/tools:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, cwd=place, capture_output=True, check=True, timeout=120)
    assert not done.stderr
    return done.stdout.decode()


# A shell complains of a locale that is not installed.
PLAIN = {name: value for name, value in os.environ.items() if name != "BASH_ENV"} | {"LC_ALL": "C"}


NEXT = "-- next --"


def bash(lines: list[str], place: Path) -> list[set[str]]:
    code = script("bash")
    for line in lines:
        words = line.split(" ")
        code += (
            f"\nCOMPREPLY=(); COMP_WORDS=({' '.join(words[:-1])} {words[-1]!r}); COMP_CWORD={len(words) - 1}; _quine\n"
            # -o default: paths, where the function has nothing
            f"[ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- {words[-1]!r}))\n"
            f'printf "%s\\n" "${{COMPREPLY[@]}}" "{NEXT}"'
        )
    return [set(part.split()) for part in shell(["bash", "-c", code], place).split(NEXT)[:-1]]


def fish(lines: list[str], place: Path) -> list[set[str]]:
    code = script("fish") + "".join(f"\ncomplete -C {line!r}\necho '{NEXT}'" for line in lines)
    parts = shell(["fish", "--no-config", "-c", code], place).split(f"{NEXT}\n")[:-1]
    return [{line.split("\t")[0] for line in part.splitlines()} for part in parts]


@pytest.mark.parametrize("shell", [bash, fish])
def test_what_is_offered(shell: Callable[[list[str], Path], list[set[str]]], place: Path) -> None:
    if shutil.which(shell.__name__) is None:
        pytest.skip(f"{shell.__name__} is not installed")
    # bash alone splits a word at an @
    cases = [case for case in CASES if shell is bash or " @ " not in case[0]]
    for (line, there, absent), offered in zip(cases, shell([case[0] for case in cases], place), strict=True):
        if shell is fish and line in ("quine ", "quine --completion "):
            # Options come after a dash.
            there = {word for word in there if not word.startswith("--")} - set(SHELLS)
        assert there <= offered, line
        assert not absent & offered, line


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

"""The verbs for people: their output, its stream, and their exit status."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine import __version__
from quine.base import cli_options
from quine.base.errors import Misconfigured
from quine.cli import help, tape
from quine.cli.tape import HELP
from quine.fanout import options
from quine.mount.mounts import lacking
from tests.lab import forks
from tests.support.agents import OK, Agents, Started, says, sh
from transport import this_build

QUINE = str(Path(sys.prefix) / "bin" / "quine")
EXAMPLE = Path(__file__).parents[2] / "inventory.example.toml"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory with a short name, because the socket of the node lies in it."""
    folder = Path(tempfile.mkdtemp(prefix="h-"))
    yield folder
    shutil.rmtree(folder)


Quine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def quine(home: Path, server_of_forks: None) -> Quine:
    """A verb in that home, with no environment but this one."""
    base = {"HOME": str(home), "PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(home), "TMPDIR": str(home)}

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with forks.popen([QUINE, *words], env=base | env, cwd=home, **streams) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())

    return run


def test_hosts_prints_what_the_inventory_says_of_where(quine: Quine) -> None:
    done = quine("hosts", "--inventory", str(EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "HOST     ADDRESS              USER  SLOTS  THROUGH                      TAGS      ABOUT",
        "bastion  bastion.example.org  me    8      -                            -         -",
        "gpu1     10.0.0.11:22         me    8      bastion                      gpu,a100  8 x A100, scratch in /data",
        "db1      db1                  me    8      me@bastion.example.org:2222  db        -",
        "old      old                  me    8      -                            -         -",
        "box      box                  me    8      -                            -         -",
        "cluster  cluster              me    8      -                            -         -",
    ]
    for where, names in (
        ("gpu1", ["gpu1"]),
        ("@gpu", ["gpu1"]),
        ("db1,bastion", ["bastion", "db1"]),
        ("any!cluster", ["bastion", "gpu1", "db1", "old", "box"]),
    ):
        done = quine("hosts", where, "--inventory", str(EXAMPLE))
        assert (done.returncode, done.stderr) == (0, ""), where
        assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == names, where
    for word, status, error, hint in (
        ("chek", 2, "no such action: chek", "did you mean quine hosts check?"),
        ("look", 69, "no such host: 'look'; known: ", "add a table"),
        ("ls", 2, "no such action: ls", "quine hosts [WHERE]"),
        ("rm", 2, "no such action: rm", "remove [hosts.NAME] from the inventory"),
    ):
        done = quine("hosts", word, "--inventory", str(EXAMPLE))
        assert (done.returncode, done.stdout) == (status, ""), word
        assert done.stderr.startswith(f"quine: error: {error}") and f"\nquine: hint: {hint}" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("hosts", 2, "there is no inventory"),
        ("hosts check", 2, "there is no inventory"),
        ("hosts gpu1", 2, "there is no inventory"),
        ("hosts check gpu1", 2, "there is no inventory"),
        ("hosts look any", 2, "there is no inventory"),
        ("hosts --inventory none.toml", 2, "none.toml: no such inventory"),
        ("hosts --colour", 2, "no such option: --colour"),
        ("deploy h1", 69, "no such host: 'h1'; there is no inventory"),
        ("deploy", 69, "there is no inventory, so 'any' means no host"),
        ("run --on @gpu -- true", 69, "there is no inventory, so '@gpu' means no host"),
        ("ps --on any", 69, "there is no inventory, so 'any' means no host"),
        ("deploy any -o x", 2, "--output belongs to quine deploy build"),
        ("deploy build -o none/x", 74, "cannot write none/x"),
        ("doctor please", 69, "no such host: 'please'; there is no inventory"),
        ("node --status", 1, "no node of this build runs here"),
        ("node --stop", 1, "no node of this build runs here"),
        ("node --stop --status", 2, "one of --dial, --stop, --status"),
        ("tape", 2, "missing "),
        ("tape play", 2, "no such command 'play'"),
        ("tape fork a --at 3", 2, "not built yet: quine tape fork"),
        ("hosts discover ssh", 2, "not built yet: quine hosts discover"),
        ("tape replay", 2, "no tapes in .quine"),
        ("tape tree", 2, "no tapes in .quine"),
        ("tape cost", 2, "no tapes in .quine"),
        ("tape verify", 2, "no tapes in .quine"),
        ("tape show a b", 2, "got unexpected extra argument"),
        ("tape show --tree a", 2, "no such option: --tree"),
        ("tape --json", 2, "no such option"),
        ("tape ls a", 2, "got unexpected extra argument"),
    ],
)
def test_what_is_wrong_is_said_once_on_stderr(words: str, status: int, error: str, quine: Quine) -> None:
    done = quine(*words.split())
    assert (done.returncode, done.stdout) == (status, ""), done
    assert done.stderr.startswith("quine: error: ")
    assert error in done.stderr.splitlines()[0]


def test_a_verb_that_swallows_a_mission_says_how_to_say_it(quine: Quine) -> None:
    for words in (
        ["run", "the", "tests"],
        ["budget", "my", "month"],
        ["deploy", "the", "app"],
        ["wait", "for", "it"],
    ):
        done = quine(*words)
        assert done.returncode in (2, 69, 127), done
        assert done.stderr.endswith(f"for a mission: quine -- {' '.join(words)}\n"), done


def test_options_before_a_verb_are_refused(quine: Quine) -> None:
    """Taken as a mission it would spend money on the word "ps"."""
    for words, verb, mission in (
        (["--inventory", "X", "hosts"], "quine hosts --inventory X", "quine --inventory X -- hosts"),
        (["-qv", "ps"], "quine ps -qv", "quine -qv -- ps"),
        (["--on=a b", "run", "true"], "quine run '--on=a b' true", "quine '--on=a b' -- run true"),
        (["-q", "xargs", "work"], "quine xargs -q work", "quine -q -- xargs work"),
    ):
        done = quine(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        error, hint = done.stderr.splitlines()
        assert error.startswith("quine: error: options before "), words
        assert hint == f"quine: hint: the verb: {verb}; the mission: {mission}"


def test_a_mission_that_is_nearly_a_verb_gets_a_hint_where_no_guest_is_set(quine: Quine) -> None:
    for words, verb in (
        (["-q", "tap"], "tape"),
        (["ps?"], "ps"),
        (["tap", "ls"], ""),
        (["haste"], ""),
    ):
        done = quine(*words)
        error, hint = done.stderr.splitlines()
        assert done.returncode == 2 and error.startswith("quine: error: no guest"), words
        expected = (
            f"quine: hint: did you mean quine {verb}? for a mission: " if verb else "quine: hint: export "
        )
        assert hint.startswith(expected), done


def test_what_reads_like_a_command_of_nearly_a_verb_is_refused(quine: Quine) -> None:
    """As a mission it would cost money, and the command would be run nowhere."""
    for before, rest, verb in (
        ([], ["rnu", "--on", "db1", "--", "true"], "run"),
        (["-q"], ["rum", "--", "true"], "run"),
        ([], ["pss", "--on", "a", "--", "b"], "ps"),
        ([], ["rnu", "--on", "db1"], "run"),
    ):
        done = quine(*before, *rest, QUINE_API_TYPE="script", QUINE_API_BASE="/dev/null")
        assert (done.returncode, done.stdout) == (2, ""), rest
        error, hint = done.stderr.splitlines()
        assert error == f"quine: error: no such verb: {rest[0]}"
        mission = " ".join(["quine", *before, "--", *rest])
        assert hint == f"quine: hint: did you mean quine {verb}? for a mission: {mission}"


def test_plain_words_and_what_stands_behind_two_dashes_are_a_mission(quine: Quine) -> None:
    for words in (
        ["--", "rnu", "--on", "db1"],
        ["--", "rnu", "--", "true"],
        ["-q", "--", "rnu", "--", "x"],
        ["compare", "a", "--", "b"],
        ["-q", "--", "ps"],
        ["-q", "pst"],
        ["--", "ps"],
        ["-q", "ps -a"],
    ):
        done = quine(*words)
        assert done.returncode == 2 and done.stderr.startswith("quine: error: no guest"), done


@pytest.mark.long
@pytest.mark.parametrize("verb", ["hosts", "deploy", "doctor", "node"])
def test_help(verb: str, quine: Quine) -> None:
    done = quine(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: quine {verb} ")


def test_help_of_tapes(quine: Quine) -> None:
    for command in ("", *HELP):
        done = quine("tape", *command.split(), "-h")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.startswith(f"usage: quine tape {command}"), command
        shown = ["--data-dir DIR"] if command else [f"  {name} " for name in HELP]
        assert not [text for text in shown if text not in done.stdout], command


def test_version_and_build(quine: Quine) -> None:
    done = quine("--version")
    assert done.stdout == f"quine {__version__} (build {this_build.build_hash()[:12]})\n"


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    return {line[6:16].strip(): line[:4].strip() for line in lines}


def test_doctor_on_a_bare_machine(home: Path, quine: Quine) -> None:
    done = quine("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert findings(done) == {
        "python": "ok",
        "kernel": "ok",
        "runtime": "ok",
        "data": "ok",
        "guest": "warn",
        "inventory": "warn",
        "binary": "ok",
        "ssh keys": "warn",
        "ssh config": "ok",
        "mount": "warn" if lacking()[0] else "ok",
    }
    assert not (home / ".quine").exists(), "looking changes nothing"


def test_doctor_on_one_that_is_set_up(home: Path, quine: Quine) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(
        "Host *\n  StrictHostKeyChecking=no\n  ForwardAgent=no\n  LocalForward=1 a:1\n  # ControlMaster auto\n"
    )
    (home / ".ssh" / "id_ed25519").touch()
    (home / "guest.jsonl").touch()
    done = quine(
        "doctor",
        QUINE_INVENTORY=str(EXAMPLE),
        QUINE_API_TYPE="script",
        QUINE_API_BASE=str(home / "guest.jsonl"),
    )
    found = findings(done)
    assert done.returncode == 0
    assert [found[name] for name in ("guest", "inventory", "ssh keys", "ssh config")] == [
        "ok",
        "ok",
        "ok",
        "warn",
    ]
    assert "not obeyed: LocalForward\n" in done.stdout


def test_doctor_knows_keys_that_are_named(home: Path, quine: Quine) -> None:
    (home / ".ssh").mkdir()
    (home / "lab key").touch()
    for path, text in (
        (".ssh/config", "Host *\n  StrictHostKeyChecking accept-new\n  IdentityFile ~/lab key\n"),
        ("inventory.toml", '[hosts.a]\nidentity = "~/lab key"\n'),
    ):
        (home / path).write_text(text)
        done = quine("doctor", **({"QUINE_INVENTORY": path} if path == "inventory.toml" else {}))
        (home / path).unlink()
        assert (findings(done)["ssh keys"], findings(done)["ssh config"]) == ("ok", "ok"), path
        assert f"{home}/lab key" in done.stdout, path


def test_doctor_finds_what_is_broken(home: Path, quine: Quine) -> None:
    (home / "wrong.toml").write_text("[hosts.a]\nprot = 1\n")
    (home / "file").touch()
    wrong = {"QUINE_INVENTORY": "wrong.toml", "QUINE_DATA_DIR": str(home / "file")}
    done = quine("doctor", XDG_RUNTIME_DIR="/" + "x" * 200, **wrong)
    found = findings(done)
    assert done.returncode == 1
    assert (found["inventory"], found["data"]) == ("fail", "fail")
    assert "prot: unknown key" in done.stdout and "did you mean port?" in done.stdout


def test_doctor_finds_a_data_directory_that_others_can_write(home: Path, quine: Quine) -> None:
    (home / ".quine").mkdir()
    (home / ".quine").chmod(0o777)
    done = quine("doctor")
    assert (done.returncode, findings(done)["data"]) == (1, "fail")
    assert "others can write it" in done.stdout and f"chmod go-w {home}/.quine" in done.stdout


def test_doctor_in_a_home_that_cannot_be_looked_into(quine: Quine) -> None:
    """As `su` and `sudo` leave it; a name that is too long is refused to root as well."""
    closed = "/" + "x" * 300
    done = quine("doctor", HOME=closed, QUINE_DATA_DIR=f"{closed}/data")
    found = findings(done)
    assert done.stderr == ""
    assert (found["ssh keys"], found["ssh config"]) == ("warn", "warn")


def test_doctor_finds_that_hosts_cannot_be_sent_anything(home: Path, quine: Quine) -> None:
    (home / ".cache").touch()
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").mkdir()
    done = quine("doctor")
    assert (findings(done)["binary"], findings(done)["ssh config"]) == ("warn", "warn")
    assert f"{home}/.cache: not a directory" in done.stdout


def test_tapes_that_cannot_be_looked_at(quine: Quine) -> None:
    for verb in ("ls", "tree", "verify"):
        done = quine("tape", verb, QUINE_DATA_DIR="/" + "x" * 300)
        assert done.returncode == 2 and "cannot be read: file name too long" in done.stderr, done


def test_doctor_asks_the_agent(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "agent"))
        listener.listen(1)
        listener.settimeout(120)
        process = Started(
            [QUINE, "doctor"],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": str(home / "agent")},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        with process:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(120)
                assert connection.recv(5, socket.MSG_WAITALL) == b"\0\0\0\1\x0b"
                connection.sendall(b"\0\0\0\5\x0c\0\0\0\2")
                out, _ = process.communicate(timeout=120)
    assert b"the agent holds 2" in out


def test_typing_a_verb_does_not_load_what_it_does_not_use(home: Path) -> None:
    code = "import sys, quine.cli.app; quine.cli.app.main(['node', '--status']); print(*sorted(sys.modules))"
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    assert not {"asyncssh", "httpx", "fsspec", "rich", "pex"} & set(done.stdout.split())


TAPES = [
    ("ls", "{stem:.18}"), ("show", "-> sh"), ("tree", "local"), ("cost", "total"), ("replay", "1 life replayed"),
    ("replay --dry", '"ordinal":1'), ("verify", "{path}: ok: whole, 7 lines\n"), ("ls --json", '"{stem}"'),
    ("cost --json", '"usd":null'), ("verify --json", '"state":"ok"'), ("verify {path} {stem}", "ok: whole"),
    ("cost --tree {stem}", "total"), ("show {stem:.30} --data-dir data", "hello"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("verbs", [TAPES[at : at + 4] for at in range(0, len(TAPES), 4)])
def test_the_verbs_of_tapes(home: Path, verbs: list[tuple[str, str]], quine: Quine) -> None:
    agents = Agents(home)
    agents.run(says(sh("echo hello")), says(OK))
    (path,) = agents.data.glob("*.jsonl")
    facts = {"path": path, "stem": path.stem}
    places = {name: agents.env[name] for name in ("QUINE_DATA_DIR", "XDG_STATE_HOME")}  # that has the secret
    for words, shown in verbs:
        done = quine("tape", *words.format(**facts).split(), **places)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert shown.format(**facts) in done.stdout, words


def test_a_tape_that_was_changed_is_named(home: Path, quine: Quine) -> None:
    agents = Agents(home)
    agents.run(says(sh("echo hello")), says(OK))
    (path,) = agents.data.glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"hello", b"hallo"))
    done = quine("tape", "verify", QUINE_DATA_DIR=str(agents.data))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"{path}: line 4: changed")


def test_prices_of_the_user_are_checked(home: Path, quine: Quine) -> None:
    agents = Agents(home)
    agents.run(says(OK))
    (home / "prices.toml").write_text("[models]\nscript = { input = 1 }\n")
    env = {"QUINE_DATA_DIR": str(agents.data), "QUINE_PRICES": "prices.toml"}
    done = quine("tape", "cost", **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'quine: error: prices.toml: models."script": output: is missing\n'
    (home / "prices.toml").write_text("[models]\nscript = { input = 0, output = 0 }\n")
    assert "0.0000" in quine("tape", "cost", **env).stdout


@pytest.mark.parametrize(
    ("old", "now"),
    [
        (["--spool", "1k"], ["--output-limit", "1k"]),
        (["--fetch=a", "--fetch", "b"], ["--returns=a", "--returns", "b"]),
    ],
)
def test_another_spelling_of_an_option_is_the_option(old: list[str], now: list[str]) -> None:
    for verb in ("agent", "run"):
        (one, rest), (other, same) = (cli_options.parse(verb, [*words, "x"]) for words in (old, now))
        assert (vars(one), rest) == (vars(other), same)
        assert vars(one)
    assert "--spool" not in help.usage("run")
    with pytest.raises(Misconfigured, match="no such option: --fetch"):
        cli_options.parse("ps", ["--fetch=a"])


@pytest.mark.parametrize(
    ("verb", "word", "near"),
    [
        ("run", "--retires", "--retry"),  # --returns has more letters in common with it
        ("run", "--retries", "--retry"),
        ("agent", "--timeout", "--deadline"),
        ("run", "--returs", "--returns"),
        ("xargs", "--retry", "--retries"),
        ("xargs", "--retires", "--retries"),
    ],
)
def test_the_name_that_an_option_has_with_another_verb_leads_to_it(verb: str, word: str, near: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        if verb == "xargs":
            options.parse([word, "2", "--", "x"])
        else:
            cli_options.parse(verb, [word, "2", "x"])
    assert near in caught.value.hint


def test_the_fields_of_the_options_are_those_of_the_table() -> None:
    kinds = {"": "bool", **dict.fromkeys(cli_options.REPEATED, "tuple[str, ...]")}
    fields = {
        cli_options.field(row[0]): kinds.get(row[0] if row[2] else "", "str") for row in cli_options.TABLE
    }
    assert fields == cli_options.RunOptions.__annotations__
    with pytest.raises(TypeError, match="hots"):
        cli_options.RunOptions(hots="h1")
    with pytest.raises(AttributeError):
        cli_options.RunOptions().on = "h1"
    assert vars(cli_options.RunOptions(on="h1", quiet=True).replace(on="h2", json=True)) == {
        "on": "h2", "quiet": True, "json": True,
    }  # fmt: skip


def test_options_that_may_be_repeated_add_up_around_the_ids() -> None:
    found, ids = cli_options.parse_around("wait", ["--returns=a", "1", "--returns", "b", "2", "--returns=c"])
    assert (found.returns, ids) == (("a", "b", "c"), ["1", "2"])


def test_no_word_after_two_dashes_is_an_option() -> None:
    found, ids = cli_options.parse_around("logs", ["1", "--stderr", "--", "2", "--follow", "--", "-f"])
    assert (found.stderr, found.follow, ids) == (True, False, ["1", "2", "--follow", "--", "-f"])
    assert cli_options.parse_around("logs", ["--"])[1] == cli_options.parse_around("logs", [])[1] == []
    assert cli_options.parse_around("logs", ["-f", "--", "1"])[1] == ["1"]


def test_options_become_the_words_that_they_came_from() -> None:
    words = ["--on=h1", "--env=A=1", "--env=B", "--stdin", "--output-limit=1k"]
    names = ("on", "env", "limit", "stdin", "output-limit", "quiet")
    assert cli_options.as_words(cli_options.parse("run", words)[0], names) == words


def test_the_old_word_for_tape_archive_goes_on_working(capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("save", "archive"):
        assert tape.main([word, "--help"]) == 0
        assert capfd.readouterr().out.startswith("usage: quine tape archive")
    tape.main(["--help"])
    assert " save" not in capfd.readouterr().out

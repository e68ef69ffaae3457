"""Configuration of an agent: errors found before a life begins, and the handling of secrets."""

from __future__ import annotations

import json

import pytest

from tests.lab import processes
from tests.support.agents import OK, QUINE, Agents, call, says, section, sh
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said
from transport import inherit

# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"QUINE_MAX_TURNS": "x"}, b"QUINE_MAX_TURNS must be an integer"),
        ({"QUINE_MAX_TURNS": "1_0"}, b"QUINE_MAX_TURNS must be an integer"),
        ({"QUINE_MAX_TURNS": "5m"}, b"QUINE_MAX_TURNS must be an integer"),
        ({"QUINE_MAX_TOKENS": "9" * 30}, b"QUINE_MAX_TOKENS must not be more than"),
        ({"QUINE_MAX_AGENTS": str(2**32)}, b"QUINE_MAX_AGENTS must not be more than"),
        ({"QUINE_SH_TIMEOUT": "9" * 400}, b"QUINE_SH_TIMEOUT must not be more than"),
        ({"QUINE_DEADLINE": "1e300"}, b"QUINE_DEADLINE must be 0 or more, and not more than"),
        ({"QUINE_MAX_DEPTH": "-1"}, b"QUINE_MAX_DEPTH must not be negative"),
        ({"QUINE_API_TYPE": "telepathy"}, b"QUINE_API_TYPE must be one of"),
        ({"QUINE_API_TYPE": "", "QUINE_API_BASE": ""}, b"no guest"),
        ({"QUINE_API_TYPE": "replay", "QUINE_API_BASE": ""}, b"must be the path of the replay"),
        ({"QUINE_API_TYPE": "program", "QUINE_API_BASE": "no-such-program"}, b"is no program"),
        ({"QUINE_API_TYPE": "", "QUINE_API_BASE": "", "GEMINI_API_KEY": "k"}, b"QUINE_MODEL_ID is not set"),
        ({"QUINE_API_TYPE": "openai", "QUINE_API_BASE": "http://x"}, b"QUINE_MODEL_ID is not set"),
        ({"QUINE_API_TYPE": "openai", "QUINE_API_BASE": "x", "QUINE_MODEL_ID": "m"}, b"must begin with http"),
        ({"QUINE_API_BASE": "/no/such/script"}, b"cannot be read"),
        ({"QUINE_MAX_COST": "1", "QUINE_MODEL_ID": "m"}, b"the price of m is not known"),
        ({"QUINE_MAX_COST": "nan"}, b"QUINE_MAX_COST must be 0 or more"),
        ({"QUINE_DEADLINE": "soon"}, b"QUINE_DEADLINE must be a number"),
        ({"QUINE_DATA_DIR": "/dev/null/x"}, b"QUINE_DATA_DIR"),
        ({"QUINE_MAX_TOKENS": "0k"}, b"QUINE_MAX_TOKENS is 0, and nothing can be done"),
    ],
)  # fmt: skip
def test_configuration_errors(agents: Agents, env: dict[str, str], words: bytes) -> None:
    done = agents.run(says(OK), env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(b"quine: error: ")
    assert words in done.stderr
    assert done.stdout == b""


def test_what_an_option_gave_is_named_by_the_option(agents: Agents) -> None:
    """An agent elsewhere reads its limits by the same code; one of them shows that it does."""
    wrong = (
        ("--max-turns", "foo", "must be an integer, not 'foo'"),
        ("--max-depth", "-1", "must not be negative, and is -1"),
        ("--max-agents", "9" * 30, "must not be more than"),
        ("--max-cost", "x", "must be a number, not 'x'"),
        ("--deadline", "-1", "must be 0 or more"),
        *(
            (name, "0", "is 0, and nothing can be done")
            for name in ("--max-tokens", "--max-cost", "--deadline")
        ),
    )
    for place, some in (([], wrong), (["--on", "local"], wrong[:1])):
        for option, value, words in some:
            done = agents.run(says(OK), options=[*place, f"{option}={value}"])
            assert (done.returncode, done.stdout) == (2, b"")
            assert done.stderr.decode().startswith(f"quine: error: {option} {words}"), done
    done = agents.run(options=["--max-turns=1"], env={"QUINE_SH_TIMEOUT": "x"})
    assert done.stderr.startswith(b"quine: error: QUINE_SH_TIMEOUT must be an integer")


def test_cwd_does_not_move_the_paths_of_the_caller(agents: Agents) -> None:
    (agents.directory / "d").mkdir()
    agents.script(says(sh("pwd >&4")), says(OK))
    env = {"QUINE_DATA_DIR": "data", "QUINE_API_BASE": "script.jsonl"}
    done = agents.run(options=["--cwd", "d", "--report", "r.json"], env=env)
    assert (done.returncode, done.stdout) == (0, f"{agents.directory}/d\n".encode())
    assert agents.tapes()
    assert (agents.directory / "r.json").exists()
    assert not list((agents.directory / "d").iterdir())


def test_the_report_has_the_reason_of_the_agent(agents: Agents) -> None:
    agents.run(says(call("exit", status=3, stderr="no build")), options=["--report", "r.json"])
    found = json.loads((agents.directory / "r.json").read_text())
    assert (found["state"], found["code"], found["detail"]) == ("exited", 3, "no build")


def test_a_directory_that_is_not_there(agents: Agents) -> None:
    agents.script(says(OK))
    done = agents.run(options=["--cwd", "/no/such"])
    assert done.returncode == 69
    assert b"quine: error: --cwd /no/such: no such file or directory" in done.stderr


def test_a_life_goes_on_where_its_directory_was_removed(agents: Agents) -> None:
    done = agents.run(
        says(sh("mkdir d; cd d; rmdir $PWD"), call("exec", argv=["/no/such"]), call("exec", wisdom={"n": "1"}),
             wisdom="^{}$"),
        says(sh("echo alive >&4"), OK, wisdom="."),
    )  # fmt: skip
    assert done.stdout == b"alive\n"


def test_directories_of_ours_are_private(agents: Agents) -> None:
    agents.data.mkdir(mode=0o755)
    agents.data.chmod(0o755)
    agents.run(
        says(call("fork", intent="child"), sh("seq 9999"), match="^work"),
        says(OK, match="^work"), says(OK, match="^child"),
    )  # fmt: skip
    assert agents.data.stat().st_mode & 0o777 == 0o755
    for name in ("jobs", "outputs"):
        assert (agents.data / name).stat().st_mode & 0o777 == 0o700


def test_an_exhausted_script_says_so(agents: Agents) -> None:
    done = agents.run(says(sh("true")))
    assert done.returncode == 1
    assert b"script.jsonl has no reply left for this mission\n" in done.stderr


# -- secrets ---------------------------------------------------------------------------------------


def test_no_secret_reaches_a_command_or_the_tape(agents: Agents) -> None:
    canary = "canary-0123456789"
    done = agents.run(
        says(sh("env; cat /proc/self/environ; cat /proc/$PPID/cmdline"), sh(f"echo {canary}"), match="^outer"),
        says(sh("grep -c hunter22 /proc/$PPID/environ >&4; echo hunter22; echo t-1"), match="^outer"),
        says(sh("quine inner"), match="^outer"), says(OK, match="^outer"),
        says(sh("env"), match="^inner"), says(OK, match="^inner"),
        mission="outer",
        env={"OPENAI_API_KEY": canary, "MY_TOKEN": "t%1", "DB_PASSWORD": "p%1", "COPY": f"x{canary}y",
             "PGPASSWORD": "hunter22\n", "KEYBOARD": "de"},
    )  # fmt: skip
    assert done.returncode == 0
    text = "".join(path.read_text() for path in agents.data.rglob("*") if path.is_file())
    assert canary not in text
    assert "t%1" not in text
    assert "p%1" not in text
    assert "KEYBOARD=de" in text
    assert "<secret>" in agents.results("outer")[1]
    # a secret that is removed from the environment is masked, however its value ends, and not in /proc
    assert done.stdout == b"0\n"
    assert section(agents.results("outer")[2], "STDOUT") == "<secret>\nt-1\n"


def test_a_nested_quine_infers_with_the_key(agents: Agents) -> None:
    """The guest of the agent above it is a script, so that one needs no key itself."""
    nested = f"QUINE_API_TYPE= QUINE_API_BASE= QUINE_MODEL_ID=m {' '.join(QUINE)} nested"
    try:
        with Provider(chat, Said(calls=(sh("echo done >&4"), OK))) as provider:
            done = agents.run(
                says(sh(f"{nested} >&4")),
                says(OK),
                env={
                    "OPENAI_API_KEY": KEY,
                    "OPENAI_BASE_URL": f"{provider.base}/v1",
                    "XDG_RUNTIME_DIR": str(agents.directory),
                    "NESTED": str(agents.directory),
                },
            )
        assert done.stdout == b"done\n", agents.results()
    finally:
        processes.kill_marked(f"NESTED={agents.directory}")


@pytest.mark.parametrize(
    ("secret", "names"),
    [
        (True, "AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID GITHUB_PAT PGPASSWORD NPMTOKEN ACCESSTOKEN SSHPASS DB_PASS "
               "db_pwd MYSQL_PWD HTTP_AUTH GOOGLE_APPLICATION_CREDENTIALS AZURE_CREDENTIAL QUINE_API_KEY KEY_OF_X"),
        (False, "QUINE_MAX_TOKENS QUINE_CREDENTIALS_FD TOKENIZERS_PARALLELISM PWD OLDPWD PATH SSH_AUTH_SOCK KEYBOARD "
                "COMPASS HOME PASSENGER QUINE_WISDOM_KEY"),
    ],
)  # fmt: skip
def test_which_variables_are_secrets(secret: bool, names: str) -> None:
    assert [name for name in names.split() if inherit.is_secret(name) != secret] == []


@pytest.mark.parametrize(
    ("name", "value", "withheld"),
    [
        ("DATABASE_URL", "postgres://ada:pw@db:5432/x", "here there"),
        ("CELERY_BROKERS", "amqp://a/x,amqp://ada:p%40@b", "here there"),
        ("REDIS", "--url redis://:pw@cache", "here there"),
        ("DSN", "root:pw@tcp(10.0.0.1:3306)/x", "here there"),
        ("HTTPS_PROXY", "http://ada:pw@proxy:3128", "there"),
        ("all_proxy", "socks5://ada:pw@proxy", "there"),
        ("HTTPS_PROXY", "http://proxy:3128", ""),
        ("REPOSITORY", "https://ada@host:8443/x@v1:2", ""),
        ("REMOTE", "git@host:x/y:z", ""),
        ("IMAGE", "app:1.2@sha256:aa", ""),
        ("MAINTAINER", "mailto:ada@host", ""),
        ("NOTE", "at 12:30 see ada@host", ""),
    ],
)
def test_a_password_in_a_value_is_a_secret(name: str, value: str, withheld: str) -> None:
    found = [inherit.withholds(name, value, here) for here in (True, False)]
    assert found == ["here" in withheld.split(), "there" in withheld.split()]


def test_what_was_withheld_is_named_and_env_passes_it(agents: Agents) -> None:
    """Also to a nested agent, and by an exec; a proxy stays."""
    url, proxy = "postgres://ada:pw-1@db/x", "http://ada:pw-2@127.0.0.1:9"
    given = {"DATABASE_URL": url, "MY_TOKEN": "t-1234567", "OTHER_TOKEN": "t-7654321", "https_proxy": proxy}
    show = sh('echo "$DATABASE_URL $MY_TOKEN $OTHER_TOKEN" >&4; [ "$https_proxy" ] && echo proxy >&4')
    done = agents.run(
        says(show, match="^outer", wisdom="{}"),
        says(call("exec", wisdom={"k": "v"}), match="^outer", wisdom="{}"),
        says(show, match="^outer", wisdom="k"),
        says(sh("quine inner >&4"), match="^outer", wisdom="k"),
        says(OK, match="^outer", wisdom="k"),
        says(show, match="^inner"),
        says(OK, match="^inner"),
        mission="outer",
        options=("--env", "OTHER_TOKEN"),
        env=given,
    )
    assert done.stdout == b"  t-7654321\nproxy\n" * 3, done.stderr
    line = 'Variables that commands do not get, because they hold secrets: ["DATABASE_URL", "MY_TOKEN"]\n'
    firsts = [
        entry["data"]["content"]
        for path in agents.data.glob("*.jsonl")
        for entry in map(json.loads, path.read_text().splitlines())
        if entry["type"] == "message" and entry["data"]["role"] == "user"
    ]
    assert [line in text for text in firsts] == [True] * 3
    text = "".join(path.read_text() for path in agents.data.rglob("*.jsonl"))
    assert not [value for value in ("pw-1", "t-1234567", "t-7654321") if value in text]


def test_a_key_that_no_header_can_carry(agents: Agents) -> None:
    for key in ("sk-\x01canary", "sk-canaryé"):
        env = {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": "http://127.0.0.1:1", "QUINE_MODEL_ID": "m"}
        done = agents.run(says(OK), env={**env, "QUINE_API_KEY": key})
        assert done.returncode == 2
        assert b"QUINE_API_KEY is no key" in done.stderr
        assert b"canary" not in done.stderr

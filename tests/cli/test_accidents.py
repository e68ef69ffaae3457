"""No agent starts by accident: verbs of other programs are refused, and missions that people write are not."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from quine.__main__ import dispatch
from quine.base.cli_options import VERBS, parse, rows
from quine.base.errors import Misconfigured
from quine.base.slips.missions import accident, accidental_command, as_mission, mistake
from quine.base.slips.options import ANSWERS
from quine.base.slips.options import NOT_BUILT as NOT_BUILT_OPTIONS
from quine.base.slips.tables import BEFORE_ID, FOREIGN, NOT_BUILT, OF_LIST, OURS
from quine.cli import tape
from quine.fanout import options as xargs
from quine.fanout.each import options as each
from tests.lab.lab import Lab

TYPED = (
    *(
        "help",
        "version",
        "login",
        "logout",
        "ls",
        "list",
        "rm",
        "stop",
        "cp",
        "update",
        "start",
        "restart",
        "exec",
    ),
    *(
        "pull",
        "push",
        "clone",
        "commit",
        "checkout",
        "rebase",
        "stash",
        "status",
        "log",
        "branch",
        "fetch",
        "reset",
    ),
    *(
        "images",
        "inspect",
        "prune",
        "get",
        "delete",
        "apply",
        "rollout",
        "new-session",
        "kill-session",
        "send-keys",
    ),
    *("resume", "mcp", "config", "models", "keys", "install", "uninstall"),
    *("abort", "agents", "cancel", "cost", "job", "jobs", "terminate", "tree"),
)
MISSIONS = """
summarize
summarise this
explain this code
describe the data
review my changes
review
fix the tests
fix
test everything
find bugs
find bugs in {}
sort these by date
sort these
translate to German
translate
write tests
write a README
merge the two tables
diff the two versions
build it
build the project
search for secrets
edit the introduction
clean the data
clean up
show the largest files
show me the errors
what is this
why does it fail
count the words
count lines
list the files
list all open questions
help me
help me write tests
update the docs
update dependencies in the lockfile
create a parser
create tests for everything
add types
add a test for it
remove dead code
rename the functions
start a server and test
stop the flaky test
get the weather in Berlin
delete unused imports
install the dependencies
log the results nicely
check the links
check {}
classify
classify each review
extract the names
extract all dates
label the images
tag these photos
plan a trip
plan
draft a reply
draft an email
reply politely
rewrite in plain English
shorten
shorten this text
compare a and b
benchmark it
profile the program
optimize the query
optimise this
refactor the module
document the API
document it
lint and fix
format the code
convert to markdown
convert this to JSON
make it faster
make a plot
plot the data
draw a diagram
debug
debug this crash
solve it
solve the puzzle
answer the question
answer
research the topic
investigate the failure
analyse the logs
analyze
audit the code
port this to Rust
restore the old behaviour
save the results as CSV
run the tests
inspect the logs carefully please
configure the build
status of the project
commit the changes
push the changes upstream please
switch to tabs
set up the project
serve the docs
take notes
type hints
code it
fill gaps
note this
teach me
reach zero errors
will it work
want more tests
tale
log in and report
log errors
help us
list files
list bugs
host the site
agent design
new parser
a poem
build
watch the logs
tell me a joke
tell everyone
continue the story
pause here
explain HEAD
explain 2024-01-02
explain 3f2a9c1d in plain words
describe nodes
checkout flow
push it
stop it
stop all the servers
get the pods
rm the cache
release notes
repo overview
model the data
completion of the table
session list of users
git history of {}: summarize it
python code in {}: review it
docker, npm and git: which one fits {}
the doctor
haste
""".strip().splitlines()


@pytest.mark.parametrize("verb", TYPED)
def test_a_verb_of_another_program_is_no_mission(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web").touch()
    monkeypatch.chdir(tmp_path)
    assert verb in FOREIGN and verb not in VERBS
    for rest in ([], ["3f2a9c1d"], ["-a"], ["-f", "web"], ["deadbeef"], ["./x", "y/z"]):
        wrong = accident([verb, *rest], [verb, *rest])
        assert wrong and wrong.hint.endswith(" ".join(["quine", "--", verb, *rest]))
        assert accident(["--", verb, *rest], [verb, *rest]) is None
    assert accident([f"{verb} web"], [f"{verb} web"]) is None  # one word with a space in it


def test_what_people_write_is_a_mission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a directory of that name is there."""
    for name in ("tests", "data", "docs", "logs", "build"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(MISSIONS) >= 100
    for mission in MISSIONS:
        words = mission.split()
        if words[0] not in VERBS:
            assert accident(words, words) is None, mission
        assert accident([mission], [mission]) is None, mission
        assert not accidental_command(words) and not accidental_command([mission]), mission


@pytest.mark.parametrize(
    "command",
    [
        "gzip {}",
        "gzip -9 {}",
        "wc",
        "wc -l",
        "convert {} {.}.png",
        "sha256sum {} ./x",
        "python3 ./x.py {}",
        "/bin/ls {}",
        "grep foo",
        "git pull",
        "docker pull",
        "kubectl delete pod",
        "npm test",
        "pytest",
        "sudo rm",
        "bash -c 'for f in {}; do echo $f; done'",
    ],
)
def test_a_command_for_items_is_no_mission(command: str) -> None:
    assert accidental_command([command]) and accidental_command(command.split())


@pytest.mark.parametrize(
    "id", ["01a22fed", "01a22fed-de80", "01a22fed-de80-7", "01a2095f-e397-79a8-b878-b5f246be26d7"]
)
def test_a_word_before_an_id_is_no_mission(id: str) -> None:
    for words in (["retry", id], ["show", id], ["summarize", id], ["show", id, id]):
        wrong = accident(words, words)
        assert wrong and wrong.hint.endswith(" ".join(["quine", "--", *words]))
        assert accident(["--", *words], words) is None
        assert accident([" ".join(words)], [" ".join(words)]) is None
    assert accident(["explain", "job", id], ["explain", "job", id]) is None


@pytest.mark.parametrize(
    "word", ["01022024", "0102-2024", "01a22fe", "3f2a9c1d", "01a22fed_x", "01a22fedde80", "01a22fed-xy"]
)
def test_a_word_before_a_date_a_commit_or_a_name_is_a_mission(word: str) -> None:
    assert accident(["review", word], ["review", word]) is None


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("session list", "tape ls"), ("exec ls", "run -- CMD"), ("exec ls -l", "run -- CMD"), ("jobs", "ps"),
        ("cost", "tape cost"), ("tree", "tape tree; quine tape cost"), ("cancel 01a22fed-de80", "kill ID"),
        ("show 01a22fed-de80", "tape show ID"), ("log 01a22fed-de80", "logs ID"),
    ],
)  # fmt: skip
def test_the_command_of_quine_is_named(command: str, ours: str) -> None:
    wrong = accident(command.split(), command.split())
    assert wrong and wrong.hint == f"did you mean quine {ours}? for a mission: quine -- {command}"


IDIOMS = """
completion bash | --completion bash
help list | ps --help
help resume | --help
host list | hosts
host add gpu1 me@x | hosts
agent list | ps
list hosts | hosts
list models | doctor --guest
list tapes | tape ls
list jobs | ps
stop all | kill ID
rm abc | kill ID
exec abc ls | run -- CMD
exec -it gpu1 bash | run -- CMD
ssh db | rsh HOST
version --short | --version
auth login |
config set model qwen3 | doctor
server start |
checkout main |
checkout -b topic |
commit -m 'the first one' |
push origin main |
get pods |
pr create |
compose up -d |
new -s x |
a -t x |
cherry-pick topic |
tell 01a2316c-b98c hello there |
explain 3f2a9c1d |
continue deadbeef-12 | attach ID
tail 01a2316c | logs -f ID
watch | attach ID
explain |
explain --help |
resume --all |
dcotor | doctor
hosst | hosts
statsu | ps
PS | ps
rnu tests | run
taep ls | tape
dep1oy | deploy
""".strip().splitlines()


@pytest.mark.parametrize("line", IDIOMS)
def test_commands_of_other_programs_and_mistyped_ones_are_no_missions(line: str) -> None:
    command, _, ours = line.partition(" |")
    words = shlex.split(command)
    wrong = accident(words, words)
    assert wrong, command
    meant = f"did you mean quine {ours.strip()}? " if ours else ""
    assert wrong.hint == f"{meant}for a mission: quine -- {command}"
    assert accident(["--", *words], words) is None and accident([command], [f"{command} x"]) is None
    assert wrong.detail.startswith("not built yet: " if words[0] in NOT_BUILT else "no such verb: ")


def test_an_id_behind_tape_is_to_be_shown() -> None:
    for word, cure in (("01a22fed-de80", "quine tape show 01a22fed-de80"), ("01022024", "quine tape --help")):
        with pytest.raises(Misconfigured) as wrong:
            tape.main([word])
        assert wrong.value.hint == cure


@pytest.mark.parametrize(
    ("words", "name", "hint"),
    [
        ("'fix it' --on h1", "--on", "quine --on h1 'fix it'; @ quine -- 'fix it' --on h1"),
        ("a --max-turns 3 b", "--max-turns", "quine --max-turns 3 a b; @ quine -- a --max-turns 3 b"),
        ("--model m a --on=h1 -q", "--on", "quine --on=h1 -q --model m a; @ quine --model m -- a --on=h1 -q"),
        ("x --fetch f -- -v", "--fetch", "quine --fetch f x -- -v; @ quine -- x --fetch f -- -v"),
        ("hello --help", "--help", "quine --help; @ quine -- hello --help"),
        (
            "xargs 'a {}' --on h1 ::: -v",
            "--on",
            "quine xargs --on h1 'a {}' ::: -v; @ --mission 'a {} --on h1'",
        ),
        ("xargs --mission a b -k ::: c", "-k", "quine xargs -k --mission a b ::: c; @ --mission 'a b -k'"),
        ("xargs summarize -h", "-h", "quine xargs -h; @ --mission 'summarize -h'"),
        (f"{'a' * 300} -q", "-q", "quine -q MISSION; @ quine -- MISSION"),
    ],
)
def test_an_option_behind_a_mission_is_refused(words: str, name: str, hint: str) -> None:
    with pytest.raises(Misconfigured, match=f"^{name} is behind the mission") as wrong:
        dispatch(shlex.split(words))
    hint = f"options come before the mission: {hint}".replace("@", f"for a mission with {name} in it:")
    assert wrong.value.hint == hint


@pytest.mark.parametrize(
    "words",
    [
        "'use --on h1'",
        "a --onto b",
        "fix -qv",
        "fix -x",
        "a -- --on h1",
        "-- a --on h1",
        "--model m -- a -q",
        "-",
    ],
)
def test_other_words_behind_a_mission_are_its_own(words: str) -> None:
    _, mission = parse("agent", shlex.split(words))
    assert mistake(shlex.split(words), mission) is None


def test_an_answer_to_an_option_of_another_program_names_options_that_are_there() -> None:
    tables = {"xargs": xargs.OPTIONS, "each": each.OPTIONS, "agent": rows("agent"), "run": rows("run")}
    spelled = {
        verb: {f"--{row[0]}" for row in table} | {f"-{row[1]}" for row in table if row[1]}
        for verb, table in tables.items()
    }
    for verb, answers in ANSWERS.items():
        for name, hint in answers.items():
            assert f"--{name}" not in spelled[verb], (verb, name)
            assert len(name) > 1 or f"-{name}" not in spelled[verb], (verb, name)
            for part in re.split("[;:] ", hint):
                named = re.search(r"quine (run|xargs|each|tape)\b", part)
                if named and named[1] != "tape":
                    rest = part[named.end() :].partition(" -- ")[0]
                    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= spelled[named[1]], hint
                elif not named:
                    part = part.replace("sh -c", "")
                    assert set(re.findall(r"(?<!\S)'?(--?[a-zA-Z][a-z-]*)", part)) <= spelled[verb], hint
        assert not NOT_BUILT_OPTIONS & {word[2:] for word in spelled[verb]}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("-p x", "the mission is the argument"),
        ("--resume x", "going on with a session is not built yet"),
        ("-m qwen x", "--model NAME"),
        ("--max-budget-usd=5 x", "--max-cost USD"),
        ("--output-format json x", "stdout is the deliverable alone"),
        ("--json x", "stdout is the deliverable alone"),
        ("each --on h1 -- ls", "WHERE is an argument"),
        ("each -N4 any ls", "WHERE is an argument"),
        ("run -N4 ls", "quine each WHERE CMD"),
        ("run --rm ls", "leave it out"),
        ("run -it --on h1 -- bash", "leave it out: the command reads our stdin; -t gives it a terminal"),
        ("xargs --retry 3 -- ls", "--retries N"),
        ("run --retires 3 ls", "--retry N"),
        ("--dedline 3 x", "did you mean --deadline?"),
        ("--frobnicate x", "see quine --help"),
        ("--check true x", ""),
    ],
)
def test_an_option_of_another_program_is_answered_with_ours(words: str, hint: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        dispatch(shlex.split(words))
    assert wrong.value.hint.startswith(hint) and bool(wrong.value.hint) == bool(hint)
    assert hint or wrong.value.detail == "not built yet: --check"


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        ("run the tests", True), ("budget my month", True), ("top ten words", True), ("kill zombies", True),
        ("wait for it", True), ("attach the report", True), ("deploy the app", True), ("each file: summarise", True),
        ("run gti status", False), ("run nosuch", False), ("kill deadbeef", False), ("deploy gpu", False),
        ("run -q the tests", False), ("each any ls /tmp", False), ("the tests", False), ("run", False), ("", False),
        ("fs cat a", False),
    ],
)  # fmt: skip
def test_words_of_a_verb_that_has_failed_may_be_a_mission(words: str, is_one: bool) -> None:
    assert as_mission(words.split()) == (f"for a mission: quine -- {words}" if is_one else "")


def test_the_refusals_say_how_to_say_it(lab: Lab) -> None:
    for words, told in (
        (
            ["stop", "3f2a9c1d"],
            "quine: hint: did you mean quine kill ID? for a mission: quine -- stop 3f2a9c1d\n",
        ),
        (["--max-turns", "3", "login"], "quine: hint: for a mission: quine --max-turns 3 -- login\n"),
        (
            ["xargs", "gzip {}", ":::", "f"],
            "quine: hint: for a command: quine xargs [OPTIONS] -- gzip {}; for a mission: --mission 'gzip {}'\n",
        ),
    ):
        done = lab.run(words)
        assert done.returncode == 2 and done.stderr.decode().endswith(told), done.stderr


def test_help_and_version_do_what_they_say(lab: Lab) -> None:
    for words, same in (
        (["help"], ["--help"]),
        (["version"], ["--version"]),
        (["help", "ps"], ["ps", "--help"]),
    ):
        one, other = lab.run(words), lab.run(same)
        assert one.returncode == other.returncode == 0 and one.stdout == other.stdout


def test_each_hint_names_a_verb_that_is_there() -> None:
    assert OURS.keys() <= FOREIGN
    assert not BEFORE_ID.keys() & OURS.keys()
    named = {ours.split()[0] for ours in (OURS | BEFORE_ID | OF_LIST).values()}
    assert named <= VERBS.keys() | {f"--{row[0]}" for row in rows("agent")}
    assert not any(one in VERBS for one in itertools.chain(TYPED))

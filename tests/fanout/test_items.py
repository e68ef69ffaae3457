"""The items of `quine xargs` and its replacement strings: laws by hypothesis, and cases run by GNU parallel, too."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.fanout.input import records, rows
from quine.fanout.input.items import Item, Items
from quine.fanout.input.rows import Row
from quine.fanout.input.seen import BUCKET, Seen
from quine.fanout.main import template
from quine.fanout.options import OPTIONS, parse
from tests.fanout.test_cases import argvs

ROOT = Path(__file__).resolve().parents[2]
needs_parallel = pytest.mark.skipif(not shutil.which("parallel"), reason="no GNU parallel here")


def cut(data: bytes, sizes: Iterable[int]) -> Iterator[bytes | None]:
    """`data` in pieces, with a wait before each."""
    at = 0
    for size in sizes:
        yield None
        if data[at : at + size]:
            yield data[at : at + size]
        at += size
    if data[at:]:
        yield data[at:]


pieces = st.lists(st.integers(1, 5), max_size=20)
texts = st.text("ab,\n", max_size=40).map(str.encode)


@given(texts, st.sampled_from([b"\n", b",", b"ab", b"aab", b",\n"]), pieces)
def test_records_do_not_depend_on_how_the_input_comes(
    data: bytes, separator: bytes, sizes: list[int]
) -> None:
    found = [record for record in records.records(cut(data, sizes), separator) if record is not None]
    expected = data.split(separator)
    assert found == (expected if expected[-1] else expected[:-1])


@given(st.lists(st.one_of(st.none(), st.integers(0, 9))), st.integers(1, 5))
def test_so_many_rows_are_one_and_none_is_lost(numbers: list[int | None], count: int) -> None:
    given = [None if n is None else rows.Row((str(n), "x"), {"n": str(n)}) for n in numbers]
    found = [row for row in rows.grouped(given, count) if row]
    assert sum((row.args for row in found), ()) == sum((row.args for row in given if row), ())
    assert all(len(row.args) == 2 * count for row in found[:-1])
    assert all(row.fields == {"n": row.args[0]} for row in found)


@given(texts, st.integers(1, 12), st.sampled_from([b"\n", b"ab", b",\n"]), pieces)
def test_a_block_is_whole_records_and_no_byte_is_lost(
    data: bytes, size: int, end: bytes, sizes: list[int]
) -> None:
    found = [block for block in records.blocks(cut(data, sizes), size, end) if block is not None]
    assert b"".join(found) == data
    assert all(found)
    assert all(block.endswith(end) for block in found[:-1])
    for block in found:
        if len(block) > size:  # then it is a single record
            assert block.find(end) in (-1, len(block) - len(end))


@given(st.lists(st.lists(st.text('a,"\n x', max_size=6), min_size=1, max_size=4), max_size=6), pieces)
def test_csv_is_read_as_it_is_written(table: list[list[str]], sizes: list[int]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(table)
    data = records.records(cut(file.getvalue().encode(), sizes), b"\n")
    assert [list(row.args) for row in rows.csv(data) if row] == table


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b_c"]), st.none() | st.text() | st.integers())))
def test_fields_of_json_lines(table: list[dict[str, object]]) -> None:
    lines = [json.dumps(entry).encode() for entry in table]
    found = [row.fields for row in rows.objects(lines) if row]
    assert found == [
        {name: "" if value is None else str(value) for name, value in entry.items()} for entry in table
    ]


words = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4)


@given(st.lists(words, min_size=1, max_size=3))
def test_linked_sources_end_with_the_longest(sources: list[list[str]]) -> None:
    given = [rows.plain([word.encode() for word in source]) for source in sources]
    longest = max(map(len, sources))
    expected = [tuple(source[at % len(source)] for source in sources) for at in range(longest)]
    assert [row.args for row in rows.link(given) if row] == expected


def commands(line: list[str]) -> list[list[str]]:
    """The commands of a command line whose input needs no waiting."""
    options, rest, _ = parse(line)
    with closing(Items(options, rest)) as items:
        command = template(options, items.command)
        return [command.argv(item) for item in items if isinstance(item, Item)]


def test_an_item_is_read_when_it_is_asked_for_and_not_before() -> None:
    options, rest, _ = parse(["-a", "/dev/zero", "-d", "\\0", "--", "echo"])
    with closing(Items(options, rest)) as items:
        assert next(iter(items))


def test_input_that_has_not_come_is_waited_for_by_the_caller() -> None:
    reading, writing = os.pipe()
    path = f"/proc/self/fd/{reading}"
    options, rest, _ = parse(["-a", path, "-n", "2", "--", "echo"])
    with closing(Items(options, rest)) as found:
        items = iter(found)
        assert next(items) is None and found.fd >= 0
        os.write(writing, b"a\nb\nc")
        item = next(item for item in items if item)
        assert item.args == ("a", "b")
        assert next(items) is None
        os.close(writing)
        assert [item.args for item in items if item] == [("c",)]
    os.close(reading)


@pytest.mark.parametrize("order", [[], ["--shuf"]])
def test_all_items_come_once(order: list[str]) -> None:
    found = commands([*order, "--", "echo", "{}", ":::", *map(str, range(200))])
    assert sorted(found) == sorted(["echo", str(at)] for at in range(200))
    assert bool(order) == (found != [["echo", str(at)] for at in range(200)])


def test_values_are_not_looked_at_again() -> None:
    assert commands(["--", "echo", "{1}{2}", ":::", "{2}", ":::", "$(id) {}"]) == [["echo", "{2}$(id) {}"]]


def test_a_word_that_is_the_item_becomes_a_word_for_each_argument() -> None:
    assert commands(["-n2", "--", "echo", "{.}", "<{}>", ":::", "a.x", "b.y"]) == [
        ["echo", "a", "b", "<a.x b.y>"]
    ]


def test_json_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(
        '{"name": "x y", "n": [1, {"a": 2}], "u": "ü"}\n\n{"name": "z", "n": null}\n'
    )
    line = ["--jsonl", "-a", str(tmp_path / "in"), "--", "echo", "{name}", "{n}", "{#}", "{not-there"]
    assert commands(line) == [
        ["echo", "x y", '[1,{"a":2}]', "1", "{not-there"],
        ["echo", "z", "", "2", "{not-there"],
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--csv", "--colsep", ",", "--", "echo"], "exclude each other"),
        (["-0", "-d", ",", "--", "echo"], "exclude each other"),
        (["-n", "0", "--", "echo"], "--max-args 0: should be a whole number, 1 or more"),
        (["-n", "2", "-L", "2", "--", "echo"], "-n and -L exclude each other"),
        (["--colsep", "(", "--", "echo", ":::", "a"], "--colsep (: "),
        (["-d", "\\q", "--", "echo"], "no such escape: \\q"),
        (["--block", "1M", "--", "echo"], "go with --pipe"),
        (["--pipe", "--", "cat", ":::", "a"], "--pipe takes stdin itself"),
        (["-a", "/no/such", "--", "cat"], "/no/such: no such file or directory"),
        (["--jsonl", "--", "cat", ":::", "{"], "--jsonl: line 1, character 2: no JSON"),
        (["--jsonl", "--", "cat", ":::", "\udcff"], "--jsonl: line 1: no UTF-8"),
        (["--jsonl", "--", "cat", ":::", "[]"], "--jsonl: line 1: not an object"),
        (["--jsonl", "--", "cat", ":::", '{"a":' * 100_000], "--jsonl: line 1: too deep"),
        (["--jsonl", "--", "cat", "{a}", ":::", "{}"], "item 1 has no field a"),
        (["--csv", "--", "cat", ":::", 'a"b'], "ends within quotes"),
        (
            ["--header", ":", "--csv", "--", "cat", ":::", "a,,,b,a", "1,2,3,4,5"],
            "--header: two columns have the name a",
        ),
    ],
)
def test_refusals(line: list[str], message: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        commands(line)
    assert message in raised.value.detail


@pytest.mark.parametrize(
    "words", ["-0", "-d ,", "-r", "--link", "-I X", "-C ,", "--csv", "--jsonl", "--shuf"]
)
def test_options_about_items_are_refused_by_name_with_pipe(words: str) -> None:
    parse([*words.split(), "--", "cat"])
    with pytest.raises(Misconfigured, match=r"^--[a-z-]+ is about items, and --pipe has blocks") as raised:
        parse(["--pipe", *words.split(), "--", "cat"])
    option = words.split()[0]
    name = raised.value.detail.split()[0]
    assert option == name or any(f"-{row[1]}" == option and f"--{row[0]}" == name for row in OPTIONS)
    parse(["--pipe", "-a", "f", "-n2", "--header", ":", "--recend", ";", "--", "cat"])


@pytest.mark.parametrize("option", ["-P", "-kP", "--retries", "--timeout", "--on", "-I"])
def test_a_value_that_was_forgotten_is_named(option: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        parse([option, "--", "echo", ":::", "1"])
    assert raised.value.detail == f"{option} takes a value, and -- follows it"
    assert parse(["-I", "--", "--", "echo", "--"])[1:] == (["echo", "--"], True)
    assert parse(["--recend=--", "a mission"])[1:] == (["a mission"], False)


# -- beside GNU parallel ---------------------------------------------------------------------------

CASES: list[tuple[str, list[str]]] = [  # stdin, words
    *(
        ("", ["echo", "[{}]", "[{.}]", "[{/}]", "[{//}]", "[{/.}]", ":::", name])
        for name in [
            *("a", "a.", ".a", "a.b.c", "a/b", "a/b.", "a.b/c", "/a", "/", "//", "a/", "a/b/", ".", ".."),
            *("../x.", "a..", "x y.z", "", "a//b.c", "a/.b", "./", "it's", '"', "$HOME", "a\\b", "*", "é.x"),
            *(
                "-n",
                "--",
                "a\tb",
                ";",
                "a&b",
                "~",
                "#",
                "{}",
                "/a/b.c/d.tar.gz",
                "////a",
                "a///",
                "...",
                "/..",
            ),
        ]
    ),
    ("a\nb\n", ["echo"]),
    ("a\nb", ["echo"]),
    ("a\n\nb\n", ["echo", "{}"]),
    (" a b  c \n\t\n", ["echo", "{}"]),
    ("'a b'\n\"c\\ d\"\n", ["echo", "{}"]),
    ("", ["echo"]),
    ("a\0b\nc", ["-0", "echo"]),
    ("a\0b\0", ["-0", "echo"]),
    ("a,b,c\n", ["-d", ",", "echo"]),
    ("a,b,c,", ["-d", ",", "echo"]),
    ("a\tb", ["-d", "\\t", "echo"]),
    ("a\n\n \nb\n", ["-r", "echo"]),
    ("", ["-r", "echo"]),
    ("1\n2\n3\n4\n5\n", ["-n2", "echo", "{}"]),
    ("1\n2\n3\n4\n5\n", ["-n", "9", "echo", "{}"]),
    ("1.a\n2.b\n3.c\n", ["-n2", "echo", "{.}", "{#}"]),
    ("1\n2\n3\n4\n5\n", ["-n2", "echo", "[{1}]", "[{2}]", "[{-1}]"]),
    ("1\n2\n3\n4\n5\n", ["-L2", "echo", "{}"]),
    ("a \nb\nc\n", ["-L1", "echo", "{}"]),
    ("a  \nb \t\nc\nd \n", ["-L1", "echo", "{}"]),
    ("a\n\nb\nc\n", ["-L2", "echo", "{}"]),
    ("a\tb c\nd\n", ["--colsep", "\t", "echo", "[{2}]", "[{1}]"]),
    ("a\tb c\nd\n", ["--colsep", "\t", "echo"]),
    ("a,,b\n,c,\n", ["--colsep", ",", "echo", "[{1}]", "[{2}]", "[{3}]"]),
    ("a  b c\n", ["--colsep", " +", "echo", "[{1}]", "[{2}]", "[{3}]", "{}"]),
    ("a-b\nc-d\ne-f\n", ["--colsep", "-", "-n2", "echo", "[{1}]", "[{2}]", "[{3}]", "[{4}]"]),
    ("", ["--colsep", ",", "echo", "{1}", "{3}", "{2}", ":::", "a,b", ":::", "c", "d"]),
    ("a.b/c.d\n", ["echo", "{1}", "{1.}", "{1/}", "{1//}", "{1/.}", "{-1}", "{-1.}"]),
    ("", ["echo", ":::", "a", "b", ":::", "1", "2"]),
    ("", ["echo", "{2}", "{1}", "{}", ":::", "a", "b", ":::", "1", "2"]),
    ("", ["echo", "{3}", "{1}", ":::", "a", "b", ":::", "1", "2", ":::", "x", "y", "z"]),
    ("", ["--link", "echo", ":::", "a", "b", "c", ":::", "1", "2"]),
    ("", ["--link", "echo", ":::", "a", ":::", "1", "2", "3"]),
    ("", ["--link", "echo", "{1}{2}{3}", ":::", "a", "b", ":::", "1", "2", "3", ":::", "x"]),
    ("", ["echo", ":::", "a", "b", "c", ":::+", "1", "2", ":::", "x", "y"]),
    ("", ["echo", ":::", "a", "b", ":::", "x", "y", ":::+", "1", "2"]),
    ("1\n2\n", ["echo", "::::", "-", ":::", "x", "y"]),
    ("1\n2\n", ["echo", ":::", "x", "y", "::::", "-"]),
    ("1\n2\n", ["-a", "-", "echo", ":::", "x", "y"]),
    ("", ["echo", "::::", "one", "two"]),
    ("", ["echo", "::::", "one", "::::+", "two"]),
    ("", ["echo", ":::", "q", "::::", "one", "two"]),
    ("", ["-a", "one", "-a", "two", "echo"]),
    ("", ["-a", "one", "--link", "-a", "two", "echo", "{2}-{1}"]),
    ("", ["-0", "echo", "::::", "nul"]),
    ("", ["-I", ",,", "echo", ",,", "{}", "x,,x", ":::", "a.b"]),
    ("", ["-I", "%%", "echo", "%%", "[%%]", ":::", "a b", "c"]),
    ("", ["echo", "{#}", ":::", "a", "b"]),
    ("", ["-n2", "echo", "{#}", ":::", "a", "b", "c"]),
    ("", ["-n2", "--header", ":", "echo", "{a}", "{1}", "{2}", ":::", "a", "1", "2", "3", "4"]),
    ("", ["echo", "{#}:{}", ":::", "a", "b"]),
    ("", ["echo", "{{}}", "{}{}", "{1}{}", ":::", "a"]),
    ("", ["echo", "{1.}", "{2/}", "{-1//}", "{1/.}", "{-2}", "{.}", "{/}", ":::", "a.b", ":::", "c/d.e"]),
    ("", ["echo", "pre{}post", "{.}.png", ":::", "a.jpg", "b c.jpg"]),
    ("", ["echo", ":::", "a b", "c;d", "e'f"]),
    ("", ["echo", "{3}x", ":::", "a"]),
]


# The output of `parallel --dry-run` for each of them, as the words that a shell reads.
RECORDED = Path(__file__).parent / "cases" / "commands.json"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "one").write_text("1\n2\n")
    (tmp_path / "two").write_text("x y\nz\nw\n")
    (tmp_path / "nul").write_bytes(b"a\nb\0c")
    return tmp_path


def test_the_commands_are_those_of_gnu_parallel(place: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    for (stdin, line), theirs in zip(CASES, recorded, strict=True):
        (place / "stdin").write_text(stdin)
        at = line.index("echo")
        assert argvs(place, [*line[:at], "--", *line[at:]], place / "stdin") == theirs, line


@needs_parallel
@pytest.mark.long
def test_what_is_recorded_is_what_gnu_parallel_prints(place: Path) -> None:
    (place / ".parallel").mkdir()
    (place / ".parallel" / "will-cite").touch()
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "LC_ALL": "C.UTF-8"}

    def printed(stdin: str, line: list[str]) -> list[list[str]]:
        words = ["parallel", "-k", "-j1", "--dry-run", *line]
        done = subprocess.run(
            words, input=stdin.encode(), capture_output=True, cwd=place, env=env, timeout=60, check=True
        )
        assert not done.stderr
        return list(_split(done.stdout.decode()))

    found = [printed(*case) for case in CASES]
    if os.environ.get("QUINE_TEST_RECORD"):
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
    assert found == json.loads(RECORDED.read_text())


def _split(text: str) -> Iterator[list[str]]:
    """The words of each command; a newline within quotes is no end of it."""
    held = ""
    for line in text.splitlines(keepends=True):
        held += line
        try:
            words = shlex.split(held)
        except ValueError:  # within quotes
            continue
        yield words
        held = ""


# -- values that were seen -------------------------------------------------------------------------


@given(st.lists(st.integers(-(1 << 60), 1 << 60)), st.lists(st.integers(-50, 50)))
def test_values_that_were_seen_are_those_that_were_added(far: list[int], near: list[int]) -> None:
    """Each of these numbers is its own hash, but for -1."""
    seen, hashes = Seen(), set()
    for value in [*far, *near * 8]:
        assert (value in seen) is (hash(value) in hashes)
        seen.add(value)
        hashes.add(hash(value))
    assert all(value in seen for value in hashes)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200))))
def test_a_value_is_taken_out_as_often_as_it_was_added(steps: list[tuple[bool, int]]) -> None:
    seen, counts = Seen(), Counter[int]()
    for number in range(100):
        seen.add(number)
        counts[number] += 1
    for adds, value in steps:
        if adds:
            seen.add(value)
        else:
            assert seen.take(value) is (counts[value] > 0)
        counts[value] = max(0, counts[value] + (1 if adds else -1))
        assert (value in seen) is (counts[value] > 0)
    assert len(seen) == counts.total()


def test_a_value_that_was_seen_is_compared_with_a_few_others_among_many() -> None:
    """Numbers are their own hashes. An addition moves at most one bucket."""
    seen = Seen()
    for number in range(50_000):
        seen.add(number)
    assert max(map(len, seen._buckets)) <= 8 * BUCKET
    assert sum(map(len, seen._buckets)) == 50_000


NAMES = [
    "d.e",
    "size(mb)",
    "a/b",
    "x%",
    " c",
    "c ",
    "id#",
    "it's",
    "@id",
    "a:b",
    "日本",
    "-n",
    "n.",
    "a b",
    "1a",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_column_or_a_field_is_replaced(name: str) -> None:
    words = ["--", "echo", f"<{{{name}}}>", f"{{{name}/}}"]
    value = "/x/VAL"
    expected = [["echo", f"<{value}>", "VAL"]]
    assert commands(["--header", ":", *words, ":::", f"{name}\tother", f"{value}\tO"]) == expected
    assert commands(["--jsonl", *words, ":::", json.dumps({name: value, "o": 1})]) == expected


def test_braces_that_name_nothing_are_text_or_a_fault() -> None:
    texts = ["{print $1}", "{ echo x; }", "{1,3}", '{"a":1}', "{.x}", "{x,y}", "{n+=1}", "{id: .x}", "${x}y"]
    for text in texts[:-1]:
        # as it is without names: such a command has no replacement string, and gets the item at its end
        assert commands(["--header", ":", "--", "awk", text, ":::", "col", "v"]) == [["awk", text, "v"]]
        assert commands(["--header", ":", "--", "awk", text, "{col}", ":::", "col", "v"]) == [
            ["awk", text, "v"]
        ]
    for text in ("{dir.name}", "{size(mb)}", "{@id}", "{日本}", "{x}", "{a/b.}", texts[-1]):
        with pytest.raises(Misconfigured, match="item 1 has no field"):
            commands(["--header", ":", "--", "rm", f"/data/{text}", ":::", "col", "v"])


def test_columns_between_odd_separators() -> None:
    assert commands(["--colsep", "(,)|;", "--", "echo", "{1}", "{3}", ":::", "a,b;c"]) == [["echo", "a", "b"]]
    assert commands(["--colsep", "(,)|;", "--", "echo", ":::", "a;b"]) == [["echo", "a", "", "b"]]
    spaces = ["--colsep", "[[:space:],]+", "--", "echo", "{2}", ":::", "a , \tb c"]
    assert commands(spaces) == [["echo", "b"]]
    for pattern, why in (("[[:blue:]]", "no such class of characters"), ("[[a]", "possible nested set")):
        with pytest.raises(Misconfigured, match=why):
            commands(["--colsep", pattern, "--", "echo", ":::", "a"])


def test_a_separator_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SPLIT", 0.1)  # of the processor
    with pytest.raises(Misconfigured, match="record 2 takes longer than"):
        commands(["--colsep", "(x+x+)+y", "--", "echo", ":::", "a", "x" * 60])


def test_numbers_of_json_are_passed_as_they_stand() -> None:
    text = '{"v":1.10,"big":1e400,"n":[0.12345678901234567890,{"a":-0}],"i":' + "9" * 5000 + "}"
    (argv,) = commands(["--jsonl", "--", "echo", "{v}", "{big}", "{n}", "{i}", ":::", text])
    assert argv == ["echo", "1.10", "1e400", '[0.12345678901234567890,{"a":-0}]', "9" * 5000]
    for constant in ("NaN", "-Infinity"):
        with pytest.raises(Misconfigured, match=f"line 1: {constant} is no JSON"):
            commands(["--jsonl", "--", "echo", ":::", f'{{"a":{constant}}}'])


def test_a_mark_before_the_first_column_is_no_part_of_its_name(tmp_path: Path) -> None:
    for option, text, expected in (
        (["--csv", "--header", ":"], "a,b\n1,2\n", [["echo", "1"]]),
        (["--jsonl"], '{"a":1}\n', [["echo", "1"]]),
    ):
        (tmp_path / "in").write_text("\ufeff" + text)
        assert commands([*option, "-a", str(tmp_path / "in"), "--", "echo", "{a}"]) == expected
    assert commands(["--", "echo", ":::", "\ufeffa"]) == [["echo", "\ufeffa"]]  # a line is what it is


def test_a_large_column_that_no_command_uses_is_no_fault() -> None:
    assert commands(["--csv", "--", "echo", "{1}", ":::", f"a,{'x' * 200_000}"]) == [["echo", "a"]]


def test_the_size_of_an_item_is_that_of_its_values_and_its_block() -> None:
    assert Item(Row(("ab", "c"), {"x": "long"}), 1).size == 7
    assert Item(Row(()), 1, b"12345").size == 5

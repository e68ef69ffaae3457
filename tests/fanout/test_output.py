"""Outputs on their way: spooled, tagged, in order; the log of a batch. Without a job."""

from __future__ import annotations

import base64
import codecs
import csv
import json
import os
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine.base.errors import Failure, Misconfigured
from quine.fanout import journal
from quine.fanout import main as xargs
from quine.fanout.input.items import Item
from quine.fanout.input.rows import Row
from quine.fanout.input.template import Template
from quine.fanout.joblog import HEAD, PARALLEL, RUNNING, Entry, Joblog
from quine.fanout.journal import hash_of
from quine.fanout.options import Options
from quine.fanout.output import record_file, sinks, spool, tables, values
from quine.fanout.output.results import Report, names
from quine.fanout.output.sinks import Sink
from quine.fanout.output.spool import Spool
from quine.fanout.output.streams import Streams
from quine.fanout.output.tags import Tags
from quine.fanout.tasks import Task, Work
from quine.jobs import owner
from tests.lab import Lab
from tests.support.agents import PATIENCE
from transport.address import boot_clock
from transport.client.batch import Batch
from transport.client.output import Output

KEEP = {"done", "lost"}
SH = ["--", "sh", "-c"]


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([0, 1, 999, 33_000, 70_000]))))
def test_a_spool_gives_back_what_was_written_and_holds_little_in_memory(
    pieces: list[tuple[int, int]],
) -> None:
    kept = Spool()
    expected = {1: bytearray(), 2: bytearray()}
    for number, (stream, size) in enumerate(pieces):
        data = bytes([number % 256]) * size
        kept.write(stream, memoryview(data))
        expected[stream] += data
        assert kept.in_memory <= spool.MEMORY
    found = {1: bytearray(), 2: bytearray()}
    for stream, data in kept.chunks():
        found[stream] += data
    assert found == expected


TEXTS = st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=6))


@given(st.lists(st.tuples(st.sampled_from([1, 2]), TEXTS)), st.integers(0, 9), st.booleans())
def test_a_value_is_that_of_the_whole_stream_up_to_its_bound(
    pieces: list[tuple[int, bytes]], most: int, large: bool
) -> None:
    kept, whole = Spool(), {1: b"", 2: b""}
    for stream, data in [*pieces, (2, b"-" * spool.MEMORY * large)]:
        for at in range(0, len(data), 4097):
            kept.write(stream, data[at : at + 4097])
        whole[stream] += data
    found = json.loads(b"".join(values.object_line({"host": "h"}, kept, most)))
    cells = csv.reader([os.fsdecode(b",".join(b"".join(values.cell(kept, n, most, b",")) for n in (1, 2)))])
    if not any(mark in data for data in whole.values() for mark in (b"\n", b"\r", b"\0")):
        row = [os.fsdecode(data[: most or None]) for data in whole.values()]
        assert (next(cells, []) or ["", ""]) == row
    kept.leave()
    assert found.pop("host") == "h"
    cut = {name: len(whole[n]) for n, name in values.STREAMS.items() if 0 < most < len(whole[n])}
    assert found.pop("cut", {}) == cut
    for stream, name in values.STREAMS.items():
        data = whole[stream][: most or None]
        try:
            expected = codecs.getincrementaldecoder("utf-8")().decode(data, name not in cut)
        except UnicodeDecodeError:
            assert base64.b64decode(found.pop(f"{name}_base64")) == data
        else:
            assert found.pop(name) == expected
    assert not found


CELLS = st.text(alphabet='ab"\n\r, ', max_size=6)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=5), st.integers(0, 200), st.integers(1, 9))
def test_the_whole_rows_of_a_table_end_where_one_ends(rows: list[list[str]], size: int, block: int) -> None:
    """Wherever a kill has cut it off, and however it is read."""
    written, ends = b"", [0]
    for row in rows:
        cells = [
            '"{}"'.format(cell.replace('"', '""')) if set(cell) & set('"\n\r, ') else cell for cell in row
        ]
        written += ",".join(cells).encode() + b"\n"
        ends.append(len(written))
    with TemporaryFile() as file, mock.patch.object(tables, "BLOCK", block):
        file.write(written[:size])
        file.flush()
        left = min(size, len(written))
        assert tables.whole_rows(file.fileno(), left, quoted=True) == max(at for at in ends if at <= left)
        assert tables.whole_rows(file.fileno(), left, quoted=False) == written[:left].rfind(b"\n") + 1


HEADS = {".csv": PARALLEL.replace("\t", ",") + ",V1,Stdout,Stderr\n", ".jsonl": '{"seq": 1, "stdout": "a"}\n'}
TORN = {".csv": '2,:,1.0,"echo\nx\n', ".jsonl": '{"seq": 2, "std'}


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_a_row_that_a_kill_has_torn_is_cut_off_when_its_table_is_resumed(tmp_path: Path, kind: str) -> None:
    """All rows behind it were a part of one of its cells."""
    path = tmp_path / f"r{kind}"
    for written, left in (
        (HEADS[kind] + TORN[kind], HEADS[kind]),
        (HEADS[kind], HEADS[kind]),
        (HEADS[kind][:9], ""),
        ("", ""),
        ('of another "program\n2', 'of another "program\n2'),
    ):
        path.write_text(written)
        table = tables.Table(str(path), kind, resumed=True)
        table.begin()
        table.close()
        assert path.read_text() == left
    os.mkfifo(tmp_path / f"pipe{kind}")
    reader = os.open(tmp_path / f"pipe{kind}", os.O_RDONLY | os.O_NONBLOCK)
    for resumed in (True, False):
        table = tables.Table(str(tmp_path / f"pipe{kind}"), kind, resumed)
        table.begin()
        table.close()
    os.close(reader)


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_batch_that_is_refused_leaves_the_table_of_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: list[str]
) -> None:
    """It was emptied, or lost the row that was just being written, before the lock of the log was seen."""
    table, path = tmp_path / "t.csv", tmp_path / "log"
    table.write_text(HEADS[".csv"] + TORN[".csv"])
    words = [f"--joblog={path}", f"--results={table}", *resume, "--", "true", ":::", "a"]
    log = Joblog(str(path))
    monkeypatch.setattr(record_file, "PATIENCE", 0.0)
    with pytest.raises(Misconfigured, match="in use by another batch"):
        xargs.main(words)
    log.close()
    other = tables.Table(str(table), ".csv", resumed=True)
    for detached in ([], ["--detach"]):
        with pytest.raises(Misconfigured, match=r"t\.csv is in use by another batch"):
            xargs.main([*detached, *words[1:2], "--", "true", ":::", "a"])
    other.close()
    assert table.read_text() == HEADS[".csv"] + TORN[".csv"]


def test_a_batch_whose_outputs_cannot_be_opened_leaves_the_log_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Joblog(str(path)).close()
    path.write_text(before := path.read_text() + "a line\n")
    with pytest.raises(Misconfigured, match="no such file"):
        xargs.main([f"--joblog={path}", f"--results={tmp_path}/no/t.csv", "--", "true", ":::", "a"])
    assert path.read_text() == before


@pytest.mark.parametrize("value", ["x", "0"])
def test_a_wrong_number_of_retries_is_refused_before_anything_is_emptied(tmp_path: Path, value: str) -> None:
    """The log of a batch that was killed had lost its lines, and its journal the jobs that still ran."""
    files = {tmp_path / name: f"{name}\n" for name in ("log", "log.started", "report", "t.csv")}
    for path, text in files.items():
        path.write_text(text)
    words = [
        f"--{name}={tmp_path / place}"
        for name, place in (("joblog", "log"), ("report", "report"), ("results", "t.csv"))
    ]
    with pytest.raises(Misconfigured, match=f"--retries {value}: should be a whole number, 1 or more"):
        xargs.main([*words, "--retries", value, "--", "true", ":::", "a"])
    assert {path: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
def test_a_table_that_was_torn_before_is_refused_and_not_cut(tmp_path: Path, kind: str) -> None:
    """An earlier build wrote its rows behind a torn one: the cut took the end of the last whole row, at each resume."""
    path = tmp_path / f"r{kind}"

    def row(number: int, out: str) -> str:
        return f'{number},:,1.0,0.1,0,2,0,0,"echo ""b""",b,{out},\n'

    head, torn, rows = HEADS[".csv"], '2,:,1.0,0.1,0,2,0,0,"echo\nx', row(3, '"c\nd\n"') + row(4, '"\nd\n"')
    for written, line in (
        (head + row(1, '"\n"') + torn + rows, 4),
        (head + torn + "\n" + rows, 2),
        (head + row(1, '"\n"') + torn + rows + torn, 4),
        (head + rows + torn, 0),  # torn just now
    ):
        path.write_text(written := written.replace(",", {".csv": ",", ".tsv": "\t"}[kind]))
        if line:
            with pytest.raises(Misconfigured, match=f"line {line} begins a row that was torn"):
                tables.Table(str(path), kind, resumed=True)
            assert path.read_text() == written
            continue
        table = tables.Table(str(path), kind, resumed=True)
        table.begin()
        table.close()
        assert written.startswith(path.read_text()) and len(written) - len(path.read_text()) <= len(torn)


def test_an_offset_of_a_host_makes_no_copy_of_an_output_longer(tmp_path: Path) -> None:
    """It made a file of so many bytes, or ended the batch where the file system has no such files."""
    for size, base, left in ((4, 1 << 61, 4), (4, 2, 2)):
        fd = os.open(tmp_path / "stdout", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.write(fd, b"x" * size)
        batch = Batch()
        output = sinks.Output(Sink(Streams(batch), False), 1, None)
        batch.close()
        output.copies, output._origin = {1: fd}, None
        assert output.go_on_at([0, base, 0]) is (base <= size) and not output.broken
        assert os.fstat(fd).st_size == os.lseek(fd, 0, os.SEEK_CUR) == left
        output.end_copies()


@pytest.mark.parametrize("form", ["--json", "r.jsonl", "r.csv"])
def test_a_value_costs_disk_and_no_memory(tmp_path: Path, form: str) -> None:
    """An output of a host that has no end filled the memory of the origin, 13 bytes for each."""
    how: dict[str, object] = {"json": True} if form == "--json" else {"results": str(tmp_path / form)}
    options = Options(**how, json_limit="12M")
    report = Report(options, Work(options, Template(["cat"]), ["cat"]))
    task = Task(Item(Row(("a",)), 1), Entry(1, ""))
    batch = Batch()
    task.output = sinks.Output(Sink(Streams(batch), False), 1, None)
    batch.close()
    for _ in range(256):
        task.output.take(1, memoryview(b'"\n' * (1 << 15)))
    made = report._instead(task)
    assert made
    tracemalloc.start()
    try:
        size = sum(map(len, made(task.output._spool)))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    task.output.drop()
    report.close()
    if form != "--json":
        size = (tmp_path / form).stat().st_size
    assert size > 12 << 20 and most < 4 << 20


@given(st.binary(max_size=40), st.lists(st.integers(1, 5), max_size=20))
def test_tags_do_not_depend_on_how_the_output_comes(data: bytes, sizes: list[int]) -> None:
    tags, at, text = Tags(b"t"), 0, b""
    for size in [*sizes, len(data)]:
        text += tags.put_before(data[at : at + size])
        at += size
    lines = data.split(b"\n")
    last = lines.pop()
    assert text == b"".join(b"t\t" + line + b"\n" for line in lines) + (b"t\t" + last if last else b"")


def test_directories_of_results_are_those_of_gnu_parallel_and_tell_items_apart() -> None:
    def of(*args: str, hash: str = "") -> list[str]:
        return names(Task(Item(Row(args), 7), Entry(7, hash)))

    assert of("a") == ["1", "a"] and of("a", "x y") == ["1", "a", "2", "x y"]
    assert of("b/c") == ["1", "b\\_c"] and of("a\\b") == ["1", "a\\\\b"]
    odd = ["", ".", "..", "\\", "\\.", "/", "\\_", "..."]
    assert len({of(arg)[1] for arg in odd}) == len(odd)
    assert not {of(arg)[1] for arg in odd} & {"", ".", ".."}
    assert of("x" * 251) == of() == ["seq", "7"]
    assert of("x" * 251, hash="h") == ["hash", "h"] and of(hash="h") == ["seq", "7-h"]
    assert of(*["x" * 240] * 20) == ["seq", "7"] and len(of(*["x" * 240] * 16)) == 32


@pytest.mark.parametrize("options", [[], ["--joblog", "log"]])
def test_equal_items_have_files_of_their_own_below_results(
    lab: Lab, tmp_path: Path, options: list[str]
) -> None:
    words = ["xargs", "-P3", "--results", "out", *options, "--", "sh", "-c", "echo $0", "{#}"]
    assert lab.run([*words, ":::", "x", "x", "y", "x"], cwd=tmp_path).returncode == 0
    found = [path.read_text() for path in sorted((tmp_path / "out").rglob("stdout"))]
    assert sorted(found) == ["1\n", "2\n", "3\n", "4\n"]
    assert (tmp_path / "out/1/x/stdout").read_text() == "1\n"


def test_a_reader_that_goes_after_it_got_all_is_found_in_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So an output that was passed on gets its line in the log, and a batch that is over ends well."""
    reader, writer = os.pipe()
    stdout = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    batch = Batch()
    try:
        sink = Sink(streams := Streams(batch), False)
        send = Output._send

        def read_and_go(output: Output, chunk: memoryview) -> int:
            sent = send(output, chunk)
            os.close(reader)
            return sent

        monkeypatch.setattr(Output, "_send", read_and_go)
        ended: list[str] = []
        sink.close(1, iter([(1, b"all")]), Spool(), sink.counted(lambda: ended.append("passed on")))
        sink.check()
        assert (ended, sink.kept, sink.idle) == (["passed on"], 0, True)
        batch.turn(PATIENCE)
        with pytest.raises(BrokenPipeError):
            sink.check()
        streams.close()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        batch.close()


@pytest.mark.parametrize("column", ["seq", "hash"])
@pytest.mark.parametrize("options", [[], ["--joblog", "log"]])
def test_a_column_with_the_name_of_other_places_hides_no_outputs(
    lab: Lab, tmp_path: Path, column: str, options: list[str]
) -> None:
    """As the third item had the place of the fourth."""
    words = ["xargs", "--header", ":", "--results", "out", *options, "--", "sh", "-c", "echo $0", "{#}"]
    items = ["1", "2", "2", "3", "x" * 251]
    assert lab.run([*words, ":::", column, *items], cwd=tmp_path).returncode == 0
    found = [path.read_text() for path in sorted((tmp_path / "out").rglob("stdout"))]
    assert sorted(found) == [f"{number}\n" for number in range(1, 6)]
    for number, item in ((1, "1"), (2, "2"), (4, "3")):  # as GNU parallel has them
        assert (tmp_path / f"out/{column}/{item}/stdout").read_text() == f"{number}\n"


def test_resuming_leaves_the_outputs_of_an_equal_item_that_is_done(lab: Lab, tmp_path: Path) -> None:
    """The first item is left out, as one of its kind is done; the second runs, in the place of the first."""
    script = 'echo "$0 $(cat run)"; test -e again || test "$0" = 2'
    words = ["xargs", "-P1", "--joblog", "log", "--results", "out", "--resume-failed", *SH, script, "{#}"]
    (tmp_path / "run").write_text("before")
    assert lab.run([*words, ":::", "x", "x"], cwd=tmp_path).returncode == 123
    (tmp_path / "run").write_text("now")
    (tmp_path / "again").touch()
    assert lab.run([*words, ":::", "x", "x"], cwd=tmp_path).returncode == 0
    assert (tmp_path / "out/1/x/stdout").read_text() == "2 now\n"
    assert [path.read_text() for path in (tmp_path / "out/seq").rglob("stdout")] == ["2 before\n"]


ITEMS = st.lists(st.tuples(st.sampled_from(["a", "b", "3-a", "x" * 251]), st.booleans()), max_size=6)


@given(st.lists(ITEMS, min_size=2, max_size=4), st.sampled_from(["1", "seq", "hash"]))
def test_no_two_items_share_a_place_whatever_was_done_in_runs_before(
    runs: list[list[tuple[str, bool]]], column: str
) -> None:
    """Each run has another list, and the outputs of items that are done stay where they are."""
    with TemporaryDirectory() as directory:
        options = Options(results=f"{directory}/out", header=":")
        done: set[str] = set()
        for items in runs:
            report = Report(options, Work(options, Template(["cat"]), ["cat"]))
            report.log = log = Joblog(f"{directory}/log", KEEP)
            for number, (arg, ends) in enumerate(items, 1):
                task = Task(Item(Row((arg,), {column: arg}), number), Entry(number, arg[:9]))
                report.name(task)
                if not log.before(task.entry.hash)[0]:
                    place = report._place(task)
                    assert place not in done
                    os.makedirs(place, exist_ok=True)
                    Path(place, "seq").write_text(f"{number}")
                    if ends:
                        done.add(place)
                    task.entry.kind = "done" if ends else "failed"
                    log.end(task.entry, 0.0)
            log.close()


@pytest.mark.parametrize("had", [b"passed on, not on record", b"passed on", b"passe", b""])
def test_by_lines_the_files_of_a_job_that_is_taken_over_go_on_behind_what_does_not_come_again(
    tmp_path: Path, had: bytes
) -> None:
    """One that lacks bytes that do not come again is not whole."""

    options = Options(line_buffer=True, results=str(tmp_path))
    report = Report(options, Work(options, Template(["cat"]), ["cat"]))
    task = Task(Item(Row(("a",)), 1), Entry(1, ""))
    batch = Batch()
    sink = Sink(Streams(batch), False)
    place = tmp_path / "1" / "a"
    place.mkdir(parents=True)
    (place / "stdout").write_bytes(had)
    adopted = SimpleNamespace(torn=False, began=1.0)
    task.adopted, task.job = adopted, SimpleNamespace(base=[0, 9, 0], seconds=1.0)  # type: ignore[assignment]
    task.output = report.open(task, sink, True)
    have = task.output.restore(True)
    task.started()
    task.output.copy(1, memoryview(b", and more"))
    task.output.end_copies()
    batch.close()
    assert have == [] and adopted.torn == (len(had) < 9)
    assert (place / "stdout").read_bytes() == had[:9] + b", and more"


# -- the log ---------------------------------------------------------------------------------------


def entry(hash: str, kind: str, command: str = "true", number: int = 1) -> Entry:
    made = Entry(number, hash)
    made.kind, made.command = kind, command
    return made


def written(path: Path, ends: list[tuple[str, str]], running: tuple[str, ...] = ()) -> None:
    log = Joblog(str(path))
    for number, (hash, kind) in enumerate(ends):
        made = entry(hash, kind, number=number)
        made.id = log.journal.id_of(hash, number, 1)
        log.journal.start(made.id, hash, 1)
        log.end(made, 0.0)
    for hash in running:
        log.journal.start(f"id-of-{hash}", hash, 1)
    log.close()


def test_a_line_has_the_nine_columns_of_gnu_parallel_and_five_more(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    log.end(entry("h", "never started", "a\tb\nc\\"), 0.0)
    log.close()
    head, line = path.read_text().splitlines()
    assert head.startswith("Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\t")
    columns = line.split("\t")
    assert len(columns) == 14 and columns[8] == "a\\tb\\nc\\\\" and columns[12:] == ["never-started", "h"]
    assert os.listdir(tmp_path) == ["log"]


def test_resuming_keeps_what_counts_and_forgets_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ends = [("a", "done"), ("b", "failed"), ("c", "lost"), ("d", "never-started"), ("a", "done")]
    written(path, ends)
    log = Joblog(str(path), KEEP)
    kinds = [log.before(hash)[0] for hash in "aaabcde"]
    assert kinds == ["done", "done", "", "", "lost", "", ""]
    assert ends_in(path) == [f"{hash} {kind}" for hash, kind in ends], (
        "they may not be run in this list, or not now"
    )
    log.end(entry("b", "done", number=7), 0.0)
    log.close()
    assert ends_in(path) == ["a done", "c lost", "d never-started", "a done", "b done"], "one line an item"


@pytest.mark.parametrize("killed", [False, True])
def test_of_two_lines_of_an_item_the_later_one_counts(tmp_path: Path, killed: bool) -> None:
    """A process that is killed before it removes the old one leaves both."""
    path = tmp_path / "log"
    written(path, [("a", "failed"), ("a", "failed"), ("b", "lost")])
    log = Joblog(str(path), KEEP - {"failed", "lost"})
    log.end(entry("a", "done", number=1), 0.0)
    if killed:
        log._close()
        assert len(ends_in(path)) == 4
        Joblog(str(path), KEEP).close()
    else:
        log.close()
    assert ends_in(path) == ["a failed", "b lost", "a done"]


def ends_in(path: Path) -> list[str]:
    lines = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return [f"{columns[-1]} {columns[-2]}" for columns in lines]


def test_jobs_that_were_sent_when_the_batch_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, [("a", "done"), ("b", "failed")], running=("c", "a"))
    for _ in range(2):  # resuming that is killed at once changes nothing
        log = Joblog(str(path), KEEP)
        log.close()
    log = Joblog(str(path), KEEP)
    found = [log.before(hash) for hash in "aabc"]
    assert found == [("done", ""), (RUNNING, "id-of-a"), ("", ""), (RUNNING, "id-of-c")]
    assert {id: (sent.hash, sent.attempt) for id, sent in log.journal.sent.items()} == {
        "id-of-a": ("a", 1),
        "id-of-c": ("c", 1),
    }
    for hash in "ac":
        made = entry(hash, "done")
        made.id = f"id-of-{hash}"
        log.end(made, 0.0)
    log.close()
    assert os.listdir(tmp_path) == ["log"]


def test_a_job_is_known_by_another_id_in_each_try_and_in_each_run(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    ids = [
        log.journal.id_of("h", 1, 1),
        log.journal.id_of("h", 2, 1),
        log.journal.id_of("h", 1, 2),
        log.journal.id_of("g", 1, 1),
    ]
    log.journal.start(ids[0], "h", 1)
    log.journal.start(ids[2], "h", 2, ids[0])
    log.close()
    again = Joblog(str(path), KEEP)
    assert again.journal.batch == log.journal.batch and list(again.journal.sent) == [ids[2]], (
        "the try before has its end"
    )
    ids.append(again.journal.id_of("h", 1, 1))
    assert len(set(ids)) == 5
    assert (
        again.journal.capability(ids[0]) == log.journal.capability(ids[0]) != log.journal.capability(ids[1])
    )
    assert (tmp_path / "log.started").stat().st_mode & 0o77 == 0, "it has the secret of the capabilities"
    again.close()


def test_it_is_known_when_a_job_was_sent_unless_by_another_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    log.journal.start("one", "h", 1)
    log.close()
    again = Joblog(str(path), KEEP)
    assert 0 <= boot_clock() - again.journal.sent["one"].when < 150
    again.close()
    monkeypatch.setattr(journal, "boot_id", lambda: "another")
    again = Joblog(str(path), KEEP)
    assert again.journal.sent["one"].when == float("-inf")
    again.close()


def test_a_place_of_several_lines_is_one_line_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    log.journal.sends_to("h1,\nh2")
    log.journal.start("one", "h", 1)
    log.close()
    again = Joblog(str(path), KEEP)
    again.close()
    assert [*again.journal.wheres] == ["h1, h2"] and [*again.journal.sent] == ["one"]


def test_a_log_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for mode in (0o600, 0o666):  # the second one is more than a usual umask leaves
        path.touch()
        path.chmod(mode)
        written(path, [("a", "done")])
        Joblog(str(path), KEEP).close()
        assert path.stat().st_mode & 0o777 == mode


def test_nothing_that_others_have_put_there_gets_the_journal(tmp_path: Path) -> None:
    for name in ("log", "log.started"):
        (tmp_path / f"{name}.quine-new").symlink_to("elsewhere")
        written(tmp_path / "log", [], running=("a",))
        assert not (tmp_path / "elsewhere").exists()
        (tmp_path / f"{name}.quine-new").touch()
        (tmp_path / f"{name}.quine-new").chmod(0o666)
        (tmp_path / "log.started").unlink()  # else another batch is not begun
        written(tmp_path / "log", [], running=("a",))
        assert (tmp_path / "log.started").stat().st_mode & 0o777 == 0o600
        (tmp_path / "log.started").unlink()
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("line", ["", "time x", "host", "host a b c", "id hash x -", "id hash 1", "odd"])
def test_a_journal_that_is_damaged_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    written(path, [], running=("a",))
    with (tmp_path / "log.started").open("a") as file:
        file.write(f"where a b\n{line}\n")
    damaged = (tmp_path / "log.started").read_text()
    number = damaged.count("\n")
    for _ in range(2):
        with pytest.raises(Misconfigured, match=f"line {number} of {path}.started is damaged"):
            Joblog(str(path), KEEP)
    assert (tmp_path / "log.started").read_text() == damaged


def test_the_journal_of_a_long_batch_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT", 10)
    path = tmp_path / "log"
    log = Joblog(str(path))
    log.journal.on_host("h1")
    for number in range(100):
        made = entry("h", "done", number=number)
        made.id = log.journal.id_of("h", number, 1)
        log.journal.start(made.id, "h", 1)
        if number != 3:
            log.end(made, 0.0)
        assert len((tmp_path / "log.started").read_text().splitlines()) < 30
    log.close()
    again = Joblog(str(path), KEEP)
    assert list(again.journal.sent) == [log.journal.id_of("h", 3, 1)] and list(again.journal.hosts) == ["h1"]
    again.close()


@pytest.mark.parametrize("torn", [b"2\t:\t1.0", b"\0\0\0", b"2\t:\n"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log"
    written(path, [("a", "done")])
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    log = Joblog(str(path), KEEP)
    assert log.before("a") == ("done", "")
    log.close()
    assert path.read_bytes() == whole


def test_a_log_belongs_to_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    with pytest.raises(Misconfigured, match="in use by another batch"):
        Joblog(str(path), KEEP)
    log.close()
    Joblog(str(path), KEEP).close()
    path.write_text("Seq\tHost\n1\t:\n")
    with pytest.raises(Misconfigured, match="not a log that can be resumed"):
        Joblog(str(path), KEEP)
    assert path.read_text() == "Seq\tHost\n1\t:\n"
    with pytest.raises(Misconfigured, match="not a regular file"):
        Joblog("/dev/null")
    assert not os.path.islink("/dev/null") and not os.path.isfile("/dev/null")


def test_a_log_behind_a_symbolic_link_leaves_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    Joblog(str(tmp_path / "link")).close()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text().startswith("Seq\t")


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_a_hash_tells_where_parts_end(one: list[bytes], other: list[bytes]) -> None:
    assert (hash_of(one) == hash_of(other)) == (one == other)


@pytest.mark.parametrize(
    ("at", "word"), [(2, "../../x"), (3, "²"), (3, "9" * 5000), (6, "a,b,c,1,x,node"), (7, "../x")]
)
def test_the_first_line_of_a_journal_is_taken_for_no_more_than_it_may_say(
    tmp_path: Path, at: int, word: str
) -> None:
    path = tmp_path / "log"
    written(path, [], running=("a",))
    head, _, rest = (tmp_path / "log.started").read_text().partition("\n")
    words = head.split(" ")
    words[at] = word
    (tmp_path / "log.started").write_text(" ".join(words) + "\n" + rest)
    with pytest.raises(Misconfigured, match=f"line 1 of {path}.started is damaged"):
        Joblog(str(path), KEEP)


def test_the_name_of_a_machine_in_a_journal_is_harmless_for_a_terminal() -> None:
    assert "\x1b" not in owner.parsed("boot,machine,space,1,2,evil\x1b[2J").node


def test_half_a_line_of_the_journal_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that comes after it, when there is room again, would make one line with it that nobody can read."""
    path = tmp_path / "log"
    log = Joblog(str(path))
    write_all = record_file.write_all

    def full(fd: int, data: bytes) -> None:
        write_all(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_file, "write_all", full)
    with pytest.raises(Failure):
        log.journal.start("one", "h", 1)
    monkeypatch.undo()
    log.journal.start("two", "h", 1)
    log.close()
    again = Joblog(str(path), KEEP)
    assert list(again.journal.sent) == ["two"]
    again.close()


def test_a_long_log_is_resumed_in_a_part_of_its_size(tmp_path: Path) -> None:
    """With a million lines it took 900 MB."""
    lines = [
        entry(f"{n:032x}", "failed" if n % 3 else "done", f"echo {n}", n).line() for n in range(1, 5_001)
    ]
    (tmp_path / "log").write_text(HEAD + "".join(lines))
    tracemalloc.start()
    try:
        log = Joblog(str(tmp_path / "log"), KEEP)
        log.end(entry(f"{1:032x}", "done"), 0.0)
        log.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / "log").stat().st_size
    assert size > 400_000 and peak < size / 2, peak
    assert len((tmp_path / "log").read_text().splitlines()) == 5_001

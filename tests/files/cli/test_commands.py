"""`quine fs`: each command on a tier of this machine, in pipes, with binary data and names that want to hurt."""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quine.files.api import Entry
from quine.files.cli import output
from quine.files.cli.main import perform
from quine.files.cli.options import COMMANDS, OPTIONS, parse, usage
from quine.files.stores.object import io
from quine.files.stores.object.client import Found
from tests.cli.screen import Screen
from tests.files.commands import HOSTILE, Shelf, fill, many, snapshot
from tests.lab.machine import readable
from tests.support.agents import QUINE, until

BINARY = bytes(range(256)) * 5000


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def tree(shelf: Shelf) -> Shelf:
    fill(shelf.tier, {b"a": b"1\n", b"d/b": b"22\n", b"d/e/c.txt": b"333\n", b"d/empty/": b"", b".dot": b""})
    return shelf


# -- the command line -----------------------------------------------------------------------------------


def test_help_of_all_and_of_each(shelf: Shelf) -> None:
    text = shelf.ok("--help").decode()
    assert all(text.count(f"\n  {name} ") == 1 for name in COMMANDS)
    for command in COMMANDS:
        text = shelf.ok(command, "--help").decode()
        assert text == usage(command) + "\n"
        assert text.startswith(f"usage: quine fs {command} ")
        assert all(len(line) <= 120 for line in text.splitlines()), "fits a terminal"


WRONG: list[tuple[list[str], str]] = [
    ([], "no command"),
    (["lss"], "did you mean quine fs ls?"),
    (["ls", "--jsn"], "did you mean --json?"),
    (["put", "-Z", "a", "b"], "no such option: -Z"),
    (["put", "a"], "where to?"),
    (["get"], "no path"),
    (["cat"], "no path"),
    (["put", "--mode", "9", "a", "b"], "--mode 9: should be octal"),
    (["put", "--mode="], "--mode is empty"),
    (["put", "--mode"], "--mode needs a value"),
    (["put", "-j", "0", "a", "b"], "--jobs 0: should be"),
    (["ls", "--json=1"], "--json takes no value"),
    (["find", "-type", "x"], "--type x: should be f or d"),
    (["sync", "a", "b"], "written tier:PATH"),
    (["sync", "tier:a", "tier:b"], "cp -r"),
    (["put", "-", "dir/"], "stdin has no name"),
    (["put", "-", "x", "y"], "stdin (-) goes alone"),
    (["ls", "--fs", "nothing:x"], "nothing here speaks nothing:"),
    (["ls", "--fs", "/a/b"], "has no scheme"),
    (["ls", "--fs", "bucket"], "hint: origin:bucket, file:///DIR"),
    (["ls", "--fs", "orgin:x"], "did you mean origin:?"),
    (["ls", "--fs", "origin://x"], "hint: origin:x, origin:/x"),
    (["ls", "--fs", "origin:/dev/null"], "needs a directory, and /dev/null is none"),
    (["ls", "--fs", "file:///dev/null"], "needs a directory, and /dev/null is none"),
    (["ls", "--fs", "file:x"], "an absolute path"),
    (["ls", "--fs", "s3:bucket"], "s3: is followed by //"),
    (["ls", "--fs", "sftp:host/x"], "sftp: is followed by //"),
    (["mount", "a", "b"], "mount takes one directory"),
    (["umount"], "no directory"),
]


def test_what_is_wrong_with_a_command_line_is_status_2(shelf: Shelf) -> None:
    for words, says in WRONG:
        assert says in shelf.fails(*words, status=2), words
    assert not shelf.tier.exists()


@pytest.mark.long
@pytest.mark.parametrize("url", ["orgin:x", "origin:/dev/null", "s3:bucket", "nothing://x", "bucket"])
def test_a_wrong_tier_is_said_by_who_starts_with_it(shelf: Shelf, url: str) -> None:
    """And not only by who comes to use it, hours later."""
    agent = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": "/bin/true", "QUINE_MODEL_ID": "none"}
    for words, more in ((["run", "--", "touch", "ran"], {}), (["a mission"], agent)):
        env = {**shelf.env, **more, "QUINE_FS": url}
        done = subprocess.run(
            [*QUINE, *words], cwd=shelf.directory, env=env, capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (2, b""), done
        assert done.stderr.startswith(b"quine: error: ") and b"quine: hint: " in done.stderr
    assert not list(shelf.directory.iterdir())


def test_the_home_directory_is_the_same_for_all(shelf: Shelf) -> None:
    shelf.ok("put", "--fs", "origin:~/shared", "-", "a", input=b"x")
    assert (shelf.directory / "shared" / "a").read_bytes() == b"x"


@pytest.mark.long
@pytest.mark.parametrize(
    "url", ["s3://bucket/prefix", "sftp://127.0.0.1:{port}/root", "ftp://127.0.0.1:{port}/root"]
)
def test_a_store_that_cannot_be_reached_is_status_69(shelf: Shelf, url: str) -> None:
    with socket.socket() as taken:  # nobody listens there, and nobody else will
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        shelf.env |= {
            "AWS_ACCESS_KEY_ID": "some-key", "AWS_SECRET_ACCESS_KEY": "some-secret", "AWS_REGION": "nowhere",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        done = shelf.apart("cat", "--fs", url.format(port=port), "a", "b")  # a driver's threads stay
    said = done.stderr.decode()
    assert done.returncode == 69, said
    assert said.count("quine: error: ") == 1, "once for all of them"
    assert "quine: hint: QUINE_FS names the store" in said


def test_options_stand_anywhere_and_end_at_two_dashes() -> None:
    assert parse("ls", ["a", "-lR", "b", "--", "-c"]) == ({"long": True, "recursive": True}, ["a", "b", "-c"])
    assert parse("put", ["-j4", "-", "x", "--mode=644"]) == ({"jobs": "4", "mode": "644"}, ["-", "x"])
    assert parse("find", ["-name", "x", "-print0"]) == ({"name": "x", "null": True}, [])


def test_every_option_belongs_to_commands_that_are_there() -> None:
    assert {name for row in OPTIONS for name in row[3].split()} == set(COMMANDS)
    for command in COMMANDS:
        shorts = [row[1] for row in OPTIONS if command in row[3].split() and row[1]]
        assert len(shorts) == len(set(shorts)), command


# -- looking --------------------------------------------------------------------------------------------


def test_a_tier_that_nobody_made_is_empty(shelf: Shelf) -> None:
    assert shelf.ok("ls") == b"" == shelf.ok("find")
    assert not shelf.tier.exists(), "looking changes nothing"


def test_who_finds_nothing_is_told_where_the_tier_is(shelf: Shelf) -> None:
    """By default it is in the directory where he is, which may be another one than when he put something."""
    error, hint = shelf.fails("get", "a", ".").splitlines()
    assert error.endswith(": no such file or directory") and hint.startswith("quine: hint: ")
    assert str(shelf.tier) in hint and "QUINE_FS" in hint
    shelf.ok("put", "-", "a", input=b"")
    assert "hint" not in shelf.fails("get", "b", ".")


def test_ls(tree: Shelf) -> None:
    assert tree.ok("ls") == b".dot\na\nd\n"
    assert tree.ok("ls", "a", "/d/") == b"a\n\n/d/:\nb\ne\nempty\n"
    assert tree.ok("ls", "-d", "d", "a") == b"d\na\n"
    assert tree.ok("ls", "-R", "d") == b"d:\nb\ne\nempty\n\nd/e:\nc.txt\n\nd/empty:\n"
    assert tree.ok("ls", "-0", "d") == b"b\0e\0empty\0"
    lines = tree.ok("ls", "-l", "d").decode().splitlines()
    assert [line[:10] for line in lines] == ["-rw-r--r--", "drwxr-xr-x", "drwxr-xr-x"]
    assert lines[0].split()[1] == "3" and lines[1].endswith(" e/")
    objects = [json.loads(line) for line in tree.ok("ls", "--json", "d").splitlines()]
    assert [one["path"] for one in objects] == ["d/b", "d/e", "d/empty"]
    assert objects[0] | {"mtime": 0, "version": 0} == {
        "path": "d/b", "type": "file", "size": 3, "mtime": 0, "mode": 0o644, "version": 0
    }  # fmt: skip


def test_what_is_not_there_is_said_and_the_rest_is_done(tree: Shelf) -> None:
    done = tree.run("cat", "none", "a", "d", "../x", "d/../a")
    assert (done.returncode, done.stdout) == (1, b"1\n")
    assert done.stderr.decode().splitlines() == [
        "quine: error: none: no such file or directory",
        "quine: error: d: is a directory",
        "quine: error: ../x: leads out of the files tier",
        "quine: error: d/../a: has .. in it, which the files tier takes in no path",
    ]


def test_find(tree: Shelf) -> None:
    assert tree.ok("find").splitlines() == [b".dot", b"a", b"d", b"d/b", b"d/e", b"d/e/c.txt", b"d/empty"]
    assert tree.ok("find", "d", "-type", "f", "-print0") == b"d/b\0d/e/c.txt\0"
    assert tree.ok("find", "/d", "-type", "d").splitlines() == [b"/d", b"/d/e", b"/d/empty"]
    assert tree.ok("find", "-name", "*.txt") == b"d/e/c.txt\n"
    assert tree.ok("find", "-maxdepth", "1", "-type", "d") == b"d\n"
    assert tree.ok("find", "d", "-maxdepth", "0") == b"d\n"
    assert tree.ok("find", "d/b", "--json").startswith(b'{"path":"d/b"')
    assert "none: no such file" in tree.fails("find", "none")


def test_stat_and_url(tree: Shelf) -> None:
    os.utime(tree.tier / "a", (1, 1.25))
    lines = tree.ok("stat", "a", "/").decode()
    assert (
        "path:    a\ntype:    file\nsize:    2\nmode:    0644\nmtime:   1970-01-01T00:00:01.250000Z\n"
        in lines
    )
    assert "\n\npath:    /\ntype:    directory\n" in lines
    assert json.loads(tree.ok("stat", "--json", "a"))["mtime"] == 1.25
    assert tree.ok("url", "d/b", "tier:a").decode() == f"file://{tree.tier}/d/b\nfile://{tree.tier}/a\n"


PATTERNS = [
    ("*", "a d"),
    ("*.txt", ""),
    ("d/?", "d/b d/e"),
    ("d/[!b]", "d/e"),
    ("**/*.txt", "d/e/c.txt"),
    ("d/**", "d/b d/e d/e/c.txt d/empty"),
    ("*/", "d"),
    (".*", ".dot"),
    ("d/*/c.*", "d/e/c.txt"),
    ("*/b", "d/b"),
    ("a/*", ""),
]


def test_patterns(tree: Shelf) -> None:
    for pattern, found in PATTERNS:
        if not found:
            error = tree.fails("url", pattern)
            assert f"{pattern}: nothing matches" in error and "-F" in error
            continue
        lines = tree.ok("url", pattern).decode().splitlines()
        assert [line.removeprefix(f"file://{tree.tier}/") for line in lines] == found.split(), pattern


def test_a_name_with_magic_in_it_is_meant_by_literal(shelf: Shelf) -> None:
    fill(shelf.tier, {b"x[1]": b"brackets", b"x1": b"one"})
    assert shelf.ok("cat", "x[1]") == b"one"
    assert shelf.ok("cat", "-F", "x[1]") == b"brackets"


# -- moving content -------------------------------------------------------------------------------------


def test_binary_goes_through_pipes_as_it_is(shelf: Shelf) -> None:
    (shelf.directory / "in").write_bytes(BINARY)
    done = shelf.sh(
        "cat in | fs put - d/x && fs cat d/x | fs put - y && fs get y - | cmp in - && fs cat y --offset 7 --length 9"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, BINARY[7:16], b"")
    assert (shelf.tier / "d/x").read_bytes() == BINARY


def test_put_goes_where_cp_would(shelf: Shelf) -> None:
    fill(shelf.directory, {b"f": b"f", b"g": b"g", b"s/t": b"t", b"s/none/": b""})
    shelf.ok("put", "f", "f2")
    shelf.ok("put", "f", "new/")
    shelf.ok("put", "f", "g", "new")
    shelf.ok("put", "g", "tier:/new/f")
    shelf.ok("put", "-r", "s", "tree")
    shelf.ok("put", "-r", "s/", "tree")
    shelf.ok("put", "-r", "s/.", "dot")
    assert sorted(snapshot(shelf.tier)) == [
        b"dot", b"dot/none", b"dot/t", b"f2", b"new", b"new/f", b"new/g",
        b"tree", b"tree/none", b"tree/s", b"tree/s/none", b"tree/s/t", b"tree/t",
    ]  # fmt: skip
    assert (shelf.tier / "new/f").read_bytes() == b"g"
    assert "s: is a directory; -r" in shelf.fails("put", "s", "x")
    assert "nothing: no such file" in shelf.fails("put", "nothing", "x")
    assert "new: is a directory" in shelf.fails("put", "-T", "f", "new")


def test_get_goes_where_cp_would(tree: Shelf) -> None:
    tree.ok("get", "a", "x")
    tree.ok("get", "-r", "d", "new")
    tree.ok("get", "-r", "d", "new")
    tree.ok("get", "d/b", "a", "new")
    out = tree.directory
    assert (out / "x").read_bytes() == b"1\n"
    assert sorted(snapshot(out / "new")) == [
        b"a", b"b", b"d", b"d/b", b"d/e", b"d/e/c.txt", b"d/empty", b"e", b"e/c.txt", b"empty",
    ]  # fmt: skip
    assert "d: is a directory; -r gets it" in tree.fails("get", "d", "y")
    assert "none: no such file" in tree.fails("get", "none", "y")
    assert "no/such: no such file" in tree.fails("get", "a", "no/such/place")
    tree.ok("get", "-r", "/", "all")
    assert snapshot(out / "all") == snapshot(tree.tier)


def test_modes_times_and_holes_are_kept(shelf: Shelf) -> None:
    source = shelf.directory / "s"
    fill(source, {b"run": b"#!/bin/sh\n", b"secret": b"x", b"empty": b""})
    (source / "run").chmod(0o755)
    (source / "secret").chmod(0o600)
    with open(source / "sparse", "wb") as file:
        for at in (0, 3 << 20, 9 << 20):
            file.seek(at)
            file.write(b"data")
        file.truncate(16 << 20)
    for number, path in enumerate(source.iterdir()):
        os.utime(path, (number, 1_700_000_000.123456 + number))
    shelf.ok("put", "-r", "s", "t")
    shelf.ok("get", "-r", "t", "back")
    assert snapshot(source) == snapshot(shelf.directory / "back") == snapshot(shelf.tier / "t")
    for path in (shelf.tier / "t/sparse", shelf.directory / "back/sparse"):
        assert path.stat().st_blocks * 512 < 4 << 20
    shelf.ok("put", "--mode", "640", "s/run", "other")
    assert (shelf.tier / "other").stat().st_mode & 0o777 == 0o640


@pytest.mark.long
def test_every_name_that_a_filesystem_allows(shelf: Shelf) -> None:
    files = {name: bytes([number]) for number, name in enumerate(HOSTILE)}
    files |= {b"deep/" + name: name for name in HOSTILE}
    fill(shelf.directory / "s", files)
    shelf.ok("put", "-r", "s", "t")
    assert snapshot(shelf.tier / "t") == snapshot(shelf.directory / "s")
    shelf.ok("get", "-r", "t", "back")
    assert snapshot(shelf.directory / "back") == snapshot(shelf.directory / "s")
    assert sorted(shelf.ok("ls", "-0", "t").split(b"\0")[:-1]) == sorted([*HOSTILE, b"deep"])
    assert shelf.ok("find", "t", "-type", "f", "-print0").count(b"\0") == len(files)
    for name in HOSTILE:
        assert shelf.ok("cat", "-F", "--", b"t/deep/" + name) == name
    listed = [json.loads(line) for line in shelf.ok("ls", "--json", "t/deep").splitlines()]
    assert {os.fsencode(one["path"]) for one in listed} == {b"t/deep/" + name for name in HOSTILE}
    (odd,) = [one for one in listed if "path_base64" in one]
    assert base64.b64decode(odd["path_base64"]) == b"t/deep/\xff\xfe"
    shelf.ok("rm", "-r", "t")
    assert shelf.ok("ls") == b""


def test_if_absent_is_for_locks_and_queues(shelf: Shelf) -> None:
    assert shelf.ok("put", "--if-absent", "-", "lock") == b""
    error = shelf.fails("put", "--if-absent", "-", "lock", input=b"second")
    assert error.startswith("quine: error: lock: file exists")
    assert (shelf.tier / "lock").read_bytes() == b""
    racers = [shelf.popen("put", "--if-absent", "-", "won", stdin=subprocess.PIPE) for _ in range(4)]
    for number, process in enumerate(racers):
        process.communicate(b"%d" % number, timeout=120)
    winners = [number for number, process in enumerate(racers) if process.returncode == 0]
    assert [process.returncode for process in racers].count(1) == 3
    assert (shelf.tier / "won").read_bytes() == b"%d" % winners[0]


def test_one_who_moves_wins(tree: Shelf) -> None:
    racers = [tree.popen("mv", "a", f"mine-{number}") for number in range(3)]
    ended = [process.communicate(timeout=120) and process.returncode for process in racers]
    assert sorted(ended) == [0, 1, 1]
    assert len(list(tree.tier.glob("mine-*"))) == 1


def test_no_clobber_leaves_what_is_there(tree: Shelf) -> None:
    (tree.directory / "a").write_bytes(b"mine")
    assert "a: file exists" in tree.fails("get", "-n", "a", "a")
    assert "a: file exists" in tree.fails("put", "-n", "a", "a")
    assert "d/b: file exists" in tree.fails("cp", "-n", "a", "d/b")
    assert "d/b: file exists" in tree.fails("mv", "-n", "a", "d/b")
    assert (tree.directory / "a").read_bytes() == b"mine"
    assert (tree.tier / "a").read_bytes() == b"1\n"
    assert (tree.tier / "d/b").read_bytes() == b"22\n"


def test_cp_and_mv_within_the_tier(tree: Shelf) -> None:
    tree.ok("cp", "a", "copy")
    tree.ok("cp", "a", "d")
    tree.ok("cp", "-r", "d", "d2")
    tree.ok("cp", "-r", "d", "d2")
    tree.ok("mv", "copy", "moved")
    tree.ok("mv", "moved", "d")
    tree.ok("rm", "-r", "d2/e")
    tree.ok("mv", "d/e", "a", "d2")
    assert sorted(snapshot(tree.tier)) == [
        b".dot", b"d", b"d/a", b"d/b", b"d/empty", b"d/moved", b"d2", b"d2/a", b"d2/b", b"d2/d", b"d2/d/a", b"d2/d/b",
        b"d2/d/e", b"d2/d/e/c.txt", b"d2/d/empty", b"d2/e", b"d2/e/c.txt", b"d2/empty",
    ]  # fmt: skip
    assert "d2/e: directory not empty" in tree.fails("mv", "d2/d/e", "d2")
    assert "d: is a directory; -r" in tree.fails("cp", "d", "x")
    assert "same file" in tree.fails("cp", "d/b", "d/b")
    assert "into itself" in tree.fails("cp", "-r", "d", "d/x")
    assert "d: cannot be moved into itself" in tree.fails("mv", "d", "d/x")
    assert "none: no such file" in tree.fails("mv", "none", "x")


def test_no_source_replaces_the_copy_of_another_one(shelf: Shelf) -> None:
    """As with cp and mv of GNU; mv would lose the only copy of a file."""
    fill(shelf.directory, {b"1/r": b"1", b"2/r": b"2", b"1/d/x": b"1", b"2/d/x": b"2", b"2/d/y": b"2"})
    shelf.ok("put", "-r", "1", "2", "in/")
    before = snapshot(shelf.tier / "in")
    refused = "2/r: will not overwrite just-created {}/r with it"
    tree, whole = {b"d", b"d/x"}, {b"r", b"d", b"d/x", b"d/y"}
    for place, words, said, got in (
        (shelf.tier, ["cp", "in/1/r", "in/2/r"], [refused], {b"r"}),
        (shelf.tier, ["cp", "-r", "in/*/d"], ["in/2/d/x: will not overwrite"], {*tree, b"d/y"}),
        (shelf.tier, ["put", "1/r", "2/r"], [refused], {b"r"}),
        (
            shelf.tier,
            ["put", "-r", "1/.", "2/.", "2/r"],
            ["2/./r: will", refused, "2/./d/x: will not"],
            whole,
        ),
        (shelf.directory, ["get", "in/*/r"], [refused], {b"r"}),
        (shelf.directory, ["get", "-r", "in/1/r", "in/*/d"], ["in/2/d/x: will not"], whole),
        (shelf.tier, ["cp", "in/1/r", "in/1/r", "in/[1]/r"], [], {b"r"}),
        (shelf.tier, ["mv", "none/r", "in/*/r"], ["none/r: no such file", refused], {b"r"}),
        (shelf.tier, ["mv", "in/*/d"], ["in/2/d: will not overwrite"], tree),
    ):
        to = "to" + "-".join(words).translate({ord(char): None for char in "/.*[]"})
        shelf.ok("mkdir", to) if place == shelf.tier else (place / to).mkdir()
        error = shelf.fails(*words, to) if said else shelf.ok(*words, to).decode()
        assert error.count("quine: error") == len(said), error
        assert all(one.format(to) in error for one in said), error
        assert set(snapshot(place / to)) == got
        assert all(path.read_bytes() == b"1" for path in (place / to).rglob("[rx]")), "the first one's"
    assert {name: before[name] for name in (b"2/r", b"2/d/x", b"2/d/y")}.items() <= snapshot(
        shelf.tier / "in"
    ).items()


def test_what_ends_with_a_slash_is_a_directory(tree: Shelf) -> None:
    for words in (
        ["cat", "a/"],
        ["ls", "/a//"],
        ["find", "a/."],
        ["rm", "-f", "a/"],
        ["cp", "a/", "x"],
        ["mv", "a/", "x"],
    ):
        written = next(word for word in words if "a" in word and "/" in word)
        assert f"{written}: not a directory" in tree.fails(*words)
    assert tree.ok("cat", "a") == b"1\n", "it stays"
    assert tree.ok("ls", "d/e/") == b"c.txt\n"
    assert tree.ok("rm", "-f", "none/") == b""
    assert tree.ok("url", "none/").endswith(b"/none\n")


def test_one_thing_is_not_copied_or_moved_to_itself(tree: Shelf) -> None:
    for words in (["mv", "a", "a"], ["mv", "a", "."], ["cp", "a", "./a"]):
        assert "a: source and target are the same" in tree.fails(*words)
    assert "d: cannot be moved into itself" in tree.fails("mv", "d", "d")
    assert "a: file exists" in tree.fails("mv", "-n", "a", "a")
    assert "none: no such file" in tree.fails("mv", "none", "none")
    assert "none: no such file" in tree.fails("cp", "none", "none")
    assert tree.ok("cat", "a", "d/b") == b"1\n22\n"


def test_rm_and_mkdir(tree: Shelf) -> None:
    error = tree.fails("rm", "d")
    assert "d: directory not empty; -r removes all" in error
    tree.ok("rm", "d/empty", "a")
    tree.ok("rm", "-f", "a", "none")
    tree.ok("rm", "-f")
    assert "none: no such file" in tree.fails("rm", "none")
    tree.ok("rm", "-r", "d", "tier:.dot")
    assert snapshot(tree.tier) == {}
    assert "/: " in tree.fails("rm", "-r", "/")
    tree.ok("mkdir", "x/y", "z")
    assert "z: file exists" in tree.fails("mkdir", "z")
    tree.ok("mkdir", "-p", "z")
    assert sorted(snapshot(tree.tier)) == [b"x", b"x/y", b"z"]


# -- what leads elsewhere -------------------------------------------------------------------------------


def test_links_and_special_files_are_refused_and_the_rest_is_put(shelf: Shelf) -> None:
    source = shelf.directory / "s"
    fill(source, {b"f": b"f", b"d/g": b"g"})
    (source / "link").symlink_to("f")
    (source / "out").symlink_to("/etc")
    (source / "d/up").symlink_to("..")
    os.mkfifo(source / "pipe")
    folder = os.open(source, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/sock")  # its own name may be longer than one of a socket
            done = shelf.run("put", "-r", "s", "t")
    finally:
        os.close(folder)
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert sorted(line.split(": ")[2] for line in lines) == ["s/d/up", "s/link", "s/out", "s/pipe", "s/sock"]
    assert sum("symbolic link; -L puts" in line for line in lines) == 3
    assert sorted(snapshot(shelf.tier)) == [b"t", b"t/d", b"t/d/g", b"t/f"]
    (source / "out").unlink()
    (source / "pipe").unlink()
    (source / "sock").unlink()
    assert "s/d/up: too many levels" in shelf.fails("put", "-rL", "s", "followed")
    assert sorted(snapshot(shelf.tier / "followed")) == [b"d", b"d/g", b"f", b"link"]
    shelf.ok("put", "s/link", "named")
    assert (shelf.tier / "named").read_bytes() == b"f"
    assert "neither a file nor a directory" in shelf.fails("put", "/dev/zero", "zero")


def test_links_of_the_tier_lead_nowhere(shelf: Shelf) -> None:
    fill(shelf.tier, {b"f": b"f"})
    fill(shelf.directory / "outside", {b"secret": b"s"})
    (shelf.tier / "door").symlink_to(shelf.directory / "outside")
    (shelf.tier / "leaf").symlink_to(shelf.directory / "outside/secret")
    assert shelf.ok("ls") == b"f\n"
    for words in (
        ["cat", "leaf"],
        ["cat", "door/secret"],
        ["put", "-", "door/new"],
        ["rm", "door/secret"],
        ["ls", "door"],
    ):
        shelf.fails(*words)
    assert snapshot(shelf.directory / "outside").keys() == {b"secret"}


def test_get_follows_no_link_below_its_target(tree: Shelf) -> None:
    out, outside = tree.directory / "out", tree.directory / "outside"
    out.mkdir()
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (out / "e").symlink_to(outside)
    (out / "b").symlink_to(outside / "kept")
    error = tree.fails("get", "-r", "d/.", "-T", "out")
    assert "out/e: a file or a link, not a directory" in error
    assert snapshot(outside).keys() == {b"kept"} and (outside / "kept").read_bytes() == b"kept"
    assert (out / "b").read_bytes() == b"22\n" and not (out / "b").is_symlink()
    os.mkfifo(out / "a")
    assert "is no file" in tree.fails("get", "a", "out")


# -- how it ends ----------------------------------------------------------------------------------------


def test_a_reader_that_goes_is_no_error(shelf: Shelf) -> None:
    fill(shelf.tier, {b"big": b"line\n" * 2_000_000})
    done = shelf.sh("fs cat big | head -1; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == (b"line\n141\n", b"")
    (shelf.tier / "many").mkdir()
    many(shelf.tier / "many", (b"%05d" % number * 40 for number in range(2000)))
    done = shelf.sh("fs ls many | head -c 5; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == (b"00000141\n", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_who_is_killed_while_he_puts_leaves_nothing(shelf: Shelf, number: signal.Signals) -> None:
    fill(shelf.tier, {b"x": b"old"})
    with shelf.popen("put", "-", "x", stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(BINARY)
        process.stdin.flush()
        until(lambda: any(path.stat().st_size for path in shelf.parts()) or process.poll() is not None)
        process.send_signal(number)
        assert process.wait(120) == -number
        assert process.stderr and process.stderr.read() == b""
    assert shelf.ok("cat", "x") == b"old"
    shelf.ok("put", "-", "y")
    assert shelf.parts() == []
    assert shelf.ok("ls") == b"x\ny\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_is_killed_while_he_gets_leaves_nothing(shelf: Shelf, number: signal.Signals) -> None:
    fill(shelf.tier, {b"many/0": BINARY})
    for one in range(1, 300):
        os.link(shelf.tier / "many/0", shelf.tier / f"many/{one}")
    out = shelf.directory / "out"
    shelf.env["TMPDIR"] = str(shelf.directory)
    for _ in range(20):
        with shelf.popen("get", "-rj", "2", "many", "out") as process:
            until(lambda one=process: len(list(out.glob("*"))) > 5 or one.poll() is not None)  # type: ignore[misc]
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        left = list(out.iterdir())
        if said or len(left) < 300:
            break
        shutil.rmtree(out)  # it was done before we had looked: once more
    ended = (process.returncode, said)
    assert ended == (-number, b""), [path.read_text() for path in shelf.directory.glob("quine-defect-*")]
    assert 5 < len(left) < 300
    assert all(path.read_bytes() == BINARY for path in left), "each one is whole"
    assert not [path for path in left if path.name.startswith(".")]


def test_a_full_disk_is_told_once(shelf: Shelf) -> None:
    fill(shelf.tier, {b"a": b"x" * 100})
    done = shelf.sh("fs cat a > /dev/full")
    assert done.returncode == 74
    assert done.stderr == b"quine: error: cannot write stdout: no space left on device\n"


def test_what_is_full_is_said_by_its_own_name(shelf: Shelf) -> None:
    fill(shelf.tier, {b"t/big": bytes(100_000)})
    (shelf.directory / "here").mkdir()
    shelf.env["PYTHONDONTWRITEBYTECODE"] = "1"  # Python keeps as much of a module as there was room for
    done = shelf.sh("ulimit -f 8; fs get t/big here; fs get -r t here/; fs put data/fs/t/big t/other")
    assert done.stderr.decode().splitlines() == [
        "quine: error: here/big: file too large",
        "quine: error: here/t/big: file too large",
        "quine: error: t/other: file too large",
    ]
    assert not shelf.parts()


def test_a_directory_that_is_not_there_is_said_once(tree: Shelf) -> None:
    for words in (["a", "d/b"], ["-r", "a", "d"], ["d/*"]):
        assert tree.fails("get", *words, "none") == "quine: error: none: no such file or directory\n"


def test_many_errors_are_counted(shelf: Shelf) -> None:
    (shelf.directory / "s").mkdir()
    for number in range(30):
        (shelf.directory / "s" / str(number)).symlink_to("nowhere")
    error = shelf.fails("put", "-r", "s", "t")
    assert len(error.splitlines()) == 11 and error.endswith("20 more went wrong\n")


def test_thousands_of_names(shelf: Shelf) -> None:
    """Several buffers of output."""
    folder = shelf.tier / "many"
    folder.mkdir(parents=True)
    names = [b"%05d" % number * 6 for number in range(4000)]
    many(folder, names)
    assert shelf.ok("ls", "many").splitlines() == names
    assert shelf.ok("ls", "-l", "many").count(b"\n") == 4000


@pytest.mark.long
def test_a_tree_may_be_deep(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """No recursion and no descriptor for each level: a path may have two thousand of them."""
    top = shelf.directory / "t"
    (top / "/".join(["d"] * 300)).mkdir(parents=True)
    (top / "/".join(["d"] * 300) / "f").write_text("deep")
    (shelf.directory / "nothing").mkdir()
    monkeypatch.chdir(shelf.directory)
    monkeypatch.setenv("QUINE_DATA_DIR", shelf.env["QUINE_DATA_DIR"])
    limits, most = resource.getrlimit(resource.RLIMIT_NOFILE), sys.getrecursionlimit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, limits[1]))
    sys.setrecursionlimit(250)
    try:
        for line in (
            "put -r t t",
            "get -r t back",
            "find t --max-depth 299",
            "cat t/**/f",
            "sync back tier:t2",
            "sync tier:t2 back2",
            "put -r nothing .",
            "sync --delete --force tier:nothing back2",
            "rm -r t2",
        ):
            assert perform(line.split()) == 0, line
    finally:
        sys.setrecursionlimit(most)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert snapshot(shelf.directory / "back") == snapshot(top) == snapshot(shelf.tier / "t")
    assert os.listdir("back2") == [] and not (shelf.tier / "t2").exists()


# -- a terminal -----------------------------------------------------------------------------------------


def drain(screen: Screen) -> None:
    while readable(screen.master, 0):
        screen.seen += os.read(screen.master, 65536)


def test_a_terminal_sees_names_that_do_it_no_harm_and_how_far_it_is(shelf: Shelf) -> None:
    fill(shelf.tier, {b"\x1b[31mred\n": b"", b"\xff": b"", b"dir/": b""})
    with Screen() as screen:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.slave)
        with shelf.popen("ls", **streams) as process:
            assert process.wait(120) == 0
        screen.wait(rb"\x1b[31mred\n" + b"\r\n" + b"dir/\r\n" + rb"\xff" + b"\r\n")
        with shelf.popen("put", "-", "x", **(streams | {"stdin": subprocess.PIPE})) as process:
            assert process.stdin

            def write() -> bool:
                process.stdin.write(b"x" * 100_000)  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                drain(screen)
                return b"B/s" in screen.seen

            until(write)
            process.stdin.close()
            assert process.wait(120) == 0
        screen.wait(b"\r\x1b[K")
    assert shelf.run("put", "-q", "-", "x", input=b"x").stderr == b""


def test_a_full_pipe_that_somebody_made_non_blocking_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    out, data = output.Output(), os.urandom(1 << 20)
    out.fd = writing
    got: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as pipe:
            got.append(pipe.read())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        out.write(data)
    finally:
        os.close(writing)
        reader.join()
    assert got == [data]


def test_sizes_for_people() -> None:
    sizes = [
        output.human_size(size) for size in (0, 999, 1000, 4096, 1536 * 1024, 999 * 1024, 5 << 30, 3 << 60)
    ]
    assert sizes == ["0", "999", "1.0K", "4.0K", "1.5M", "999K", "5.0G", "3.0E"]


@pytest.mark.parametrize("mtime", [1e18, -1e18, float("nan"), float("inf")])
def test_a_time_that_no_calendar_has(mtime: float) -> None:
    assert output.long(Entry("a", "file", mtime=mtime), False).split() == ["-rw-r--r--", "0", "-"]
    assert "mtime:   -\n" in output.details(Entry("a", "file", mtime=mtime))
    known = Found("a", 1, "x", 5.0, {"mtime": repr(mtime)})
    assert io.mtime_of(known) == 5.0
    assert io.mtime_of(known._replace(meta={"mtime": "7.5"})) == 7.5


def test_a_directory_of_a_store_that_keeps_no_times() -> None:
    line = output.long(Entry("d", "directory", mode=0o755), False)
    assert line.split() == ["drwxr-xr-x", "0", "-"]
    assert len(line) == len(output.long(Entry("d", "directory", mtime=1e9), False))


def test_names_for_people_and_programs() -> None:
    assert output.escaped("a\nb\udcff\x7fé") == "a\\nb\\xff\\x7fé"
    assert output.path_bytes("a\nb\udcff", False) == b"a\nb\xff"
    line = output.as_json(Entry("\udcff", "file"))
    assert json.loads(line)["path"] == "\udcff" and b"\\udcff" in line


def test_options_before_the_command_have_a_hint(shelf: Shelf) -> None:
    done = shelf.sh("fs --fs memory://x ls")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        "quine: error: --fs stands before a command",
        "quine: hint: options follow it: quine fs ls -l",
    ]

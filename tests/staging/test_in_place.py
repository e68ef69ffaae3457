"""Results that replace files of their own job: a job that is tried again has to find what it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from quine.staging import spec
from quine.staging.caller_side import Staging
from tests.lab import Lab
from tests.staging.wired import cache, here
from tests.support.detached import detach

__all__ = ["cache", "here"]


@pytest.mark.parametrize("item", ["d", "d:1", "d?", "d*", "[d]", "d[?]"])
@pytest.mark.parametrize(
    ("returns", "is_in_place"),
    [
        (["{}/state"], True),
        (["{}"], True),
        (["*/state"], True),
        (["**/state"], True),
        (["."], True),
        (["{}*/s*"], True),
        (["none", "?*"], True),
        (["{}.out"], False),
        (["e/state", "{}2/x", "*.out/x"], False),
    ],
)
def test_whether_results_may_replace_the_files_of_their_job(
    here: Path, item: str, returns: list[str], is_in_place: bool
) -> None:
    (here / item).mkdir()
    (here / item / "state").touch()
    name = spec.literal(item)
    for words in ([name], [f"{name}/state"], [f"{here}/{name}"]):
        staging = Staging(words, [pattern.replace("{}", name) for pattern in returns], str(here))
        assert staging.is_in_place is is_in_place, words


def test_the_target_of_a_link_that_is_named_is_a_file_of_the_job(here: Path) -> None:
    (here / "target").mkdir()
    (here / "link").symlink_to("target")
    assert Staging(["link"], ["target"], str(here)).is_in_place
    assert Staging(["link"], ["link"], str(here)).is_in_place
    assert Staging(["link"], ["*/x"], str(here)).is_in_place
    assert not Staging(["link"], ["other"], str(here)).is_in_place


@pytest.mark.parametrize("pattern", ["{}/state", "*/state"])
def test_a_try_after_one_that_failed_finds_the_files_that_the_item_had(
    lab: Lab, tmp_path: Path, pattern: str
) -> None:
    """It worked on the results of the failed try, was done with those, and the batch had the status 0."""
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    for name in ("d:1", "d?"):
        (here / name).mkdir(parents=True)
        (here / name / "state").write_text("0")
    script = 'n=$(cat "$0/state"); echo $((n + 1)) >"$0/state"; [ "$n" -ge 1 ]'
    words = ["xargs", "-P1", "--retries", "2", "--cwd", there, "--files", "{}", "--returns", pattern]
    done = lab.run([*words, "--", "sh", "-c", script, "{}", ":::", "d:1", "d?"], cwd=here)
    assert done.returncode == 123
    assert [(here / name / "state").read_text() for name in ("d:1", "d?")] == ["1\n", "1\n"]


def test_a_result_that_is_missing_is_named_where_nothing_moves(lab: Lab, tmp_path: Path) -> None:
    """By a batch with --cleanup, which removes nothing here, and by the wait for a job of this directory."""
    (tmp_path / "a").touch()
    words = ["xargs", "-P1", "--cleanup", "--files", "{}", "--returns", "{}.out", "--", "sh", "-c"]
    done = lab.run([*words, "[ $0 = b ] || touch $0.out", "{}", ":::", "a"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.out"}
    (tmp_path / "b").touch()
    done = lab.run([*words, "[ $0 = b ] || touch $0.out", "{}", ":::", "a", "b"], cwd=tmp_path)
    assert done.returncode == 123 and b"--returns b.out: nothing there to be brought back" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.out", "b"}
    for script, code in (("touch made", 1), ("exit 3", 3)):
        job = detach(lab, "--", "sh", "-c", script, cwd=tmp_path)
        done = lab.run(["wait", "--returns", "nope", job], cwd=tmp_path)
        assert done.returncode == code
        assert b"--returns nope: nothing there to be brought back" in done.stderr
        done = lab.run(["wait", "--returns", "a", job], cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code if code == 3 else 0, b"")

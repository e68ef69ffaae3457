"""The documents as a whole: links lead somewhere, console blocks are run, every page is in the site."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tests.docs import console
from tests.docs.test_docs import PAGES, ROOT, RUN, name_of

pytestmark = pytest.mark.law

LINK = re.compile(r"(?<!!)!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_blocks_that_are_not_run_are_few() -> None:
    """A block of text shows a command only where it needs a model, a cluster or the reader's own machine."""
    shown = {
        name_of(path): len(re.findall(r"^```text\n\$ ", path.read_text(), re.MULTILINE))
        for path in PAGES
        if path.name != "command-line.md"
    }
    run = sum(len(list(console.commands(path.read_text()))) for path in RUN)
    assert run > 100
    assert sum(shown.values()) < run / 4, shown
    # no other spelling of a console block gets around its being run
    for path in PAGES:
        assert not re.search(
            r"^ *```(?:shell|bash|sh-session|shell-session|terminal)\b", path.read_text(), re.M
        ), path


def test_every_preparation_belongs_to_a_page() -> None:
    names = {console.name_of(path) for path in RUN}
    assert {path.stem for path in (ROOT / "tests" / "docs").glob("*.sh")} <= names


def test_names_of_pages_that_run_are_their_own() -> None:
    names = [console.name_of(path) for path in RUN]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), target
        if anchor:
            assert anchor in _anchors(to), target


def _anchors(path: Path) -> set[str]:
    """Those that both the site and a viewer of the repository make of the headings."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        given = re.search(r"\{ *#([\w-]+) *\}$", title)
        plain = re.sub(r"[^\w\- ]", "", title.partition("{")[0].strip().lower())
        found.add(given[1] if given else plain.replace(" ", "-"))
    return found


def test_the_picture_shows_what_its_script_runs() -> None:
    from scripts.picture import COMMANDS

    shown = unescape((ROOT / "docs" / "demo.svg").read_text())
    assert [command for command in COMMANDS if command not in shown] == []
    assert "docs/demo.svg" in (ROOT / "README.md").read_text()


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

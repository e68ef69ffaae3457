"""The documents: every console block prints what its page shows, and every link leads somewhere.

`python -m tests.docs.console --update PAGE` writes into a page what its commands print now.
"""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from tests.docs import console
from tests.lab import Lab
from tests.mount.mounting import needs_fuse

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
RUN = [  # tests/system/test_examples.py runs those of the examples
    path for path in PAGES if "examples" not in path.parts and any(console.commands(path.read_text()))
]
SLOW = {"tutorial.md", "batch.md", "files.md", "delegation.md", "pipelines.md"}  # seconds each
MOUNTS = {"files.md"}
NEEDS = {"ssh-programs.md": ("rsync", "parallel", "sftp")}
LINK = re.compile(r"(?<!!)!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _marked(path: Path) -> object:
    marks: list[pytest.MarkDecorator] = [pytest.mark.long] if path.name in SLOW else []
    marks += [needs_fuse] if path.name in MOUNTS else []
    if missing := [program for program in NEEDS.get(path.name, ()) if not shutil.which(program)]:
        marks.append(pytest.mark.skip(reason=f"no {', '.join(missing)}"))
    return pytest.param(path, marks=marks, id=_name(path))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [_marked(path) for path in RUN])
def test_the_page_shows_what_its_commands_print(lab: Lab, path: Path) -> None:
    assert "\n".join(console.run(lab, path)) == ""


ID, OTHER = "01a20150-5255-7bab-bc94-25f5d212af43", "01a2ffff-0000-7bab-8000-25f5d212af43"


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("7", "7", True),
        ("7", "8", False),
        ("7", "7\n8", False),
        ("7\n8", "7", False),
        ("a  b", "a b", True),
        ("0.15 s", "12.3 s", True),
        ("ok: …", "ok: all of it", True),
        ("first\n…\nlast", "first\na\nb\nlast", True),
        ("first\n…\nlast", "first\na\nb", False),
        (ID, OTHER, True),
        (f"{ID}\n{ID}", f"{OTHER}\n{OTHER}", True),
        (f"{ID}\n{ID}", f"{OTHER}\n{ID}", False),
        (ID, "no such job", False),
        ("NODE  PID  EXIT\nh1  21  0", "NODE  PID  EXIT\nh1  9999  0", True),
        ("NODE  PID  EXIT\nh1  21  0", "NODE  PID  EXIT\nh1  21  1", False),
    ],
)
def test_the_comparison_takes_placeholders_and_nothing_else(page: str, printed: str, same: bool) -> None:
    assert console.differs(page.split("\n"), f"{printed}\n", console.Ids()) is not same


def test_a_later_command_has_the_id_of_this_run() -> None:
    ids = console.Ids()
    assert not console.differs([ID], f"{OTHER}\n", ids)
    assert ids.put_into(f"quine wait {ID[:13]}; cksum 0123abcd") == f"quine wait {OTHER}; cksum 0123abcd"


def test_blocks_that_are_not_run_are_few() -> None:
    """A block of text shows a command only where it needs a model, a cluster or the reader's own machine."""
    shown = {
        _name(path): len(re.findall(r"^```text\n\$ ", path.read_text(), re.MULTILINE))
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


@pytest.mark.parametrize("path", PAGES, ids=_name)
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

"""The documents: every console block prints what its page shows.

`python -m tests.docs.console --update PAGE` writes into a page what its commands print now.
"""

from __future__ import annotations

import shutil
import subprocess
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


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _marked(path: Path) -> object:
    marks: list[pytest.MarkDecorator] = [pytest.mark.long] if path.name in SLOW else []
    marks += [needs_fuse] if path.name in MOUNTS else []
    if missing := [program for program in NEEDS.get(path.name, ()) if not shutil.which(program)]:
        marks.append(pytest.mark.skip(reason=f"no {', '.join(missing)}"))
    return pytest.param(path, marks=marks, id=name_of(path))


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


@pytest.mark.skipif(not shutil.which("node"), reason="no node, which runs what the site runs")
def test_the_copy_button_takes_commands_alone() -> None:
    script = (ROOT / "docs/assets/copy.js").read_text()
    shown = "$ cat >a <<'EOF'\n$ x\nEOF\n$ echo a \\\n    b\na b\n$ quine ls\nout\n"
    program = f'{script}\nprocess.stdout.write(commands(require("fs").readFileSync(0, "utf8")))'
    done = subprocess.run(["node", "-e", program], input=shown, text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout == "cat >a <<'EOF'\n$ x\nEOF\necho a \\\n    b\nquine ls"

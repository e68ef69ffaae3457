"""Host code runs on Python 3.9: its grammar, and no name or argument of the standard library that came later."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.build import OLDEST_PYTHON
from transport import this_build

# Files that only an origin loads, and what they use that a host has not. Drivers of stores are an origin's, too, or
# come with the packages of an installation.
OF_ORIGINS = {
    "deploy/inventory.py": {"tomllib"},
    "quine/budget/prices.py": {"tomllib"},
    "quine/cli/app.py": {"typer"},
    "quine/cli/visits.py": {"asyncio TaskGroup"},
    "quine/providers/connecting.py": {"httpx"},
    "quine/providers/http.py": {"httpx"},
    "quine/providers/dialects/dialect.py": {"pydantic"},
    "transport/carrier/ssh/cipher.py": {"asyncssh"},
    "transport/carrier/ssh/connect.py": {"asyncssh"},
    "transport/carrier/ssh/contact.py": {"asyncssh"},
    "transport/carrier/ssh/keys.py": {"asyncssh"},
    "transport/carrier/ssh/private.py": {"asyncssh"},
    "transport/carrier/ssh/settings.py": {"asyncssh"},
}
OPTIONAL = {"_json"}  # looked for, and done without
WITHOUT = {
    "quine/broker/memory.py _ctypes dlsym",
    "transport/lean.py _ctypes dlsym",
    "transport/lean.py _collections _tuplegetter",
    "transport/lean.py _sha2 sha256",
}
DRIVERS = {"aiobotocore", "azure", "fsspec", "gcsfs", "s3fs"}


@pytest.mark.law
@pytest.mark.parametrize("package", this_build.PACKAGES)
def test_each_file_has_the_grammar_of_the_oldest_python(package: str) -> None:
    for path in Path(this_build.ROOT, package).rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=OLDEST_PYTHON)


@pytest.mark.law
@pytest.mark.skipif(not shutil.which("pypy3"), reason="no pypy3 here")
def test_no_file_of_a_host_uses_what_the_oldest_python_lacks() -> None:
    program = str(Path(__file__).with_name("names_used.py"))
    done = subprocess.run(
        ["pypy3", "-S", program, this_build.ROOT], capture_output=True, text=True, check=True
    )
    unexpected = []
    for line in done.stdout.splitlines():
        file, module, *name = line.split()
        top = module.split(".")[0]
        if {top, f"{module} {name[0]}" if name else top} & OF_ORIGINS.get(file, set()):
            continue
        if top not in DRIVERS | OPTIONAL and line not in WITHOUT:
            unexpected.append(line)
    assert not unexpected


def test_the_check_finds_what_is_newer(tmp_path: Path) -> None:
    for package in this_build.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "quine" / "a.py").write_text(
        "import os\nfrom os import path, none_such\nimport no.such\nos.getpid()\nos.not_yet()\n"
        "from shutil import rmtree\nimport glob\nrmtree(1, 2, not_yet=3)\nglob.glob(*[], nor_this=1)\nglob.glob()\n"
        "rmtree(1, onerror=2)\nglob.glob(**{})\n"
    )
    program = str(Path(__file__).with_name("names_used.py"))
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "quine/a.py glob glob()", "quine/a.py no.such ", "quine/a.py os none_such", "quine/a.py os not_yet",
        "quine/a.py shutil rmtree()",
    ]  # fmt: skip

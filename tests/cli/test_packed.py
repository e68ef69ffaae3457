"""The modules of a client in one file: an installation loads them from it, or as ever wherever the file is in doubt."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from quine import packed
from tests.lab import Lab
from tests.support.installation import install


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installation") / "venv")


def files(script: Path) -> list[Path]:
    return list(script.parents[1].glob("lib/*/site-packages/quine/__pycache__/modules-*"))


@pytest.fixture
def without_file(lab: Lab, script: Path) -> Iterator[None]:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)  # a node that has the library for ssh
    for path in files(script):
        path.unlink()
    yield
    for path in files(script):
        path.unlink()


def run(lab: Lab, script: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`quine run` of the installation, as a child that says which modules were found one by one."""
    return subprocess.run(
        [script, "run", "--on", "h1", "--", "sh", "-c", "echo out; exit 7"],
        env={**lab.env, "PYTHONVERBOSE": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def searched(done: subprocess.CompletedProcess[bytes]) -> set[str]:
    """The modules of ours whose code was read from a file of their own."""
    assert (done.returncode, done.stdout) == (7, b"out\n"), done
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("# code object from")]
    found = {line.rpartition("site-packages/")[2] for line in lines if "site-packages/" in line}
    return {name.replace("__pycache__/", "").partition(".")[0] for name in found if ".pyc" in name}


FIRST = {"quine/__init__", "transport/__init__", "quine/packed"}  # they find the others


def test_a_client_loads_its_modules_from_the_file_that_the_first_one_wrote(
    lab: Lab, script: Path, without_file: None
) -> None:
    assert searched(run(lab, script)) > {*FIRST, "quine/__main__", "transport/client/proxy"}
    (path,) = files(script)
    assert path.stat().st_mode & 0o777 == 0o644
    assert searched(run(lab, script)) == FIRST


def test_a_file_that_is_not_what_it_should_be_is_not_used(lab: Lab, script: Path, without_file: None) -> None:
    run(lab, script)
    (path,) = files(script)
    whole = path.read_bytes()
    bit = bytearray(whole)
    bit[-1000] ^= 1
    other = whole.replace(packed.external.MAGIC_NUMBER, b"\0\0\r\n")
    for damaged in (whole[: len(whole) // 2], b"", other, bit):
        path.write_bytes(damaged)
        assert searched(run(lab, script)) > FIRST, damaged[:80]
        assert path.read_bytes() == whole  # written anew
    assert searched(run(lab, script)) == FIRST


def test_a_python_that_keeps_no_such_code_neither_writes_nor_reads_it(
    lab: Lab, script: Path, without_file: None
) -> None:
    for variable in ("PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE"):
        run(lab, script, **{variable: "1"})
        assert not files(script), variable


def test_an_installation_that_is_not_to_be_written_gets_no_file(
    lab: Lab, script: Path, without_file: None, tmp_path: Path
) -> None:
    """It looks in no other place: another user, or a command of an agent, may be able to write there."""
    for _ in range(2):
        assert searched(run(lab, script, PYTHONPYCACHEPREFIX="/proc/missing", TMPDIR=str(tmp_path))) == set()
    assert not files(script) and not list(Path(lab.env["XDG_RUNTIME_DIR"]).rglob("modules-*"))


def test_the_file_of_an_earlier_build_goes(lab: Lab, script: Path, without_file: None) -> None:
    run(lab, script)
    (path,) = files(script)
    path.rename(earlier := path.with_name("modules-of-an-earlier-build"))
    run(lab, script)
    assert files(script) == [path] and not earlier.exists()


def test_a_checkout_has_no_such_file(lab: Lab) -> None:
    assert lab.run(["run", "--on", "h1", "--", "true"]).returncode == 0
    assert not list(Path(packed.ROOT, "quine", "__pycache__").glob("modules-*"))


def test_a_source_that_has_changed_since_the_start_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade under way: the code would be that of another build than the stamp."""
    assert packed._code(packed)[1]
    monkeypatch.setattr(packed, "_began", 0)
    with pytest.raises(ValueError, match="new"):
        packed._code(packed)


def test_a_module_of_the_file_is_the_same_as_of_its_source() -> None:
    name = "quine.base.backoff"
    package, pyc = packed._code(__import__("quine.base.backoff").base.backoff)
    (found,) = [packed.Pack(packed.parsed(packed.packed({name: (package, pyc)}))).find_spec(name)]
    assert found and found.loader and found.origin == f"{packed.ROOT}/quine/base/backoff.py"
    module = ModuleType(name)
    vars(module).update(__spec__=found, __loader__=found.loader)
    found.loader.exec_module(module)
    (function,) = [value for value in vars(module).values() if inspect.isfunction(value)][:1]
    assert inspect.getsource(function) in Path(found.origin).read_text()
    assert function.__code__.co_filename == found.origin


def test_a_package_of_the_file_finds_its_other_modules() -> None:
    spec = packed.Pack(packed.parsed(packed.packed({"quine.base": packed._code(sys.modules["quine.base"])})))
    found = spec.find_spec("quine.base")
    assert found and found.submodule_search_locations == [f"{packed.ROOT}/quine/base"]
    assert spec.find_spec("quine.base.errors") is None

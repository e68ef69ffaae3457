"""Layers: packages with compiled parts, for hosts that open a store themselves."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from pip._vendor.packaging import markers as oracle_markers
from pip._vendor.packaging import tags as oracle_tags
from pip._vendor.packaging.specifiers import SpecifierSet

from deploy import wheels
from deploy.platforms import Platform, Requirement
from deploy.there import installer
from deploy.there import layers as layer_host
from tests.files.seaweed import BUCKET, Weed
from tests.lab import Lab
from tests.lab.host import Host

PYTHON = "/usr/bin/python3"
HERE = Platform(**layer_host.platform())
MUSL = Platform("cpython", "3.11.2", "cp311", "musl", "1.2", "riscv64")
SFTP = {"QUINE_FS": "sftp://me@store.example/x"}  # its layer is the smallest; nothing here opens it
CUT = 2_500_000  # bytes that a connection lives for
TRUE = ["run", "--on", "direct", "--", "true"]


@pytest.fixture
def direct(odd_host: Callable[..., Host], lab: Lab) -> Iterator[Callable[..., Host]]:
    """A host that opens the store itself, with a Python without packages, behind its proxy."""
    if f"python{HERE.minor}" not in os.path.realpath(PYTHON):
        pytest.skip(
            f"{PYTHON} is not Python {HERE.minor}, for which the packages that are installed here fit"
        )

    def make(scripts: Mapping[str, str] | None = None, **keys: object) -> Host:
        inventory = {"python": PYTHON, "fs": "direct", **keys}
        host = odd_host("direct", scripts=scripts or {}, inventory=inventory)
        lab.alias("direct", "direct", host.proxy)
        return host

    yield make
    lab.stop_nodes()


def layers(host: Host) -> list[str]:
    return sorted(path.name for path in (host.home / ".cache/quine").glob("*layer-*"))


# -- on a host ---------------------------------------------------------------------------------------


def test_a_host_with_access_of_its_own_gets_the_layer_once(
    direct: Callable[..., Host], lab: Lab, weed: Weed
) -> None:
    host = direct(env=weed.environ)
    env = {"QUINE_FS": f"s3://{BUCKET}/layered"}
    words = ["run", "--on", "direct", "--", "sh", "-c"]
    # A host that needs no layer gets none.
    lab.run([*words, "echo ours | quine fs put - a"], check=True)
    assert layers(host) == []
    before = host.proxy.carried()
    told = lab.run([*words, "echo over there | quine fs put - a; quine fs url a"], env=env, check=True)
    assert told.stdout == f"s3://{BUCKET}/layered/a\n".encode()
    (name,) = layers(host)
    first = host.proxy.carried() - before
    assert list((host.home / ".cache/quine" / name).glob("aiohttp/*.so")), "with compiled parts"
    # The next command sends nothing, by the same link and by another one.
    for stop in (False, True):
        if stop:
            lab.stop_nodes()
        before = host.proxy.carried()
        script = 'import fsspec; print(fsspec.open("quine://a", "rt").open().read(), end="")'
        told = lab.run([*words, f"quine fs cat a; quine fs python -c '{script}'"], env=env, check=True)
        assert told.stdout == b"over there\nover there\n"
        assert host.proxy.carried() - before < 100_000 < 1_000_000 < first
        assert layers(host) == [name]
    # A host that relays has it for a job that is given the URL.
    lab.alias("relayed", "direct", host.proxy, env=weed.environ, fs="relay")
    (link,) = (host.home / ".cache/quine").glob("*/layer-s3")
    link.unlink()
    words = [
        "run",
        "--env",
        f"QUINE_FS={env['QUINE_FS']}",
        "--on",
        "relayed",
        "--",
        "quine",
        "fs",
        "cat",
        "a",
    ]
    assert lab.run(words, check=True).stdout == b"over there\n" and link.is_symlink()
    assert lab.run(["fs", "cat", "a"], env={**env, **weed.environ}, check=True).stdout == b"over there\n"


@pytest.mark.whole
@pytest.mark.long
def test_it_gets_there_by_a_connection_that_is_cut(direct: Callable[..., Host], lab: Lab) -> None:
    host = direct()
    lab.run(TRUE, check=True)
    lab.stop_nodes()
    before = host.proxy.accepted()
    assert wheels.layer("sftp", HERE, None).size > 2 * CUT, "so it cannot come by one connection"
    host.proxy.cut_after(*[CUT] * 100)
    try:
        lab.run(TRUE, env=SFTP, check=True)
    finally:
        host.proxy.heal()
    assert 3 <= host.proxy.accepted() - before < 100
    assert len(layers(host)) == 1 and not layers(host)[0].startswith(".")
    assert stat.S_IMODE((host.home / ".cache/quine" / layers(host)[0]).stat().st_mode) == 0o700


@pytest.mark.long
def test_a_damaged_layer_is_replaced(direct: Callable[..., Host], lab: Lab) -> None:
    host = direct()
    lab.run(TRUE, env=SFTP, check=True)
    (name,) = layers(host)
    damaged = host.home / ".cache/quine" / name / "asyncssh" / "__init__.py"
    before = damaged.read_bytes()
    os.truncate(damaged, 0)  # as after a power cut
    lab.stop_nodes()
    lab.run(TRUE, env=SFTP, check=True)
    assert damaged.read_bytes() == before and layers(host) == [name]


@pytest.mark.long
def test_a_damaged_installation_is_replaced_before_the_layer_is_asked_for(
    direct: Callable[..., Host], lab: Lab
) -> None:
    host = direct()
    lab.run(TRUE, env=SFTP, check=True)
    lab.stop_nodes()
    (main,) = (host.home / ".cache/quine").glob("*/lib/quine/__main__.py")
    main.write_bytes(b"")
    lab.run(TRUE, env=SFTP, check=True)
    (link,) = (host.home / ".cache/quine").glob("*/layer-sftp")
    assert link.resolve().name == layers(host)[0]


def refused(lab: Lab, host: Host) -> list[str]:
    """Return the error and its hint of a command whose layer cannot be made; commands without one go on."""
    done = lab.run(TRUE, env=SFTP)
    said = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(said)) == (69, b"", 2), done
    assert said[0].startswith('quine: direct: error: fs = "direct" of sftp: ') and said[0].endswith(
        "; not run: true"
    )
    assert layers(host) == []
    lab.run(TRUE, check=True)
    return said


@pytest.mark.skipif(
    HERE.machine != "x86_64" or not shutil.which("setarch"), reason="no other personality here"
)
def test_a_wheel_that_cannot_be_had_is_named(direct: Callable[..., Host], lab: Lab, tmp_path: Path) -> None:
    script = f'#!/bin/sh\nexec setarch i686 {PYTHON} "$@"\n'
    said = refused(lab, direct(python="old", scripts={"old": script}, wheels=str(tmp_path)))
    (wheel,) = re.findall(
        rf"there is no wheel of (\S+) for CPython {HERE.minor} on i686 with {HERE.libc}", said[0]
    )
    assert wheel in [f"{name}=={metadata.version(name)}" for name in ("cffi", "cryptography")]
    assert f" in {tmp_path}; " in said[0]
    assert f"python{HERE.minor} -m pip wheel --no-deps '{wheel}'" in said[1] and "wheels = " in said[1]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("pypy3"), reason="no pypy3 here")
def test_a_python_over_there_for_which_there_is_no_driver(direct: Callable[..., Host], lab: Lab) -> None:
    assert "and there is PyPy 3." in refused(lab, direct(python="pypy3"))[0]


# -- at the origin -----------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/quine/layers"


def made(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


@pytest.mark.long
def test_same_packages_same_bytes(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = wheels.layer("sftp", HERE, None)
    first.path.write_bytes(first.path.read_bytes()[:-1])  # damaged: made again
    assert wheels.layer("sftp", HERE, None) == first and first.path.stat().st_size == first.size
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert wheels.layer("sftp", HERE, None).sha256 == first.sha256
    names = zipfile.ZipFile(first.path).namelist()
    assert "asyncssh/__init__.py" in names and any(name.endswith(".abi3.so") for name in names)
    assert not any(".." in name or name.startswith(("/", "fsspec/")) for name in names)


def wheel(folder: Path, name: str, tag: str, version: str = "", *requires: str) -> str:
    """Make a wheel, by default of the version that is installed here, with one file; return the name of that."""
    version, module = version or metadata.version(name), name.replace("-", "_")
    stem = f"{module}-{version}"
    about = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    about += [f"Requires-Dist: {each}" for each in requires]
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as archive:
        archive.writestr(f"{stem}.data/platlib/{module}/there.so", tag)
        archive.writestr(f"{stem}.data/scripts/tool", "")
        archive.writestr(f"{stem}.dist-info/METADATA", "".join(f"{line}\n" for line in about))
        archive.writestr(
            f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{module}/there.so"


def test_wheels_that_another_user_can_change_are_not_taken(cache: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "wheels"
    shelf.mkdir(mode=0o755)
    right = "cp311-abi3-musllinux_1_1_riscv64"
    wheel(shelf, "cryptography", right)
    wheel(shelf, "cffi", "cp311-cp311-musllinux_1_2_riscv64")
    for path in (shelf, *shelf.glob("*.whl")):
        before = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(
            wheels.LackingError, match=f"bad permissions of {re.escape(str(path))}"
        ) as lacking:
            wheels.layer("sftp", MUSL, shelf)
        assert f"chmod go-w {path}" in lacking.value.hint and made(cache) == []
        path.chmod(before)
    layer = wheels.layer("sftp", MUSL, shelf)
    assert layer.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.long
@pytest.mark.parametrize("by", ["pip", "directory"])
def test_wheels_for_another_platform(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    named = shelf if by == "directory" else None
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    wheel(shelf, "cryptography", "cp311-abi3-manylinux_2_17_riscv64")
    wheel(shelf, "cryptography", "cp311-abi3-musllinux_1_2_x86_64")
    wheel(shelf, "cffi", "cp310-cp310-musllinux_1_2_riscv64")
    with pytest.raises(
        wheels.LackingError, match=r"no wheel of (cffi|cryptography)==.* on riscv64 with musl 1.2"
    ):
        wheels.layer("sftp", MUSL, named)
    assert made(cache) == []
    right = "cp311-abi3-musllinux_1_1_riscv64"
    there = [wheel(shelf, "cryptography", right), wheel(shelf, "cffi", "cp311-cp311-musllinux_1_2_riscv64")]
    with zipfile.ZipFile(wheels.layer("sftp", MUSL, named).path) as archive:
        assert set(there) < set(archive.namelist()) and archive.read(there[0]).decode() == right
        assert "asyncssh/__init__.py" in archive.namelist() and "tool" not in "".join(archive.namelist())
    assert len(made(cache)) == 1


@pytest.mark.long
def test_pip_chooses_other_versions_where_it_must(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a host with an older Python: its driver is that of here, the rest is what there is."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    tag = "cp311-cp311-musllinux_1_2_riscv64"
    wheel(tmp_path, "asyncssh", "py3-none-any", "", "cryptography>=40", "six; python_version < '3'", "fsspec")
    wheel(tmp_path, "asyncssh", "py3-none-any", "999.0")
    wheel(tmp_path, "fsspec", "py3-none-any")
    with pytest.raises(wheels.LackingError, match="no wheel of cffi=="):
        wheels.layer("sftp", MUSL, None)
    there = wheel(tmp_path, "cryptography", tag, "41.0")
    with zipfile.ZipFile(wheels.layer("sftp", MUSL, None).path) as archive:
        assert archive.read(there).decode() == tag
        infos = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        assert infos == {f"asyncssh-{metadata.version('asyncssh')}.dist-info", "cryptography-41.0.dist-info"}


def test_a_registry_that_is_not_reached_is_no_missing_wheel(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with pytest.raises(wheels.LackingError, match=r"pip does not reach its registry, to get cffi=="):
        wheels.layer("sftp", MUSL, None)


def test_without_pip_it_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_pip", list)
    with pytest.raises(wheels.LackingError, match=r"pip is needed to get cffi==.*, cryptography=="):
        wheels.layer("sftp", MUSL, None)


def test_a_driver_that_is_not_installed_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wheels.ROOTS, "s3", "s3fs-that-nobody-has")
    with pytest.raises(wheels.LackingError, match="s3fs-that-nobody-has is not installed here") as lacking:
        wheels.layer("s3", HERE, None)
    assert "[s3]" in lacking.value.hint


def test_a_python_for_which_there_is_no_driver_is_named(cache: Path) -> None:
    platform = Platform("pypy", "3.9.16", "pypy39_pp73", "glibc", "2.31", "x86_64")
    versions = metadata.metadata("asyncssh")["Requires-Python"]
    needs = f"asyncssh {metadata.version('asyncssh')} needs Python {versions}, and there is PyPy 3.9 on"
    with pytest.raises(wheels.LackingError, match=re.escape(needs)) as lacking:
        wheels.layer("sftp", platform, None)
    assert 'python = "…"' in lacking.value.hint


def test_tags_are_those_of_pip() -> None:
    known = [str(tag) for tag in oracle_tags.sys_tags()]
    assert len(known) > 500 and all(map(HERE.fits, known))
    others = (
        "cp310-cp310-manylinux_2_17_x86_64", "cp39-none-any", "py2-none-any", "cp311-cp311-manylinux_2_99_x86_64",
        "cp311-cp311-musllinux_1_1_x86_64", "cp399-abi3-manylinux_2_17_x86_64", "py3-none-win_amd64",
        "cp311-cp311t-manylinux_2_17_x86_64", "pp311-pypy311_pp73-manylinux_2_17_x86_64",
        "cp311-cp311-manylinux_2_17_s390x",
    )  # fmt: skip
    assert [tag for tag in others if HERE.fits(tag)] == [tag for tag in others if tag in known]
    assert HERE.fits("py2.py3-none-any") and MUSL.fits(
        "cp311-cp311-manylinux_2_17_riscv64.musllinux_1_2_riscv64"
    )
    assert not Platform("cpython", "3.13.1", "cp313t", "glibc", "2.36", "x86_64").fits(
        "cp311-abi3-linux_x86_64"
    )


@pytest.mark.parametrize(
    "platform",
    [HERE, MUSL, Platform("pypy", "3.9.16", "pypy39_pp73", "glibc", "2.31", "aarch64")],
    ids=["here", "musl", "pypy"],
)
def test_markers_are_read_as_pip_reads_them(platform: Platform) -> None:
    environment = {
        **{str(key): value for key, value in oracle_markers.default_environment().items()},
        "python_version": platform.minor,
        "python_full_version": platform.version,
        "implementation_name": platform.implementation,
        "implementation_version": platform.version,
        "platform_python_implementation": {"pypy": "PyPy"}.get(platform.implementation, "CPython"),
        "platform_machine": platform.machine,
    }
    more = (">=3.8,!=3.11.*", "==3.9.*", "~=3.9", "<3.11.2", "<=3.9.16", "!=3.11.2,>3")
    for versions in {each.metadata.get("Requires-Python", "") for each in metadata.distributions()} | {*more}:
        assert platform.runs(versions) == SpecifierSet(versions).contains(platform.version), versions
    count = 0
    lines = {line for each in metadata.distributions() for line in each.requires or ()}
    for marker in {Requirement.parse(line).marker for line in lines} - {""}:
        for extra in ("", "aio", "test"):
            told = oracle_markers.Marker(marker).evaluate({**environment, "extra": extra})
            assert platform.wants(marker, extra) == told, (marker, extra)
            count += told
    assert count > 10
    with pytest.raises(ValueError, match="cannot be read"):
        platform.wants("__import__('os').name == 'posix'", "")


def test_what_a_host_says_of_itself_is_checked() -> None:
    good = layer_host.platform()
    assert (
        str(Platform(**good))
        == f"CPython {HERE.minor} on {HERE.machine} with {HERE.libc} {HERE.libc_version}"
    )
    for name, value in (("abi", "../x"), ("machine", "--pre"), ("version", "3"), ("libc", 7), ("more", "x")):
        text = repr({**good, name: value}).replace("'", '"')
        with pytest.raises(ValueError, match=re.escape(str(value)[:4])):
            Platform.parse(text)


# -- on the disk of a host ---------------------------------------------------------------------------


def test_layers_that_nothing_needs_are_collected(tmp_path: Path) -> None:
    long_ago = 1_000_000_000

    def layer(letter: str, age: int) -> Path:
        path = tmp_path / f"layer-{letter * 64}"
        path.mkdir()
        (path / "part.so").write_bytes(bytes(mmap.PAGESIZE))
        os.utime(path, (age, age))
        return path

    named, spare, loaded = (layer(letter, long_ago) for letter in "abc")
    young = layer("d", 4_000_000_000)
    installation = tmp_path / ("e" * 64)
    installation.mkdir()
    (installation / "layer-s3").symlink_to(f"../{named.name}")
    with open(loaded / "part.so", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert sorted(tmp_path.glob("layer-*")) == [named, loaded, young] and not spare.exists()
    shutil.rmtree(installation)
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert list(tmp_path.glob("layer-*")) == [young]

"""Makes a layer: one zip file of packages with compiled parts, for the Python of one host.

Laws
1. Its packages have the versions that are installed here, so that the stores are opened over there as they are here.
   Where there is no wheel of one of these for the host, pip chooses all versions but that of the driver itself.
2. Files that are installed here are taken as they are where they fit the host: then nothing is fetched. For the others
   a wheel is taken from the directory that the inventory names, else pip gets it. A wheel is never built. No other
   user may be able to change that directory, or the wheels in it.
3. Same packages, same bytes. A layer stays in the cache, and is checked by its hash before it is used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from deploy import build
from deploy.install import with_extra
from deploy.platforms import Platform, Requirement, canonical
from deploy.there import installer
from transport.provenance import safe_path

ROOTS = {
    "s3": "s3fs",
    "gcs": "gcsfs",
    "azure": "adlfs",
    "sftp": "asyncssh",
    # The last two stand for things that Python has had since then.
    "http": "httpx, pydantic, tomli; python_version < '3.11', eval-type-backport; python_version < '3.10'",
}  # name of a layer -> its requirements
FORMAT = "1"  # of the recipe below: another recipe, another key
KEPT = 8  # layers that stay in the cache
PIP_SECONDS = 300
_ANOTHER = 'name another Python in the inventory: python = "…", or set fs = "relay"'
_PARTS = {
    # A hundred megabytes that describe the services of AWS, of which a store asks these.
    "botocore": re.compile(r"botocore/data/(?!(?:s3|sts|sso|sso-oidc|signin)/)[^/]+/.*"),
}
_SKIPPED = re.compile(
    r"(?:.*/)?(?:__pycache__|\.\.)/.*|.*\.py[co]|/.*"
    r"|[^/]+\.dist-info/(?:RECORD.*|INSTALLER|REQUESTED|direct_url\.json)"
)
_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")
_REFUSED = re.compile(r"No matching distribution found for ([^\s;(]+)")


class LackingError(Exception):
    """A package that cannot be had for the host, and the cure."""

    refused = False  # by pip, which knows other versions

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


@dataclass(frozen=True)
class Layer:
    """One file. `size` in bytes."""

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True)
class _Package:
    """`version` is that of the distribution installed here; "" if there is none, and then `wanted` are versions."""

    name: str
    version: str
    wanted: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" if self.version else f"{self.name}{self.wanted}"


def layer(name: str, platform: Platform, wheels: Path | None) -> Layer:
    """Return the layer of these names (`s3`, `gcs+sftp`) for that Python, made or from the cache.

    `wheels`: a directory in place of pip. Raises LackingError and OSError.
    """
    packages = _needed(name, platform)
    folder = build.made_directory("layers")
    text = "\0".join([FORMAT, name, repr(platform), *map(str, packages)])
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    with open(folder / f".lock-{key}", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second dial waits, and finds it done
        found = _intact(folder, key)
        if found is None:
            with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as work:
                made = Path(work) / "made"
                with open(made, "wb") as file:
                    build.write_zip(file, _members(packages, platform, wheels, Path(work) / "wheels").items())
                with open(made, "rb") as file:
                    sha256 = installer.digest(file)
                made.chmod(0o600)
                made.rename(folder / f"{key}-{sha256}")
            _forget_old(folder)
            found = Layer(folder / f"{key}-{sha256}", sha256, (folder / f"{key}-{sha256}").stat().st_size)
    return found


def _intact(folder: Path, key: str) -> Layer | None:
    for path in folder.glob(f"{key}-*"):
        sha256 = path.name.rpartition("-")[2]
        with contextlib.suppress(
            FileNotFoundError
        ):  # an older one, and the maker of another layer has removed it
            os.utime(path)
            with open(path, "rb") as file:
                if installer.digest(file) == sha256:
                    return Layer(path, sha256, path.stat().st_size)
            path.unlink()  # damaged
    return None


def _forget_old(folder: Path) -> None:
    for path in build.by_age(folder, stat.S_ISREG, ".")[KEPT:]:
        path.unlink(missing_ok=True)
    for lock in folder.glob(".lock-*"):
        if not any(folder.glob(f"{lock.name.partition('-')[2]}-*")):
            lock.unlink(missing_ok=True)  # one that is held means at worst that a layer is made twice


def _needed(name: str, platform: Platform) -> list[_Package]:
    """Return the packages of a layer, by the requirements that those installed here have on that Python."""
    found: dict[str, _Package] = {}
    done: set[tuple[str, str]] = set()
    queue = [
        root
        for each in name.split("+")
        for root in _roots(each)
        if not root.marker or platform.wants(root.marker, "")
    ]
    roots = {each.name for each in queue if not each.marker}
    while queue:
        wish = queue.pop()
        try:
            installed = metadata.distribution(wish.name)
        except metadata.PackageNotFoundError:
            if wish.name in roots:
                extra = next(each for each in ROOTS if wish.name in {root.name for root in _roots(each)})
                raise LackingError(f"{wish.name} is not installed here", with_extra(extra)) from None
            found[wish.name] = _Package(wish.name, "", wish.versions)
            continue
        versions = _versions(installed)
        if wish.name in roots and not platform.runs(versions):
            detail = f"{wish.name} {installed.version} needs Python {versions}, and there is {platform}"
            raise LackingError(detail, _ANOTHER)
        if wish.name not in build.PACKAGES:  # which the file for hosts has
            found[wish.name] = _Package(wish.name, installed.version)
        for extra in ("", *wish.extras):
            if (wish.name, extra) not in done:
                done.add((wish.name, extra))
                each = map(Requirement.parse, installed.requires or ())
                queue += [one for one in each if not one.marker or platform.wants(one.marker, extra)]
    return sorted(found.values(), key=str)


def _roots(name: str) -> list[Requirement]:
    return list(map(Requirement.parse, ROOTS[name].split(", ")))


def _members(
    packages: list[_Package], platform: Platform, wheels: Path | None, work: Path
) -> dict[str, bytes]:
    """Return the files of the packages by name."""
    members: dict[str, bytes] = {}
    lacking = []
    for package in packages:
        if package.version and _fits(metadata.distribution(package.name), platform):
            members.update(_installed(package.name))
        else:
            lacking.append(package)
    if not lacking:
        return members
    if wheels is None:
        work.mkdir()
        try:
            _fetch(lacking, platform, work, "--no-deps")
        except LackingError as lack:
            if not lack.refused:
                raise
            return _of_other_versions(packages, platform, work, lack)
    for package in lacking:
        members.update(_unpacked(_wheel(package, platform, wheels or work, wheels is not None), package.name))
    return members


def _of_other_versions(
    packages: list[_Package], platform: Platform, work: Path, lack: LackingError
) -> dict[str, bytes]:
    """Return the files of versions that pip chooses for that Python. Raises `lack` if there are none."""
    # Pip reads the markers of requirements for the Python that it runs on, so those with markers are named.
    roots = {root.name for each in ROOTS for root in _roots(each)}
    named = [each for each in packages if each.name in roots or not each.version]
    shutil.rmtree(work)
    work.mkdir()
    try:
        _fetch(named, platform, work)
    except LackingError:
        raise lack from None
    members: dict[str, bytes] = {}
    for wheel in work.glob("*.whl"):
        name = canonical(wheel.name.partition("-")[0])
        if name not in build.PACKAGES:
            members.update(_unpacked(wheel, name))
    return members


def _versions(installed: metadata.Distribution) -> str:
    """Return the versions of Python that a package needs, "" if it does not say."""
    facts, name = installed.metadata, "Requires-Python"
    return str(facts[name]) if name in facts else ""


def _fits(installed: metadata.Distribution, platform: Platform) -> bool:
    """Whether the files that are installed here are those that the host would have. Files compiled here are not."""
    if not platform.runs(_versions(installed)):
        return False
    tags = re.findall(r"(?m)^Tag:\s*(\S+)", installed.read_text("WHEEL") or "")
    return any("-linux_" not in tag and tag.count("-") == 2 and platform.fits(tag) for tag in tags)


def _installed(name: str) -> Iterator[tuple[str, bytes]]:
    for file in metadata.distribution(name).files or ():
        if _kept(file.as_posix(), name):
            yield file.as_posix(), Path(file.locate()).read_bytes()


def _unpacked(wheel: Path, name: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for each in archive.namelist():
            place = _DATA.sub("", each, count=1)
            if not each.endswith("/") and ".data/" not in place and _kept(place, name):
                yield place, archive.read(each)


def _kept(path: str, name: str) -> bool:
    spared = _PARTS.get(name)
    return not _SKIPPED.fullmatch(path) and not (spared and spared.fullmatch(path))


def _wheel(package: _Package, platform: Platform, folder: Path, named: bool) -> Path:
    """Return the wheel of a package in `folder`; of several versions that will do, the last by name."""
    found = []
    for path in folder.glob("*.whl"):
        parts = path.stem.split("-")
        if len(parts) < 5 or canonical(parts[0]) != package.name:
            continue
        version = not package.version or parts[1] == package.version
        if version and platform.fits("-".join(parts[-3:])):
            found.append(path)
    if named:
        _judge(folder, found)
    if not found:
        detail = f"there is no wheel of {package} for {platform}"
        raise LackingError(f"{detail} in {folder}" if named else detail, _cure(package, platform))
    return max(found)


def _judge(folder: Path, wheels: list[Path]) -> None:
    """Raise LackingError if another user can change the directory of the inventory, or one of these in it."""
    try:
        for path, flags in [(folder, safe_path.FOLDER), *((wheel, safe_path.FILE) for wheel in wheels)]:
            with contextlib.suppress(FileNotFoundError):
                os.close(safe_path.named(str(path), flags))
    except safe_path.Unsafe as unsafe:
        raise LackingError(
            f"wheels run on hosts, and another user can change these: {unsafe}", unsafe.hint
        ) from None


def _fetch(packages: list[_Package], platform: Platform, folder: Path, *more: str) -> None:
    """Have pip put the wheels of all packages into `folder`. `more` are options. Raises LackingError."""
    pip = _pip()
    if not pip:
        names = ", ".join(map(str, packages))
        raise LackingError(f"pip is needed to get {names} for {platform}", _cure(packages[0], platform))
    systems = [f"--platform={each}" for each in platform.systems()]
    options = [
        *("--quiet", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=15"),
        *more,
        *("--only-binary=:all:", f"--dest={folder}", f"--implementation={platform.short}"),
        *(f"--python-version={platform.version}", f"--abi={platform.abi}", *systems),
    ]
    try:
        done = subprocess.run(
            [*pip, "download", *options, *map(str, packages)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LackingError(
            f"pip had not got the wheels in {PIP_SECONDS} s", _cure(packages[0], platform)
        ) from None
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace")
    refused = _REFUSED.search(said)
    named = next((each for each in packages if refused and str(each) == refused[1]), packages[0])
    if "Retrying (" in said:
        detail = f"pip does not reach its registry, to get {named} for {platform}"
    elif refused:
        detail = f"there is no wheel of {refused[1]} for {platform}"
    else:
        last = (said.strip().splitlines() or [f"status {done.returncode}"])[-1]
        detail = (
            f"pip does not get the wheels for {platform}: {last.removeprefix('ERROR: ')[:300].rstrip('.')}"
        )
    lack = LackingError(detail, _cure(named, platform))
    lack.refused = bool(refused) and "Retrying (" not in said
    raise lack


def _cure(package: _Package, platform: Platform) -> str:
    python = "pypy" if platform.short == "pp" else "python"
    return (
        f"{python}{platform.minor} -m pip wheel --no-deps '{package}' makes one on such a host; put it into a directory"
        f' here and name that in the inventory: wheels = "/DIR"; or {_ANOTHER}'
    )


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-I", "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    return [found] if found else []

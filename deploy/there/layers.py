"""The end of a layer on a host: says what this Python needs, receives the layer, unpacks it, and finds it again.

    this end                                      origin, in deploy/layers.py
    MARKER layer PLATFORM                  ->
                                           <-     SHA256 SIZE
    MARKER have | MARKER kept BYTES        ->
                                           <-     the bytes behind those
    MARKER have | MARKER fail WORD TEXT    ->

Laws
1. A layer is <cache>/layer-SHA256: it appears whole, and never changes. The link <installation>/layer-NAME says which
   one the processes of that installation use. Layers that no link names, and no process has loaded, are collected.
2. Not a byte behind the layer is read from stdin: the dial follows.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from deploy.there import installer
from transport import this_build

VARIABLE = "QUINE_LAYER"  # MARKER and NAME, in the environment of the dial
PREFIX = "layer-"
FILES = ".files"  # in a layer: size and name of each other file in it
NAMES = {  # scheme of a store -> the layer with its packages
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("sftp", "ssh"), "sftp"),
}
HTTP = "http"  # the layer with the client of a broker's providers


def named(url: str) -> str:
    """Return the name of the layer for the store of a URL, of several `gcs+s3`; "" if it needs none that we make."""
    schemes = {part.partition(":")[0].lower() for part in url.split("::")}
    return "+".join(sorted({NAMES[scheme] for scheme in schemes if scheme in NAMES}))


def receive(wish: str) -> None:
    """Have the layer of `wish`, a value of VARIABLE, on this host before the dial goes on. Leaves if that fails."""
    marker, _, name = wish.partition(" ")
    installation = Path(this_build.ROOT).parent
    with _private(), _unwinding():
        try:
            _receive(marker, name, installation)
        except (installer.Failure, OSError) as error:
            installer.give_up(marker, error, installation.parent)


def _receive(marker: str, name: str, installation: Path) -> None:
    installer.say(marker, f"layer {json.dumps(platform())}")
    source = open(0, "rb", closefd=False)  # noqa: SIM115 - the dial uses it after us
    found = re.fullmatch(rb"([0-9a-f]{64}) (\d+)\n", source.readline(256))
    if found is None:
        sys.exit(69)  # the origin has given up, and says why
    sha256, size = found[1].decode(), int(found[2])
    base = installation.parent
    target = base / (PREFIX + sha256)
    if not _intact(target):
        try:
            kept = (base / f".part-{target.name}").stat().st_size
        except OSError:
            kept = 0
        kept = kept if kept < size else 0
        installer.say(marker, f"kept {kept}")
        with installer.receive(base, target.name, sha256, size, kept, source) as part:
            _unpack(part, target)
    os.utime(target)
    _point(installation / (PREFIX + name), target)
    installer.forget_layers(base)
    installer.say(marker, "have")


def _unpack(part: installer.Part, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as work:
        made = Path(work) / "made"
        made.mkdir()
        try:
            with part.open() as file, zipfile.ZipFile(file) as archive:
                archive.extractall(made)
                sizes = [f"{member.file_size} {member.filename}\n" for member in archive.infolist()]
            (made / FILES).write_text("".join(sizes))
        except (zipfile.BadZipFile, ImportError, RuntimeError) as error:
            raise installer.Failure("unpack", str(error)) from None
        if _intact(target):
            return  # another dial has put the same one there
        if target.exists():
            target.rename(Path(work) / "was")
        try:
            made.rename(target)
        except OSError:
            if not _intact(target):
                raise


def _intact(target: Path) -> bool:
    """Whether the files of a layer are there with their sizes: a power cut, or a person, may have emptied some."""
    try:
        sizes = [line.split(" ", 1) for line in (target / FILES).read_text().splitlines()]
        return bool(sizes) and all((target / name).stat().st_size == int(size) for size, name in sizes)
    except (OSError, ValueError):
        return False


def _point(link: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as work:
        made = Path(work) / "link"
        made.symlink_to(Path(os.pardir) / target.name)
        made.replace(link)


def joined(*names: str) -> str:
    """Return the name of the one layer that has all of these."""
    return "+".join(sorted({part for name in names for part in name.split("+") if part}))


def use(url: str) -> None:
    """Let this process import the packages for the store of `url`, if they came here. Those of its own come first."""
    if name := named(url):
        use_part(name)


def use_part(name: str) -> None:
    """Let this process import the packages of a layer that has all parts of `name`, if one came here."""
    if not this_build.unpacked():
        return
    wanted = set(name.split("+"))
    links = glob.glob(f"{glob.escape(os.path.dirname(this_build.ROOT))}/{PREFIX}*")
    for link in sorted(links, key=len):
        layer = os.path.realpath(link)
        if wanted <= set(os.path.basename(link)[len(PREFIX) :].split("+")) and os.path.isdir(layer):
            if layer not in sys.path:
                sys.path.append(layer)
            return


def platform() -> dict[str, str]:
    """Return all that decides which wheels this Python can load."""
    kind, number = EXTENSION_SUFFIXES[0].strip(".").split("-")[:2]  # cpython-311-…, pypy39-pp73-…
    libc, libc_version = _libc()
    machine = os.uname().machine
    if sys.maxsize < 1 << 32:  # 32 bits, whatever the kernel has
        machine = {"x86_64": "i686", "aarch64": "armv7l"}.get(machine, machine)
    return {
        "implementation": sys.implementation.name,
        "version": ".".join(map(str, sys.version_info[:3])),
        "abi": f"cp{number}" if kind == "cpython" else f"{kind}_{number}",
        "libc": libc,
        "libc_version": libc_version,
        "machine": machine,
    }


def _libc() -> tuple[str, str]:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc":
            return name, ".".join(version.split(".")[:2])
    except (AttributeError, OSError, ValueError):
        pass
    for loader in glob.glob("/lib/ld-musl-*.so.1"):  # without arguments it says its version, as an error
        done = subprocess.run([loader], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if found := re.search(rb"Version (\d+\.\d+)", done.stderr):
            return "musl", found[1].decode()
    return "unknown", "0.0"


@contextlib.contextmanager
def _private() -> Iterator[None]:
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)  # the node's jobs have that of the login


@contextlib.contextmanager
def _unwinding() -> Iterator[None]:
    """Context in which a connection that goes away leaves no directory behind."""
    before = {
        number: signal.signal(number, lambda number, _: sys.exit(128 + number))
        for number in (signal.SIGHUP, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Write a release of the last commit into dist/: `make release`, by the Python that has what release.txt names.

    quine_agent-V-py3-none-any.whl   for pipx, uv tool and pip
    quine-V.pyz                      the one file that hosts get, for every Linux
    quine-V-man.tar.gz               share/man/man1/*.1
    quine-V.cdx.json                 SBOM, CycloneDX 1.5
    SHA256SUMS                       of the four

Laws
1. Same commit, same tools, same Python: same bytes. Times are the commit's (or SOURCE_DATE_EPOCH), entries are sorted,
   modes and owners are fixed; directory, umask, time zone and locale have no effect.
2. Only what is committed is in it: the sources are those of `git archive`.
3. The one file is made from the wheel: so the wheel has all that an installed quine needs to deploy itself.
4. A file appears in dist/ when all are made.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = Path(__file__).with_suffix(".txt")
NAME = "quine-agent"
MAKE_FILE = "import sys, deploy.build, pathlib; deploy.build.build(pathlib.Path(sys.argv[1]))"
FACTS = (
    "import json, deploy.build as b, transport.this_build as a;"
    "print(json.dumps([a.PACKAGES, b.PACKAGES, a.build_hash()]))"
)

Json = dict[str, object]


def main() -> None:
    os.umask(0o022)
    _check_tools()
    if changed := _git("status", "--porcelain"):
        sys.exit(
            f"release: error: not committed: {changed.splitlines()[0][3:]}\nrelease: hint: commit it, or stash it"
        )
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as work:
        made = release(Path(work), epoch)
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for name, content in made.items():
            (dist / f".{name}").write_bytes(content)
            (dist / f".{name}").chmod(0o755 if name.endswith(".pyz") else 0o644)
        for name in made:
            (dist / f".{name}").rename(dist / name)
    print(made["SHA256SUMS"].decode(), end="")


def release(work: Path, epoch: int) -> dict[str, bytes]:
    """Return the files of the release by name. `work`: an empty directory."""
    sources, installed = work / "sources", work / "installed"
    with tarfile.open(fileobj=io.BytesIO(_run("git", "archive", "--format=tar", "HEAD"))) as archive:
        archive.extractall(sources, filter="data")
    _hatch(sources, work, epoch)
    (wheel,) = work.glob("*.whl")
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as file:
        file.extractall(installed)
    one = work / f"quine-{version}.pyz"
    _installed(installed, work, MAKE_FILE, str(one))
    ours, theirs, build = json.loads(_installed(installed, work, FACTS))
    made = {path.name: path.read_bytes() for path in (wheel, one)}
    made[f"quine-{version}-man.tar.gz"] = man_pages(sorted((sources / "man").glob("*.1")), epoch)
    made[f"quine-{version}.cdx.json"] = sbom(made, version, ours, theirs, build, installed, epoch)
    sums = "".join(f"{_sha256(made[name])}  {name}\n" for name in sorted(made))
    return {**made, "SHA256SUMS": sums.encode()}


def man_pages(pages: Iterable[Path], epoch: int) -> bytes:
    """Return a tarball to unpack in /usr/local or ~/.local."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=data, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for page in pages:
            member = tarfile.TarInfo(f"share/man/man1/{page.name}")
            content = page.read_bytes()
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            member.uname = member.gname = "root"
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def sbom(
    made: dict[str, bytes],
    version: str,
    ours: list[str],
    theirs: list[str],
    build: str,
    installed: Path,
    epoch: int,
) -> bytes:
    """Return the bill of materials: our packages, the packages within the one file, the requirements of the wheel."""
    (about,) = metadata.distributions(path=[str(installed)])
    wheel, one = [_file(name, made[name], version) for name in made if name.endswith((".whl", ".pyz"))]
    packages = [
        {"type": "library", "bom-ref": f"package:{name}", "name": name, "version": version,
         "licenses": [{"license": {"id": "Apache-2.0"}}], "properties": [{"name": "quine:build", "value": build}]}
        for name in ours
    ]  # fmt: skip
    within = [_packed(name) for name in theirs]
    required = [
        _required(line) for line in about.requires or [] if not re.search(r"extra == .(dev|docs)", line)
    ]
    root = f"pkg:pypi/{NAME}@{version}"
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, _sha256(b''.join(made.values())))}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {
                "type": "application", "bom-ref": root, "name": NAME, "version": version, "purl": root,
                "description": about.metadata["Summary"], "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [wheel, one, *packages, *within, *required],
        "dependencies": [
            {"ref": root, "dependsOn": [wheel["bom-ref"], one["bom-ref"]]},
            {"ref": wheel["bom-ref"], "dependsOn": [part["bom-ref"] for part in (*packages, *required)]},
            {"ref": one["bom-ref"], "dependsOn": [part["bom-ref"] for part in (*packages, *within)]},
        ],
    }  # fmt: skip
    return json.dumps(document, indent=2).encode() + b"\n"


def _file(name: str, content: bytes, version: str) -> Json:
    hashes = [{"alg": "SHA-256", "content": _sha256(content)}]
    return {"type": "file", "bom-ref": f"file:{name}", "name": name, "version": version, "hashes": hashes}


def _packed(project: str) -> Json:
    """Return the component of a distribution that is within the one file."""
    known = metadata.distribution(project)
    purl = f"pkg:pypi/{project}@{known.version}"
    licence = known.metadata.get("License-Expression") or known.metadata.get("License")
    return {
        "type": "library", "bom-ref": purl, "name": project, "version": known.version, "purl": purl,
        "scope": "required", "licenses": [{"expression": licence}],
    }  # fmt: skip


def _required(line: str) -> Json:
    """Return the component of a requirement of the wheel. It has no version: an installer chooses it."""
    requirement, _, condition = line.partition(";")
    found = re.match(r"[\w.-]+", requirement)
    assert found, line
    return {
        "type": "library", "bom-ref": f"requirement:{found[0]}", "name": found[0], "purl": f"pkg:pypi/{found[0]}",
        "scope": "optional" if condition else "required",
        "properties": [{"name": "quine:requirement", "value": line.strip()}],
    }  # fmt: skip


def _check_tools() -> None:
    for line in PINS.read_text().splitlines():
        project, _, version = line.partition("==")
        if version and _version(project) != version:
            sys.exit(f"release: error: {project} {version} is not here\nrelease: hint: run `make release`")


def _version(project: str) -> str:
    try:
        return metadata.version(project)
    except metadata.PackageNotFoundError:
        return ""


def _hatch(sources: Path, out: Path, epoch: int) -> None:
    _run(
        *(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)),
        cwd=sources, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )  # fmt: skip


def _installed(where: Path, work: Path, program: str, *words: str) -> bytes:
    """Run a program with the packages of the wheel; nothing is kept in the user's directories."""
    own = {"PYTHONPATH": str(where), "XDG_CACHE_HOME": str(work), "XDG_RUNTIME_DIR": str(work)}
    command = (sys.executable, "-P", "-B", "-c", program, *words)
    return _run(*command, cwd=work, env={**os.environ, **own})


def _git(*words: str) -> str:
    return _run("git", *words).decode().rstrip()


def _run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> bytes:
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, check=False)
    except OSError as error:
        sys.exit(f"release: error: {command[0]}: {error.strerror}")
    if done.returncode:
        sys.exit(f"{done.stderr.decode()}release: error: {' '.join(command[:4])}: status {done.returncode}")
    return done.stdout


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()

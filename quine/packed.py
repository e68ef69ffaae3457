"""The modules of a client in one file: a start reads it once, in place of a search and three reads for each module.

Measured: 2 of the 7 ms that a client's imports take.

Laws
1. Only an installed wheel has the file. The stamp of the build and the version of Python are in its name. So it is
   never older than the sources, which nobody changes in an installation.
2. The file is beside the code that Python keeps of this module, in `__pycache__` of the installation: one that cannot
   write there writes no file, and no directory is read that Python does not load code from anyway. The first client
   after an upgrade writes the file at its end.
3. It holds the code that Python itself compiles and keeps, with a checksum. Without the file, or where it is damaged,
   every module is loaded as ever.
"""

import _frozen_importlib_external as external  # importlib's own, which is loaded before anything else
import _imp
import os
import sys
import time

# No `from __future__`: that would load a module in the slow way.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STAMP = "transport/build_stamp"  # as in transport/address.py, which is one of the modules in the file
OURS = ("quine", "transport", "deploy")
THEIRS = ("__future__", "struct")  # those of the standard library that are no part of the interpreter
ENTRY = "transport.client.proxy"  # a process that has loaded it has what any client needs

SUM = 8  # bytes of the checksum

_began = time.time_ns()


class Loader(external.SourceFileLoader):
    """importlib's loader of a source file, with the code at hand."""

    def __init__(self, name: str, source: str, pyc: memoryview) -> None:
        super().__init__(name, source)
        self._pyc = pyc

    def get_code(self, fullname: str) -> "CodeType":
        revive = external._compile_bytecode  # type: ignore[attr-defined]
        return revive(self._pyc[16:], fullname, self.path, self.path)  # type: ignore[no-any-return]


class Pack:
    """A finder of the modules in the file, first in `sys.meta_path`. `modules` has (is a package, pyc) of each name."""

    def __init__(self, modules: dict[str, tuple[bool, memoryview]]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        found = self.modules.get(name)
        if found is None:
            return None
        folder = ROOT if name.partition(".")[0] in OURS else os.path.dirname(os.__file__)
        place = f"{folder}/{name.replace('.', '/')}"
        source = f"{place}/__init__.py" if found[0] else f"{place}.py"
        return external.spec_from_file_location(
            name,
            source,
            loader=Loader(name, source, found[1]),
            submodule_search_locations=[place] if found[0] else None,
        )


def load() -> None:
    """Have modules loaded from the file of this build, if there is one."""
    try:
        path = _path()
        with open(path, "rb", buffering=0) as file:
            modules = parsed(file.read())
    except (OSError, ValueError):
        return
    sys.meta_path.insert(0, Pack(modules))


def keep() -> None:
    """Write the file, if this process is an installed client that has started without one."""
    if ENTRY not in sys.modules or any(isinstance(finder, Pack) for finder in sys.meta_path):
        return
    try:
        path = _path()
        names = [name for name in sys.modules if name.partition(".")[0] in OURS or name in THEIRS]
        data = packed({name: _code(sys.modules[name]) for name in names})
        from transport import atomic

        atomic.write(path, data, 0o644, own=True)
        folder, own = os.path.split(path)
        for name in os.listdir(folder):
            if name.startswith("modules-") and name != own:
                os.unlink(f"{folder}/{name}")  # of an earlier build
    except (OSError, ValueError, AttributeError, ImportError):
        pass  # the next client looks for its modules, too


def packed(modules: dict[str, tuple[bool, bytes]]) -> bytes:
    """Return the file: a line for each module, an empty line, the code of all of them, and a checksum."""
    lines = [f"{name} {int(package)} {len(pyc)}\n" for name, (package, pyc) in modules.items()]
    data = b"".join(["".join(lines).encode(), b"\n", *(pyc for _, pyc in modules.values())])
    return data + _checksum(data)


def parsed(data: bytes) -> dict[str, tuple[bool, memoryview]]:
    """Return the modules of a file. Raises ValueError if it is not whole, or of another Python."""
    view = memoryview(data)
    if _checksum(view[:-SUM]) != data[-SUM:]:
        raise ValueError("damaged")
    head = data.index(b"\n\n")
    at = head + 2
    modules = {}
    for line in data[:head].decode().split("\n"):
        name, package, size = line.split(" ")
        modules[name] = (package == "1", view[at : at + int(size)])
        at += int(size)
        if modules[name][1][:4] != external.MAGIC_NUMBER:
            raise ValueError("code of another Python")
    if at != len(data) - SUM:
        raise ValueError("not whole")
    return modules


def _checksum(data: "bytes | memoryview") -> bytes:
    """That of importlib for sources: 8 bytes, and no module to be loaded for it."""
    return bytes(_imp.source_hash(external._RAW_MAGIC_NUMBER, data))  # type: ignore[attr-defined]


def _path() -> str:
    """Return the path of the file. Raises OSError where there is none: no stamp, or a Python that keeps no code."""
    with open(f"{ROOT}/{STAMP}", "rb", buffering=0) as file:
        build = file.read(65).decode()
    if len(build) != 64 or sys.flags.optimize or sys.dont_write_bytecode:
        raise OSError("no file for this process")
    kept = os.path.dirname(external.cache_from_source(__file__))
    return f"{kept}/modules-{sys.implementation.cache_tag}-{sys.hexversion:x}-{build[:32]}"


def _code(module: "ModuleType") -> tuple[bool, bytes]:
    """Return whether a module is a package, and its code. Raises ValueError if its source is newer than this process.

    An upgrade may be under way, and the code would not be that of the stamp.
    """
    spec = module.__spec__
    if spec is None or not spec.origin or os.stat(spec.origin).st_ctime_ns >= _began:
        raise ValueError("a source that is new")
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    return spec.submodule_search_locations is not None, bytes(external._code_to_timestamp_pyc(code))  # type: ignore[attr-defined]

"""The laws of the map, proven from the syntax trees and from what a started process has really imported.

Laws
1. An import counts wherever it stands, at the top or inside a function: a lazy import is still a dependency.
2. A law that has no exceptions has no list of exceptions here.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.imports import BLOCKING, HEAVY

pytestmark = pytest.mark.law  # `make lint` runs them

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("transport", "deploy", "quine")
MAY_IMPORT = {"transport": {"transport"}, "deploy": {"transport", "deploy"}, "quine": set(PACKAGES)}

# the files that may name a library at all; all other code goes through them
IMPORTERS = {
    "asyncssh": {
        "transport/carrier/ssh/cipher.py",
        "transport/carrier/ssh/connect.py",
        "transport/carrier/ssh/contact.py",
        "transport/carrier/ssh/keys.py",
        "transport/carrier/ssh/private.py",
        "transport/carrier/ssh/settings.py",
    },
    "httpx": {"quine/providers/connecting.py", "quine/providers/http.py"},
    "typer": {"quine/cli/app.py"},
    "fsspec": {
        "quine/files/stores/azure.py",
        "quine/files/stores/drivers.py",
        "quine/files/python/filesystem.py",
        "quine/files/stores/fsspec_store.py",
        "quine/files/stores/google.py",
    },
    "s3fs": {"quine/files/stores/object/client.py"},
    "pydantic": {"quine/providers/dialects/dialect.py"},
}
NEVER = {"pickle", "marshal", "shelve", "dill"}  # data from elsewhere is parsed, not revived

CEILING = 400  # lines of a file
FUNCTION = 60  # lines of one
FOLDER = 16  # modules of one

FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


class _Trees(dict[Path, ast.Module]):
    """Parsed when they are looked at: every worker loads this module, and few of them run its tests."""

    def __missing__(self, path: Path) -> ast.Module:
        self[path] = ast.parse(path.read_text(), str(path))
        return self[path]


TREES = _Trees()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULE_FILES = {module_of(path): path for path in FILES}
MODULES = set(MODULE_FILES)
ROOMS = {
    ".".join(module.split(".")[:2]) for module, path in MODULE_FILES.items() if path.name == "__init__.py"
}


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Yield every node; without `types`, skip the parts that only a type checker sees."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if types or not for_types_only(node):
            todo += ast.iter_child_nodes(node)
        elif isinstance(node, ast.If):
            todo += node.orelse


@functools.cache
def imports(path: Path, types: bool = True) -> tuple[str, ...]:
    """Return full names of a file's imports: modules, and `package.name` for `from package import name`."""
    return tuple(_imports(path, types))


def _imports(path: Path, types: bool) -> Iterator[str]:
    here = module_of(path).split(".")
    if path.name != "__init__.py":
        here = here[:-1]
    for node in walk(TREES[path], types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in MODULES or module in PACKAGES else module


def top(name: str) -> str:
    return name.split(".")[0]


def room_of(module: str) -> str:
    """The room that a module stands in: its folder, or of a folder in a room that room; "quine" of what starts all."""
    parts = module.split(".")
    folder = parts if MODULE_FILES[module].name == "__init__.py" else parts[:-1]
    return ".".join(folder[:2])


def allowed_of(room: str) -> set[str]:
    """The rooms that the docstring of a room names behind "May import:"."""
    text = ast.get_docstring(TREES[ROOT.joinpath(*room.split("."), "__init__.py")]) or ""
    found = re.search(r"^May import: ([^.]+(?:\.\w[^.]*)*)\.$", text, re.MULTILINE)
    assert found, f"{room} does not say what it may import"
    names = [] if found[1].startswith("nothing") else re.split(r",\s+", found[1])
    mine = {name: f"{top(room)}.{name}" for name in names}
    return {mine[name] if mine[name] in ROOMS else name for name in names}


def test_a_room_imports_only_what_its_docstring_allows() -> None:
    """`quine` itself, where __main__ stands, wires all of them together."""
    allowed = {room: allowed_of(room) for room in ROOMS - {"quine"}}
    wrong = []
    for path in FILES:
        room = room_of(module_of(path))
        for name in imports(path):
            if room == "quine" or name not in MODULES or name == "quine":  # the last is its version
                continue
            other = room_of(name)
            whole = top(other) != top(room) and top(other) in allowed[room]  # a package is all of its rooms
            if other != room and other not in allowed[room] and not whole:
                wrong.append(f"{name_of(path)} imports {name}")
    assert not wrong
    below: set[str] = set()
    while free := {room for room in allowed.keys() - below if allowed[room] <= below}:
        below |= free
    assert below == allowed.keys(), f"rooms that allow each other: {allowed.keys() - below}"


def test_no_module_imports_in_a_circle() -> None:
    """Also none of imports that only annotations need."""
    graph = {
        module_of(path): {n for n in imports(path) if n in MODULES and n != module_of(path)} for path in FILES
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, "circle: " + " -> ".join([*way[way.index(module) :], module])
        if module in done:
            return
        for other in sorted(graph[module]):
            visit(other, (*way, module))
        done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize("library", sorted(IMPORTERS))
def test_a_library_has_its_importers_and_no_other(library: str) -> None:
    found = {name_of(path) for path in FILES if any(top(name) == library for name in imports(path))}
    assert found <= IMPORTERS[library]


def test_transport_needs_only_the_standard_library() -> None:
    other_versions = {
        "_sha2",
        "_sha256",
    }  # two names of one module: the one before Python 3.12, the other since
    known = sys.stdlib_module_names | other_versions | {"transport", "__future__"}
    wrong = {
        name_of(path): sorted(foreign)
        for path in FILES
        if path.is_relative_to(ROOT / "transport")
        and (foreign := {top(name) for name in imports(path)} - known)
    }
    for name in IMPORTERS["asyncssh"]:
        assert wrong.pop(name, ["asyncssh"]) == ["asyncssh"]
    assert not wrong


@pytest.mark.parametrize(
    "module",
    [
        "wire/frames",
        "wire/flow",
        "wire/outbox",
        "wire/session",
        "wire/resume",
        "client/core",
        "client/job_core",
        "client/batch_core",
        "client/batch_job",
        "client/feed",
    ],
)
def test_a_machine_of_the_protocol_has_no_descriptor_no_clock_and_no_thread(module: str) -> None:
    """The simulator drives these modules too: bytes in, bytes out, the time given."""
    path = ROOT / "transport" / f"{module}.py"
    taken = {top(name) for name in imports(path, types=False)}
    taken |= {
        alias.name
        for node in walk(TREES[path], types=False)
        if isinstance(node, ast.ImportFrom) and node.module == "transport.lean"
        for alias in node.names
    }
    assert not taken & {
        "asyncio",
        "fcntl",
        "os",
        "random",
        "select",
        "socket",
        "termios",
        "threading",
        "time",
    }


def test_nothing_revives_evaluates_or_goes_through_a_shell() -> None:
    wrong = []
    for path in FILES:
        wrong += [f"{name_of(path)} imports {name}" for name in imports(path) if top(name) in NEVER]
        for node in ast.walk(TREES[path]):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            shell = called.startswith(("subprocess.", "Popen", "run")) and any(
                word.arg == "shell" and not (isinstance(word.value, ast.Constant) and not word.value.value)
                for word in node.keywords
            )
            if called in ("eval", "exec", "os.system", "os.popen") or shell:
                wrong.append(f"{name_of(path)}:{node.lineno} calls {called}")
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    assert not [name_of(path) for path in FILES if not (ast.get_docstring(TREES[path]) or "").strip()]


# They create what a user has named: there a link means the file that it leads to, as for `>`.
NAMED_BY_USERS = {
    "quine/fanout/output/results.py",
    "quine/fanout/output/tables.py",
    "transport/carrier/ssh/known_hosts.py",
}


def test_no_file_of_ours_is_created_through_a_link() -> None:
    """Someone who may write there first could have any file of the user's overwritten."""
    found = []
    for path in FILES:
        if name_of(path) not in NAMED_BY_USERS and "O_CREAT" in path.read_text():
            for node in ast.walk(TREES[path]):
                text = ast.unparse(node) if isinstance(node, ast.Call | ast.Assign | ast.AugAssign) else ""
                if "O_CREAT" in text and not ("O_NOFOLLOW" in text or "O_EXCL" in text):
                    found.append(f"{name_of(path)}:{node.lineno}")
    assert not found


IN_DATA = re.compile(
    r"\b(?:job_directory|outputs_directory|tape_path)\(|\.(?:directory|outputs)\b|\bdata_dir\b"
)
FOLLOW = ("dirs.make", "open", "os.open", "os.listdir", "os.scandir", "procs.opened_at_once")


def test_what_is_kept_in_a_data_directory_is_opened_inside_it() -> None:
    """Git brings links into a marked one. tests/base/test_data_directory.py has each name that quine makes or reads."""
    found, looks = [], 0
    for path in FILES:
        for node in ast.walk(TREES[path]) if name_of(path).startswith("quine/") else ():
            if (
                not isinstance(node, ast.Call)
                or not node.args
                or not IN_DATA.search(ast.unparse(node.args[0]))
            ):
                continue
            name, text = ast.unparse(node.func), ast.unparse(node)
            looks += name in ("dirs.make_inside", "registry.opened")
            whole = name.startswith("regular_file.") and len(node.args) < {"opened": 2, "content": 3}.get(
                name.partition(".")[2], 0
            )
            if whole or (name in FOLLOW and "opened(" not in text and "O_EXCL" not in text):
                found.append(f"{name_of(path)}:{node.lineno}: see transport/provenance/safe_path.py")
    assert looks and not found


def test_a_directory_that_was_removed_is_expected_where_the_current_one_is_asked_for() -> None:
    """`os.getcwd` fails there. On a host the directory is that of the job, which is held."""
    found = []
    for path in FILES:
        if name_of(path).startswith("quine/") and not name_of(path).startswith("quine/staging/"):
            safe = {
                id(node)
                for block in ast.walk(TREES[path])
                if (isinstance(block, ast.Try) and any("OSError" in ast.unparse(h) for h in block.handlers))
                or (isinstance(block, ast.With) and "suppress(OSError)" in ast.unparse(block.items[0]))
                for part in block.body
                for node in ast.walk(part)
            }
            found += [
                f"{name_of(path)}:{node.lineno}: see quine/base/dirs.py"
                for node in ast.walk(TREES[path])
                if isinstance(node, ast.Attribute)
                and ast.unparse(node) == "os.getcwd"
                and id(node) not in safe
            ]
    assert not found


OPENERS = {"transport/provenance/regular_file.py", "transport/provenance/safe_path.py", "quine/tape/lines.py"}


def test_a_file_of_somebody_else_is_opened_at_once_and_only_if_it_is_regular() -> None:
    """A pipe without a writer held an agent for ever, and a device has no end.

    The files of a repository and the tapes are read through the openers.
    """
    found = []
    for path in FILES:
        name = name_of(path)
        if name.startswith(("transport/provenance/", "quine/tape/")) and name not in OPENERS:
            calls = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
            found += [
                f"{name}:{call.lineno}"
                for call in calls
                if ast.unparse(call.func) == "open" and "'wb'" not in ast.unparse(call)
            ]
    assert not found


OF_ANOTHER = re.compile(r"/proc/\{.*\}/fd\b")  # the descriptors of a process that may be another's
ASKS = (
    *("open", "os.open", "os.stat", "os.access", "os.truncate", "os.chmod", "os.utime", "os.statvfs"),
    *(
        f"os.path.{name}"
        for name in ("exists", "isfile", "isdir", "getsize", "getmtime", "realpath", "samefile")
    ),
)


def asks_about(node: ast.AST, any_path: bool) -> bool:
    """Return whether it is a call that opens a file or asks its file system, of `any_path` or of a found `one.path`."""
    if not isinstance(node, ast.Call):
        return False
    name, path = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
    found = path.endswith(".path") and path != "self.path"
    entry = name.rpartition(".")[2] in ("stat", "is_file", "is_dir", "read_bytes", "read_text")
    return (name in ASKS and (any_path or found)) or (entry and any_path)


def test_a_file_that_another_process_holds_is_not_asked_for_anything() -> None:
    """It has any name, as of a memfd, and its server may never answer: FUSE held a node, and a broker with all trees.

    `inode_at` and `reopened` of transport/provenance/memory_file.py tell a memfd from it. A link may be read.
    """
    found, looks = [], 0
    for path in FILES:
        text = path.read_text()
        if not (OF_ANOTHER.search(text) or re.search(r"\b(open_files|held_above)\(", text)):
            continue
        functions = [
            node for node in ast.walk(TREES[path]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for function in functions:
            here = bool(OF_ANOTHER.search(ast.unparse(function)))
            looks += here
            calls = [node for node in ast.walk(function) if asks_about(node, here)]
            found += [f"{name_of(path)}:{call.lineno}" for call in calls if isinstance(call, ast.Call)]
    assert looks and not found


def test_files_stay_below_their_ceiling() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: n for name, n in lines.items() if n > CEILING}
    assert not {
        f"{name_of(path)}:{node.name}": length
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION
    }


def test_a_folder_holds_no_more_than_one_looks_through() -> None:
    folders = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert not {name_of(folder): count for folder, count in folders.items() if count > FOLDER}


# ------------------------------------------------------------------------- what a process really imports


def loaded(*statements: str) -> set[str]:
    code = "; ".join((*statements, "import json, sys", "print(json.dumps(sorted(sys.modules)))"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    return {top(name) for name in json.loads(done.stdout)}


CLIENTS = (
    "transport.client.client",
    "transport.client.batch",
    "quine.cli.run",
    "quine.cli.rsh",
    "quine.fanout.main",
    "quine.fanout.each.main",
    "quine.fanout.each.run",
    "quine.fanout.run",
    "quine.jobs.client",
    "quine.base.cli_options",
    "quine.agent.main",
    "quine.cli.job_verbs",
    "quine.cli.tape",
    "quine.tape.render",
    "quine.tape.verify",
    "quine.files.cli.main",
    "quine.staging.caller_side",
    "quine.staging.remote_main",
)


def test_a_client_and_an_agent_import_the_standard_library_only() -> None:
    together = loaded(*(f"import {module}" for module in CLIENTS)) & BLOCKING
    assert not together, {module: loaded(f"import {module}") & together for module in CLIENTS}


def test_an_agent_starts_without_what_only_a_checker_of_types_reads() -> None:
    """A tenth of its start (transport/lean.py)."""
    code = "import quine.agent.main, quine.broker.finding, quine.remote.compose, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    before = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        check=True,
        timeout=120,
    )
    new = set(done.stdout.decode().split()) - set(before.stdout.decode().split())
    assert not new & {"enum", "hashlib", "json", "re", "signal", "socket", "threading", "typing"}


def test_a_client_starts_without_what_the_wrappers_of_the_standard_library_load() -> None:
    """They are a third of its start (transport/lean.py). Staging loads them after the job was sent, if at all."""

    def named(*modules: str) -> set[str]:
        code = "".join(f"import {module}; " for module in modules) + "import sys; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=120
        )
        return set(done.stdout.decode().split())

    client = (
        "quine.cli.run",
        "transport.client.client",
        "transport.spawn",
        "quine.files.select",
        "quine.staging.caller_side",
    )
    new = named(*client) - named()
    assert not new & {
        "collections",
        "contextlib",
        "enum",
        "functools",
        "selectors",
        "signal",
        "socket",
        "threading",
    }
    answering = named(*client, "quine.staging.files_sender", "transport.rpc.services") - named()
    assert not answering & {"enum", "selectors", "signal", "socket"}


def test_a_proxy_that_streams_loads_what_it_needs_to_stream_and_no_more() -> None:
    """Each of these is 3 to 10 ms of every `quine run` whose files are asked for."""
    needed = loaded("import quine.staging.caller_side", "import transport.rpc.services")
    assert not needed & {"hashlib", "concurrent", "logging"}


def test_a_node_starts_without_the_heavy_libraries() -> None:
    assert not loaded("import transport.node.daemon") & HEAVY


@pytest.mark.parametrize("word", ["--dial", "--ready-fd"])
def test_a_node_and_a_dial_start_without_the_table_of_options(word: str) -> None:
    """The first command on a host compiles what it loads, three processes of it."""
    code = (
        "import sys, quine.remote.node_entry as entry, quine.__main__ as main; entry.node = lambda words: 0; "
        f"main.dispatch(['node', {word!r}]); print('quine.base.cli_options' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    assert done.stdout == b"False\n"


FOREIGN = re.compile(
    r"(?:install|inject|add|--with)\s+'?\"?quine(?![-\w./])|\bquine\[(?!\{os\.getpid)|\bquine-(?:cli|core)\b"
)


def test_nobody_is_told_to_install_a_package_that_is_not_ours() -> None:
    """The name `quine` in a registry belongs to another project; this package is `quine-agent`."""
    texts = [
        path
        for pattern in (
            "*.md",
            "*.toml",
            "Makefile",
            "docs/**/*",
            "examples/**/*",
            "scripts/*",
            "bench/**/*.py",
        )
        for path in ROOT.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    wrong = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in [*FILES, *texts, *(ROOT / "tests").rglob("*.py")]
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not wrong
    assert all(
        map(FOREIGN.search, ("pip install 'quine[s3]'", "pip install quine", "uv tool install quine "))
    )
    assert not FOREIGN.search("pip install 'quine-agent[s3]'")


def test_each_mutation_of_the_table_has_its_place() -> None:
    table = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())
    assert len(table) > 70
    for name, entry in table.items():
        assert (ROOT / entry["file"]).read_text().count(entry["old"]) == 1, name
        for test in entry["tests"]:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text()
            assert not function or re.search(rf"def {re.escape(function.partition('[')[0])}\b", text), (
                f"{name}: {test}"
            )


PATIENT = 30  # seconds; a busy machine takes ten for what takes one
WAITS = re.compile(
    r"(\w*lab|subprocess)\.\w+|.*\.(communicate|join|wait_log)|until|read_until|.*(process|client|agent|self)\.wait"
)
SECONDS = {"join": 0, "wait": 0, "communicate": 1, "wait_log": 1, "until": 2}  # the place of a wait's seconds


def test_no_test_has_a_number_of_seconds_that_a_busy_machine_breaks() -> None:
    """But those with the mark `clock`, which have the machine for themselves."""
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and "pytest.mark.clock" in map(
                ast.unparse, node.decorator_list
            ):
                continue
            wrong += [f"{name_of(path)}:{line}" for line in _hasty(node)]
    assert not wrong


def _hasty(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a short timeout of a wait, or with an upper bound of the time that something took."""

    def short(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value < PATIENT

    took = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "monotonic() -" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def time(node: ast.expr) -> bool:
        return "monotonic() -" in ast.unparse(node) or (isinstance(node, ast.Name) and node.id in took)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and WAITS.fullmatch(name := ast.unparse(node.func)):
            given = [word.value for word in node.keywords if word.arg in ("timeout", "seconds")]
            at = SECONDS.get(name.rpartition(".")[2], 99)
            if any(map(short, (*given, *node.args[at : at + 1]))):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for less, (left, right) in zip(node.ops, itertools.pairwise(sides), strict=True):
                if isinstance(less, ast.Gt | ast.GtE):
                    left, right = right, left
                if isinstance(less, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and time(left) and short(right):
                    yield node.lineno

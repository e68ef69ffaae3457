"""Fixtures, and the watch over every test: it leaves no process, thread, descriptor, socket or file behind.

Laws
1. The watch compares with the moment before the test. A fixture of the test removes all that it makes.
2. Nodes of the lab stay (the session's lab is shared); jobs must be gone, if need be after their lease.
3. Waiting for stragglers is on pidfds and joins, with one deadline; only files and descriptors are looked at again.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from quine.base import procs
from tests.files.clouds import Azure, Google
from tests.files.seaweed import Weed
from tests.files.tiers import SERVERS
from tests.lab import Lab, Settings, forks, processes
from tests.lab.host import Host
from tests.lab.lab import CARRIER, LEASE
from tests.lab.machine import RUN, SSHD, can_mount, place_of_files
from tests.support.agents import Agents

# Seconds that a dying process, thread or descriptor of a test may take to be gone.
STRAGGLERS = float(os.environ.get("LAB_STRAGGLERS", 60))
DESCRIPTORS = 1024  # soft limit
ESCAPED = 97  # exit status of a forked child that came to the end of its test
DEAR = (
    900.0  # seconds that what is made once for a session may take, retries on a machine at its limit included
)
BACKENDS = {"weed", "google", "azure", "sftp_server"}  # fixtures that start a server
LIKE_WEED = {"google", "azure"}  # a long test takes the same paths with these as with weed
MANY, EVERY = 3, 4  # of a long test with so many parameters each so many-th is run where not all are
FORKING = {"agents", "lab", "own_lab"}  # fixtures whose programs are forks of one that has loaded them
NOISE = ("pytest-", "hypothesis-")  # names in the temporary directory that are pytest's own

# No limit on the time of one example, nor on how long it takes to think of one: that depends on who else is at work.
# The same examples each time, so that a failure belongs to a change (--hypothesis-profile=default looks further).
hypothesis.settings.register_profile(
    "here", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("here")

T = TypeVar("T")

_sessions: list[Lab] = []
_interrupted = threading.Event()
_home = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Make one temporary directory for this process (each xdist worker), so that litter is seen and is its own."""
    gc.disable()  # while tests are collected: nearly all that is made then stays, and is looked through again and again
    # a short name: Unix sockets are made below it
    directory = tempfile.mkdtemp(prefix="qt-", dir=place_of_files())
    config.stash[_home] = directory
    name, _, value = RUN.partition("=")
    os.environ[name] = value
    # On a machine that keeps no compiled modules every worker would rewrite all tests in every run, 15 seconds of a
    # processor each, and every process of a test would compile what it loads.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    # without it there would be /tmp/quine-UID, the user's own, with what is noted of this build and others
    os.environ["XDG_RUNTIME_DIR"] = f"{directory}/run"
    os.mkdir(os.environ["XDG_RUNTIME_DIR"], 0o700)
    os.environ["XDG_STATE_HOME"] = f"{directory}/state"  # where quine keeps a secret of the user
    os.mkdir(os.environ["XDG_STATE_HOME"], 0o700)
    # A program that starts the tests may ignore signals (nohup, a job runner). All processes of the tests would
    # inherit that, and a test that hangs up an agent would wait for an agent that ignores the hang-up.
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # of files that tests make the modes are looked at
    # The limit of a login on a stock machine: a larger limit would hide that a process runs out of descriptors.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, DESCRIPTORS), hard))


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = config.stash.get(_home, "")
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, object, object]:
    """Session fixtures are not made in the time of the first test that needs them.

    A slow server once failed the first test by its timeout. pytest keeps the error of a fixture, so all later tests
    of the worker that need the server failed as well.
    """
    left = signal.getitimer(signal.ITIMER_REAL)[0]  # pytest-timeout's
    if fixturedef.scope != "session" or not left:
        return (yield)
    signal.setitimer(signal.ITIMER_REAL, DEAR)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server for a store: they run one contract against one more backend."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        needed = {SERVERS.get(value) for value in params.values() if isinstance(value, str)}
        if BACKENDS & ({*getattr(item, "fixturenames", ())} | needed):
            item.add_marker(pytest.mark.backends)
        if LIKE_WEED & needed and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.whole)
    _leave_out(items)


def _leave_out(items: list[pytest.Item]) -> None:
    """Leave most parameters of a long test that has many of them to a release."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("whole"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test in tests.values():
        if len(test) >= MANY:
            for at, item in enumerate(test):
                if at % EVERY:
                    item.add_marker(pytest.mark.whole)


def pytest_collection_finish() -> None:
    """Take the tests out of the collector's sight: each full collection would go through all of them."""
    gc.collect()  # of garbage that is there by now an open file is still reported
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A child that a test forks ends with the test function, however it gets there.

    One that raised used to go on as a second worker, with the first one's connection to xdist.
    """
    ours = os.getpid()
    try:
        return (yield)
    except BaseException as error:
        if os.getpid() != ours:
            traceback.print_exc(file=sys.__stderr__)
        if isinstance(error, KeyboardInterrupt):
            _interrupted.set()
        raise
    finally:
        if os.getpid() != ours:
            os._exit(ESCAPED)


def pytest_report_header() -> list[str]:
    return [
        f"lab: {SSHD}"
        if SSHD
        else "lab: no sshd here; asyncssh's server stands in (stock limits are not tested)",
        f"carrier: {CARRIER}",
    ]


@pytest.fixture(scope="session")
def server_of_forks() -> Iterator[None]:
    with forks.serving():
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program is started, and none is a fork of one that has loaded it: for tests of the start."""
    monkeypatch.setattr(forks, "popen", subprocess.Popen)


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    return Agents(tmp_path)


@pytest.fixture(scope="session")
def session_lab() -> Iterator[Lab]:
    with Lab(installed=True) as lab:
        _sessions.append(lab)
        # the binary is built: after a change of the sources minutes on a loaded machine, which is no test's own time
        lab.run(["deploy", "h1"], check=True, timeout=DEAR / 2)
        yield lab
        _sessions.remove(lab)


@pytest.fixture
def lab(session_lab: Lab) -> Iterator[Lab]:
    """Hosts h1, h2, h3, shared by the tests of this worker. Teardown restores hosts, proxies and names."""
    yield session_lab
    session_lab.forget_aliases()
    for host in session_lab.hosts.values():
        host.start()
        if host.has_proxy:
            host.proxy.heal()
            host.proxy.delay(0)


@pytest.fixture(scope="session")
def drivers() -> None:
    """Start the thread of fsspec's loop, and those of its executor, for the session: they do not end.

    They start one by one, when none of them is idle. The watch would blame the test that starts one.
    """
    from fsspec.asyn import get_loop  # type: ignore[import-untyped]

    loop, pool = get_loop(), ThreadPoolExecutor(4, thread_name_prefix="lab-drivers")
    ready = threading.Event()
    loop.call_soon_threadsafe(lambda: (loop.set_default_executor(pool), ready.set()))
    assert ready.wait(120)


@pytest.fixture(scope="session")
def weed(drivers: None) -> Iterator[Weed]:
    """A real S3 server, of this worker."""
    with Weed() as server:
        yield server


@pytest.fixture(scope="session")
def google(drivers: None) -> Iterator[Google]:
    """gs:// emulated, of this worker."""
    with Google() as server:
        yield server


@pytest.fixture(scope="session")
def azure(drivers: None) -> Iterator[Azure]:
    """Azurite, of this worker."""
    with Azure() as server:
        yield server


@pytest.fixture(scope="session")
def sftp_server() -> Iterator[Lab]:
    """One sshd, of this worker."""
    with Lab(["h1"]) as lab:
        _sessions.append(lab)
        yield lab
        _sessions.remove(lab)


@pytest.fixture
def sftp_lab(sftp_server: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The same for a test that comes to know its host key, in a home of its own."""
    monkeypatch.setenv("HOME", str(sftp_server.home))
    return sftp_server


@pytest.fixture
def own_lab() -> Iterator[Callable[..., Lab]]:
    """Make labs of this test's own: `own_lab(["h1"], lease=1)`. For tests that break things for good."""
    with contextlib.ExitStack() as made:

        def make(names: tuple[str, ...] | list[str] = ("h1",), lease: int = LEASE) -> Lab:
            return made.enter_context(Lab(names, lease=lease, installed=True))

        yield make


@pytest.fixture
def odd_host(lab: Lab) -> Iterator[Callable[..., Host]]:
    """One more host in the shared lab, with Settings: `odd_host("bare", python=False)`; then gone."""
    made: list[str] = []

    def make(name: str, **settings: object) -> Host:
        if settings.get("mount") and (os.getuid() or not can_mount()):
            pytest.skip("needs root and mount namespaces")
        made.append(name)
        settings.setdefault("bare", True)  # tests change it, and must not change the shared one
        return lab.add(name, Settings(**settings))  # type: ignore[arg-type]

    yield make
    for name in made:
        lab.drop(name)


@pytest.fixture
def through(lab: Lab) -> Callable[..., str]:
    """`through("h1", lease=5)`: the name under which h1 is reached by way of its proxy, with a link already."""
    numbers = itertools.count()

    def make(host: str, **keys: object) -> str:
        name = lab.alias(f"{host}x{next(numbers)}", host, lab[host].proxy, **{"lease": 60, **keys})
        lab.run(["run", "--on", name, "--", "true"], check=True)
        return name

    return make


# ----------------------------------------------------------------------------------------- the watch


def _patience() -> float:
    """Return the seconds to wait for what a test has left. After ^C none: xdist kills a worker that takes its time."""
    return 0.0 if _interrupted.is_set() else STRAGGLERS


def _own_fds() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that lists the directory
            continue
    return found


def _litter() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith(NOISE)}


def _is_labs(thread: threading.Thread) -> bool:
    return thread.name.startswith(("lab-", "gcsfs-deferred-close"))  # it stays, as the driver will have it


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    # fixtures of the session come up before the snapshot
    if FORKING & {*request.fixturenames}:
        request.getfixturevalue("server_of_forks")
        forks.ready()  # again, where the test before has killed it
    with_lab = "lab" in request.fixturenames or request.node.get_closest_marker("lab") is not None
    if with_lab:
        request.getfixturevalue("session_lab")
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    for server in (SERVERS.get(value) for value in params.values() if isinstance(value, str)):
        if server:
            request.getfixturevalue(server)
    environment, directory = dict(os.environ), Path.cwd()
    dispositions = {number: signal.getsignal(number) for number in signal.valid_signals()}
    children, fds, litter = processes.children(os.getpid()).keys(), _own_fds(), _litter()
    threads = set(threading.enumerate())
    lab_litter = {path for lab in _sessions for path in lab.litter()}
    yield
    for number, before in dispositions.items():
        # an agent's own code, run in this process, ends with SIGPIPE at its default: the next test dies of it
        if before is not None and signal.getsignal(number) != before:
            signal.signal(number, before)
    procs.adopt_no_more()  # an agent's own code adopts orphans; here those would be nodes, by design nobody's children
    deadline = time.monotonic() + _patience()
    complaints = []

    new = [
        process
        for pid in processes.children(os.getpid()).keys() - children - _of_labs("children")
        if (process := processes.find(pid))
    ]
    if new:  # a node that loses its parent while the code under test adopts orphans becomes a child of this process
        nodes = {process.pid for lab in _sessions for process in lab.nodes()}
        new = [process for process in new if process.pid not in nodes]
    left = _wait(new, deadline)
    complaints += [f"child process {process}" for process in left]
    for lab in _sessions if with_lab else ():
        jobs = processes.wait_none(lab.jobs, max(0.0, deadline - time.monotonic()))
        complaints += [f"process of the lab {process}" for process in jobs]
        files = _until_none(lambda lab=lab: set(lab.litter()) - lab_litter, deadline)  # type: ignore[misc]
        complaints += [f"temporary file of the lab {_shown(path)}" for path in files]
    for thread in set(threading.enumerate()) - threads:
        if isinstance(thread, threading._DummyThread):  # started by _thread; cannot be joined
            task = Path(f"/proc/self/task/{thread.native_id}")
            complaints += [
                f"thread {name}"
                for name in _until_none(lambda t=task: {t} if t.exists() else set(), deadline)
            ]  # type: ignore[misc]
        elif not _is_labs(thread):
            thread.join(max(0.0, deadline - time.monotonic()))
            complaints += [f"thread {thread.name}"] if thread.is_alive() else []
    if _new_fds(fds):
        gc.collect()  # a cycle may still hold a file; its ResourceWarning then fails the test by itself
    now = _until_none(lambda: _new_fds(fds), deadline)
    complaints += [f"descriptor {fd} -> {target}" for fd, target in now.items()]
    files = _until_none(lambda: _litter() - litter, deadline)
    complaints += [f"temporary file {_shown(Path(tempfile.gettempdir(), name))}" for name in files]
    ours = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    if ours != {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}:
        complaints.append("a changed environment")
    if Path.cwd() != directory:
        complaints.append("another working directory")
    if complaints:
        # the next test shall not pay for this one
        for process in [*left, *(job for lab in _sessions for job in lab.jobs())]:
            processes.kill(process.pid)
        pytest.fail("the test left behind: " + "; ".join(complaints), pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def leaves_no_process_behind() -> Iterator[None]:
    """Orphans are seen once for a file of tests: to look at all processes takes milliseconds."""
    before = {process.pid for process in processes.marked(RUN)}
    yield

    def left() -> list[processes.Process]:
        return [
            process
            for process in processes.marked(RUN)
            if process.pid not in before
            and not process.stays  # nodes and what is theirs end by themselves, when they are idle
            and not processes.is_below(process, os.getpid())  # the watch of each test has seen to it
        ]

    if strays := processes.wait_none(left, _patience()):
        for process in strays:
            processes.kill(process.pid)
        pytest.fail(f"left behind: {'; '.join(map(str, strays))}", pytrace=False)


def _shown(path: Path) -> str:
    """Return a path; for a report of a defect with its text, for the file is removed with its lab."""
    return (
        f"{path}\n{path.read_text(errors='replace')}"
        if "defect" in path.name and path.is_file()
        else str(path)
    )


def _of_labs(what: str) -> set[int]:
    return {item for lab in _sessions for item in getattr(lab, what)}


def _new_fds(before: dict[int, str]) -> dict[int, str]:
    known = _of_labs("fds")
    return {fd: at for fd, at in _own_fds().items() if before.get(fd) != at and fd not in known}


def _until_none(look: Callable[[], T], deadline: float) -> T:
    """Look until nothing is found or the deadline is over; return the last result. Nodes remove files late."""
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _wait(left: list[processes.Process], deadline: float) -> list[processes.Process]:
    return processes.wait_gone(left, max(0.0, deadline - time.monotonic())) if left else []

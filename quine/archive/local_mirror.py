"""A local mirror of the sessions that are kept in the shared files, in the form of a data directory.

Laws
1. Local sessions come first; the store is asked only for others.
2. Content of the store is foreign: only the names of sessions and of their results become paths. Each file is in the
   mirror whole or not at all.
3. A file that has not changed in the store is not fetched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quine.archive import policy
from quine.archive.upload import RESULTS, Copies
from quine.base import dirs
from quine.base.errors import LOST, Failure
from quine.base.sessions import TAPE, is_session
from quine.files.api import BLOCK, Entry, Tier
from quine.tape import reader, registry
from quine.tape.registry import Agent
from transport import quickjson
from transport.address import user_directory
from transport.atomic import Aside, write_aside

AT_ONCE = 8  # files fetched at one time
LOOK = 2.0  # seconds between two checks of an awaited session
SILENCE = 300.0  # seconds without a heartbeat of its archive daemon, after which a session is lost
LATE = 15.0  # seconds to wait for the output after the end of the tape: the parent may be busy or killed
VERSIONS = "versions"


def mirror() -> Path | None:
    """Bring the mirror up to date, and return its directory; None if sessions are not kept. Raises Failure."""
    if not policy.wanted(os.environ):
        return None
    from quine.archive.daemon import store

    try:
        tier = store()
        try:
            return _made_equal(tier)
        finally:
            tier.close()
    except OSError as error:
        raise _failed(error) from None


def holding(folder: Path, session: str) -> Path:
    """Return `folder`, or the mirror if only that has a session with this prefix, or any session at all; "" is any."""
    if reader.matching(folder, session):
        return folder
    there = mirror()
    wanted = session if reader.files(folder) else ""
    return there if there and reader.matching(there, wanted) else folder


def find(text: str) -> list[Agent]:
    """The agents in the shared files whose id begins with `text`."""
    there = mirror()
    return _found(there, text) if there else []


def _found(there: Path, text: str) -> list[Agent]:
    found = registry.find(text, str(there))
    # The record is not trusted: it must not name a process of this machine.
    return [agent._replace(kept=True, pid=0, started=0, boot="", supervisor=0) for agent in found]


def ended(agent: Agent, deadline: float) -> Agent | None:
    """Wait for an agent's end and output in the store; None if that is later than `deadline` (monotonic clock).

    Output that is overdue by LATE is not waited for. Raises Failure (LOST) if its tree sends no heartbeat.
    """
    heard, beat, told = time.monotonic(), b"", float("inf")
    while not _is_over(agent):
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        if _is_told(agent):
            told = min(told, time.monotonic())
            if time.monotonic() - told > LATE:
                return agent
        elif time.monotonic() - heard > SILENCE:
            text = f"{agent.id}: nothing has been heard of its tree for {SILENCE:.0f} s"
            raise Failure(LOST, text, "its machine is off, or cannot reach the files tier; quine wait again")
        time.sleep(min(LOOK, left))
        try:
            there = mirror()
        except Failure:  # unreachable from here: that says nothing of the other side
            heard = time.monotonic()
            continue
        if there is None:
            continue
        agent = next((one for one in _found(there, agent.id) if one.id == agent.id), agent)
        with contextlib.suppress(OSError):
            now = (there / f"{agent.root or agent.session}{policy.BEAT}").read_bytes()
            # only a change counts: the clocks differ
            heard, beat = (heard if now == beat else time.monotonic()), now
    return agent


def _is_told(agent: Agent) -> bool:
    return agent.end().state not in ("lost", "unknown")


def _is_over(agent: Agent) -> bool:
    """Return whether the status of a job is there too. It comes last: the tape may be there before the output."""
    return _is_told(agent) and (not agent.directory or os.path.exists(f"{agent.directory}/status"))


def save(folder: Path, session: str) -> tuple[int, str]:
    """Copy a tree of this data directory, "" is all. Return the number of files and the store's URL. Raises Failure."""
    from quine.archive.daemon import store

    root = reader.find(folder, session).root if session else ""
    try:
        tier = store()
        return Copies(tier, str(folder), registry.state_directory(), root).round(), tier.url
    except OSError as error:
        raise _failed(error) from None


def _failed(error: OSError) -> Failure:
    from quine.files.cli.pool import failure

    told = failure(error)
    return Failure(told.status, f"the files tier: {told.detail}", told.hint or "see QUINE_FS")


def _made_equal(tier: Tier) -> Path:
    digest = hashlib.sha256(tier.url.encode(errors="surrogateescape")).hexdigest()[:16]
    folder = Path(user_directory("cache"), "quine", "tier", digest)
    dirs.make(str(folder))
    known = _versions(folder)
    found = dict(_there(tier))
    for name in known.keys() - found.keys():
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    new = [
        entry
        for name, entry in found.items()
        if known.get(name) != entry.version or not (folder / name).exists()
    ]
    if new:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            fetched = [name for name in pool.map(lambda entry: _fetch(tier, entry, folder), new) if name]
        known |= {name: found[name].version for name in fetched}
    write_aside(str(folder / VERSIONS), {name: known[name] for name in found if name in known})
    return folder


def _there(tier: Tier) -> list[tuple[str, Entry]]:
    """List the kept files: the name in a data directory, and the entry in the store."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in tier.list(policy.PLACE):
            name = entry.path.rpartition("/")[2]
            session, _, kind = name.partition(".")
            if entry.is_file and f".{kind}" in (TAPE, policy.BEAT) and is_session(session):
                found.append((name, entry))
    with contextlib.suppress(FileNotFoundError):
        for job in tier.list(f"{policy.PLACE}/jobs"):
            session = job.path.rpartition("/")[2]
            if is_session(session):
                for entry in tier.list(job.path):
                    name = entry.path.rpartition("/")[2]
                    if entry.is_file and name in RESULTS:
                        found.append((f"jobs/{session}/{name}", entry))
    return found


def _fetch(tier: Tier, entry: Entry, folder: Path) -> str:
    """Fetch one file. Return its name in the mirror, "" if it is gone from the store."""
    name = entry.path.removeprefix(f"{policy.PLACE}/")
    target = folder / name
    dirs.make(str(target.parent))
    try:
        with tier.open(entry.path) as reader, Aside(str(target), 0o600, own=True) as file:
            while block := reader.read(BLOCK):
                file.write(block)
            file.commit()
    except FileNotFoundError:
        return ""
    return name


def _versions(folder: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        told = quickjson.loads((folder / VERSIONS).read_bytes())
        return {str(name): str(version) for name, version in told.items()}
    return {}

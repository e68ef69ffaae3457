"""Sessions that are kept in the files tier, as a data directory of this machine: a mirror of what is there.

Laws
1. What is here comes first; the tier is asked for what is not.
2. What comes from there is foreign: only the names of sessions and of their results become paths, and each file is
   there whole or not at all.
3. What has not changed over there is not fetched again.
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
from quine.base.atomic import write_aside
from quine.base.errors import LOST, Failure
from quine.base.sessions import is_session
from quine.files.api import BLOCK, Entry, Tier
from quine.tape import reader as tapes
from quine.tape import registry
from quine.tape.registry import Agent
from transport.wire import quickjson

AT_ONCE = 8  # files that are fetched at one time
LOOK = 2.0  # seconds between two looks at a session whose end is waited for
SILENCE = 300.0  # seconds without a sign of life of its keeper, after which it is lost
LATE = 15.0  # seconds after the tape has told the end, for the output: its parent may be busy, or was killed
VERSIONS = "versions"


def mirror() -> Path | None:
    """The directory, made to be what is in the tier now; None where nothing is kept there. Failure."""
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
    """`folder`, or the mirror where only that has a session which begins so, or any at all; "" is any."""
    here = [path.name for path in tapes.files(folder)]
    if any(name.startswith(session) for name in here):
        return folder
    there = mirror()
    wanted = session if here else ""
    return there if there and any(path.name.startswith(wanted) for path in tapes.files(there)) else folder


def find(text: str) -> list[Agent]:
    """The agents in the tier that an id, or its beginning, may mean."""
    there = mirror()
    return _found(there, text) if there else []


def _found(there: Path, text: str) -> list[Agent]:
    found = registry.find(text, str(there))
    # Whose word that is we do not know: no process of this machine is meant by it.
    return [agent._replace(kept=True, pid=0, started=0, boot="", supervisor=0) for agent in found]


def ended(agent: Agent, deadline: float) -> Agent | None:
    """The agent once its end and its output are in the tier; None where that is later than `deadline` (of the
    monotonic clock). Failure (LOST) where nothing is heard of its tree.
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
        except Failure:  # away for a while, from here: that says nothing of the other side
            heard = time.monotonic()
            continue
        if there is None:
            continue
        agent = next((one for one in _found(there, agent.id) if one.id == agent.id), agent)
        with contextlib.suppress(OSError):
            now = (there / f"{agent.root or agent.session}{policy.BEAT}").read_bytes()
            # that it changes is what counts, for clocks differ
            heard, beat = (heard if now == beat else time.monotonic()), now
    return agent


def _is_told(agent: Agent) -> bool:
    return agent.end().state not in ("lost", "unknown")


def _is_over(agent: Agent) -> bool:
    """Of a job the status comes last: what its tape tells may be there before its output."""
    return _is_told(agent) and (not agent.directory or os.path.exists(f"{agent.directory}/status"))


def save(folder: Path, session: str) -> tuple[int, str]:
    """Copy a tree of this data directory, "" is all, into the tier: how many files, and where that is. Failure."""
    from quine.archive.daemon import store

    root = tapes.find(folder, session).root if session else ""
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
    folder = Path(os.path.expanduser("~/.cache/quine/tier")) / digest
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
    """What is kept: names in a data directory, and where they are in the tier."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in tier.list(policy.PLACE):
            name = entry.path.rpartition("/")[2]
            session, _, kind = name.partition(".")
            if entry.is_file and f".{kind}" in (".jsonl", policy.BEAT) and is_session(session):
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
    """Its name there, "" where it was gone again."""
    name = entry.path.removeprefix(f"{policy.PLACE}/")
    target = folder / name
    dirs.make(str(target.parent))
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tier.open(entry.path) as reader, open(aside, "wb") as file:
            while block := reader.read(BLOCK):
                file.write(block)
        aside.rename(target)
    except FileNotFoundError:
        return ""
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return name


def _versions(folder: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        told = quickjson.loads((folder / VERSIONS).read_bytes())
        return {str(name): str(version) for name, version in told.items()}
    return {}

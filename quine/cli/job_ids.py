"""The job that an id or its beginning means to a verb: here, in the shared files, or on hosts.

Laws
1. There is exactly one, or nothing is done. An unknown or an ambiguous id is exit 2; an id that may be on a host that
   cannot be asked is 69.
2. An id that is not found here is looked for on the hosts of the inventory (quine/jobs/remote.py); first on the one on
   which it was started from here, if that is noted (quine/tape/places.py). No other host is asked, unless that one
   answers that it does not know the job: it may have another address now.
"""

from __future__ import annotations

import contextlib
import os

from quine.base.cli_options import RunOptions
from quine.base.errors import Failure, Misconfigured
from quine.base.sessions import SHORT
from quine.tape import registry
from quine.tape.registry import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.jobs.remote import Remote


def one(verb: str, folders: tuple[str, ...], text: str, options: RunOptions) -> Agent | Remote:
    """Return the one job that an id or its beginning means to a verb.

    Raise Misconfigured if there is not exactly one, or another Failure if a host that may have it did not answer.
    """
    where = options.on
    found: list[Agent | Remote] = []
    away: Failure | None = None
    if where in ("", "local") and text:
        found += _here(folders, text)
    without: list[str] = []  # noted hosts that do not know it
    if not found and where == "" and len(text) >= SHORT and _may_be_an_id(text):
        noted, without = _noted(text, options)
        found += noted
    if not found and where == "" and _may_be_an_id(text):
        from quine.archive import policy

        if policy.wanted(os.environ):
            from quine.archive import local_mirror

            try:
                found += local_mirror.find(text)
            except Failure as failure:
                away = failure  # it may still be on a host
    # A job of another machine with the same home is found here, too; its supervisor's machine knows it better.
    strange = (
        len(found) == 1 and isinstance(found[0], Agent) and found[0].supervisor and not found[0].known_here
    )
    if (not found or strange) and _may_be_an_id(text) and where != "local":
        from quine.jobs import remote

        try:
            found = [*remote.find(text, where, options, verb in ("wait", "logs"))] or found
        except remote.NotAsked as silent:
            silent.hint = f"try again when it can be reached, or name the host: quine {verb} --on HOST {text}"
            away = away or silent
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(job.id for job in found[:3])
        raise Misconfigured(
            f"{len(found)} jobs begin with {text}", f"{some}{', …' if len(found) > 3 else ''}"
        )
    if away:
        raise away
    near = sorted(
        registry.everyone(*folders), key=lambda agent: (_common(agent.id, text), agent.begun), reverse=True
    )
    hint = f"known are {', '.join(agent.id for agent in near[:3])}{', …' if len(near) > 3 else ''}"
    detail, cure = _asked(text, where, options, without)
    raise Misconfigured(f"no such job: {text}{detail}", (hint if near else _nowhere(folders[0])) + cure)


def _asked(text: str, where: str, options: RunOptions, without: list[str]) -> tuple[str, str]:
    """Return the hosts that were asked for an unknown id, for the message; why none was, for the hint."""
    if where == "local":
        return "", ""
    if not _may_be_an_id(text):
        return "", "; an id has only the digits 0-9 and a-f, so no host was asked"
    from quine.jobs import remote

    names = list(dict.fromkeys([*without, *remote.hosts(where, options)]))
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"; all hosts that were asked have answered: {shown}" if names else "", ""


def _here(folders: tuple[str, ...], text: str) -> list[Agent]:
    """Return matches on this machine: by their tapes, or alive with tapes in another directory, or none here."""
    found = registry.find(text, *folders)
    if _may_be_an_id(text) and (not found or any(agent.verdict().state == "unknown" for agent in found)):
        from quine.jobs import census

        living = [one for one in census.look(folders) if one.agent.id.startswith(text)]
        return census.merge(found, living)
    return found


def _noted(text: str, options: RunOptions) -> tuple[list[Agent | Remote], list[str]]:
    """Return matches that are noted: with tapes in other directories of this user, or as commands detached on hosts.

    Also the noted hosts that do not know theirs.
    """
    from quine.tape import places

    here = registry.find(text, *places.having(text))
    there, without = _still_there(text, options)
    return [*here, *(job for job in there if job.id not in {agent.id for agent in here})], without


def detached_on(text: str, options: RunOptions) -> dict[str, list[str]]:
    """Return by host the commands detached there from here whose id begins so. Hosts in no inventory are left out."""
    from quine.jobs import foreign, remote
    from quine.tape import places
    from transport.errors import Refused

    there: dict[str, list[str]] = {}
    for job, host in places.hosts(text):
        if foreign.is_job(job):
            there.setdefault(host, []).append(job)
    for host in list(there):  # each once: the inventory is read for it
        known = False
        with contextlib.suppress(Misconfigured, Refused, ModuleNotFoundError):
            known = remote.hosts(host, options) == [host]
        if not known:
            del there[host]
    return there


def _still_there(text: str, options: RunOptions) -> tuple[list[Remote], list[str]]:
    """Return the commands detached from here whose id begins so, and the noted hosts that do not know theirs.

    Only these hosts are asked. One that does not answer counts as having its command: the verb tells the fault.
    """
    from quine.jobs import remote

    found: dict[str, Remote] = {}
    there = detached_on(text, options)
    for host, jobs in there.items():
        facts, silent = remote.listed([host], options.replace(on=host), text)
        known = {fact["id"] for fact in facts if fact["state"] != "unknown" and fact["kind"] != "proxy"}
        for job in jobs:
            if silent or job in known:
                found.setdefault(job, remote.Remote(host, job, noted=True))
    return list(found.values()), [host for host in there if host not in {job.host for job in found.values()}]


def _nowhere(folder: str) -> str:
    """Return the hint on the places that were searched, for a caller without any job here."""
    from quine.archive import policy

    if policy.wanted(os.environ):
        return (
            f"{folder} has none, and the files tier not this one; one that has just begun is there in seconds"
        )
    return f"{folder} has none; see --data-dir, and QUINE_FS for what another machine has begun"


def _may_be_an_id(text: str) -> bool:
    """Return False if no id begins so; then no host is asked."""
    return 0 < len(text) <= 36 and all(c in "0123456789abcdef-" for c in text)


def _common(one: str, other: str) -> int:
    """Return how many characters two ids share at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))

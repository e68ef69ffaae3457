"""The verbs ps, wait, logs, kill and attach: agents that left a tape, jobs that left a directory, here and elsewhere.

Laws
1. Standard library only: these are called in loops. Options may stand before and after the ids.
2. Nothing is done to a pid: a process that is waited for or signalled is held by a pidfd (quine/tape/registry.py), or
   by its supervisor.
3. All ids are known before anything is done, or nothing is done (quine/cli/job_ids.py).
4. The verb on a job of a host runs over there (quine/jobs/remote.py).
"""

from __future__ import annotations

import os
import signal
import time

from quine.base import data_directory, dirs, procs, sizes
from quine.base.cli_options import RunOptions, as_words, parse_around, rows
from quine.base.errors import DEADLINE, FAILED, LOST, OK, Failure, Misconfigured, complain
from quine.cli import job_ids
from quine.tape import registry
from quine.tape.registry import Agent
from transport.status import Status, signal_name, signal_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.jobs.remote import Remote

WRITTEN = 0.5  # seconds for a parent to record how a child ended, after it has reaped it
WAKING = (signal.SIGTERM, signal.SIGHUP)  # a stopped process takes them when it continues, so it is continued


def main(verb: str, words: list[str]) -> int:
    """Run one of the verbs; return the exit status."""
    if verb == "kill":
        words = _signal_as_option(words)
    options, ids = parse_around(verb, words)
    if options.help:
        from quine.cli.help import usage

        print(usage(verb))
        return OK
    folders = folders_of(options)
    if verb == "ps":
        if ids:
            raise Misconfigured("ps takes no id", "quine ps --all")
        from quine.cli.ps_table import ps

        return ps(folders, options)
    if verb == "kill" and options.list:
        return _list_signals(ids)
    if verb == "kill":
        _signal(options)  # refused before any host is asked for the job
    if not ids:
        raise Misconfigured("no id", f"quine ps --all; quine {verb} ID")
    if verb in ("logs", "attach"):
        if len(ids) > 1:
            raise Misconfigured(f"{verb} takes one id")
        return _output(verb, job_ids.one(verb, folders, ids[0], options), options)
    begun = time.monotonic()
    jobs = [job_ids.one(verb, folders, text, options) for text in ids]
    return _wait(jobs, folders, options, begun) if verb == "wait" else _kill(jobs, options)


def folders_of(options: RunOptions) -> tuple[str, ...]:
    """Return the directories of tapes, and of detached jobs."""
    folder, state = data_directory.checked(option=options.data_dir), registry.state_directory()
    try:
        same = os.path.realpath(folder) == os.path.realpath(state)
    except OSError:
        same = False  # the current directory has been removed, and with it all that was there
    return (folder,) if same else (folder, state)


def _output(verb: str, job: Agent | Remote, options: RunOptions) -> int:
    """Run logs or attach, here or on the job's host; return the exit status."""
    if not isinstance(job, Agent):
        from quine.jobs import batch_view, remote

        passed = as_words(options, ("from", "offset", "tail", "follow", "stderr", "both", "stdin"))
        return remote.show([verb, *passed], job, options, batch_view.far() if verb == "attach" else {})
    from quine.jobs import attach_logs
    from quine.jobs.client import leave

    if verb == "logs":
        return attach_logs.logs(job, options)
    return leave(attach_logs.attach(job, options))


def _adrift(agent: Agent) -> str:
    """Return the host of a detached agent that is lost here, and may still run there; "" for any other agent."""
    on = registry.record(agent.directory).get("on") if agent.directory else None
    return on if isinstance(on, str) and agent.verdict().state == "lost" else ""


# -- wait ------------------------------------------------------------------------------------------


def _wait(jobs: list[Agent | Remote], folders: tuple[str, ...], options: RunOptions, begun: float) -> int:
    """Wait for all; return the exit status of the last, as the shell's wait does. The time counts from `begun` on."""
    deadline = begun + sizes.seconds(options.timeout or "inf", "--timeout")
    above = procs.ancestors()
    agents = [job for job in jobs if isinstance(job, Agent)]
    for agent in agents:
        if agent.alive and agent.pid in above:
            raise Misconfigured(f"{agent.id} waits for this command, so it cannot be waited for by it")
    bring = _bringer(agents, options)
    pidfds = [fd for agent in agents for fd in agent.holds()]
    try:
        if not procs.wait(pidfds, max(0.0, deadline - time.monotonic())):
            return DEADLINE
    finally:
        for fd in pidfds:
            os.close(fd)
    status = OK
    for job in jobs:
        if not isinstance(job, Agent):
            from quine.jobs import remote

            answer = remote.wait(job, options, deadline)
            status = answer.code
            if status == DEADLINE and time.monotonic() >= deadline:
                return DEADLINE
            if answer.state == "exited":  # else the job may run
                status = bring(job, status)
            continue
        if job.kept:
            from quine.archive import local_mirror

            try:
                over = local_mirror.ended(job, deadline)
            except Failure as silent:
                complain(silent.detail, silent.hint)
                status = silent.status
                continue
            if over is None:
                return DEADLINE
            job = over
        else:
            job = registry.fresh(job, *folders)  # its tape may have recorded the end since the wait began
        end = _end(job)
        status = end.code
        if end.state in ("exited", "signaled"):
            if job.supervisor and end.detail:
                complain(f"{job.id}: {end.detail}", end.hint)
            status = bring(job, status)
        else:  # a lost job may have made a part of its result, which stays there
            on = _adrift(job)
            unknown = f"it may still run there: quine ps --on {on}; quine kill {job.id}" if on else ""
            complain(f"{job.id}: {end.state}{': ' + end.detail if end.detail else ''}", end.hint or unknown)
    return status


def _bringer(agents: list[Agent], options: RunOptions) -> Callable[[Agent | Remote, int], int]:
    """Return a function that brings back the --returns of an ended job, and returns the job's exit status.

    It becomes 74 if they did not come; a status of 0 becomes 1 if one of them is not there.
    """
    if not options.returns:
        return lambda _, code: code
    for agent in agents:
        if not agent.supervisor:
            raise Misconfigured(f"--returns: {agent.id} is not detached", "an agent has --returns of its own")
    from quine.jobs.client import mover
    from quine.jobs.detach import verb_there

    stage = mover(options)

    def bring(job: Agent | Remote, code: int) -> int:
        status = Status("exited", code)
        if isinstance(job, Agent):
            host, out = "local", verb_there(stage.out, "local", options)
            out.cwd = str(registry.record(job.directory).get("cwd"))
        else:
            host, out = job.host, verb_there([*stage.out, job.id], job.host, job.asked(options))
        if isinstance(job, Agent) and os.path.realpath(str(out.cwd)) == os.path.realpath(dirs.here()):
            ended = ""  # all that was made is here
            stage.in_place([]).judged(status)
        elif isinstance(job, Agent) and job.stopped:
            ended = ""
            stage.unfinished(status, str(out.cwd))
        else:
            ended = stage.bring(out, status)
        if status.detail:
            complain(status.detail, status.hint, host)
        if ended in ("INT", "TERM", "HUP"):
            from transport.status import die_of

            die_of(ended)  # a signal to this process, which was passed on: the other jobs are left out
        return status.code

    return bring


def _end(agent: Agent) -> Status:
    """Return how an agent ended; wait up to WRITTEN, as its parent may be about to record it."""
    deadline = time.monotonic() + WRITTEN
    while (end := agent.end()).code == LOST and agent.known_here and time.monotonic() < deadline:
        time.sleep(0.01)
    return end


# -- kill ------------------------------------------------------------------------------------------


def _signal_as_option(words: list[str]) -> list[str]:
    """Turn `-TERM` and `-9`, as in kill(1), into --signal at any place before `--`; unknown names too."""
    end = words.index("--") if "--" in words else len(words)
    return [f"--signal={word[1:]}" if _means_signal(word) else word for word in words[:end]] + words[end:]


def _means_signal(word: str) -> bool:
    if len(word) < 2 or word[0] != "-" or word[1] == "-":
        return False
    try:
        return bool(signal_number(word[1:]))
    except ValueError:
        return all(word[1] != row[1] for row in rows("kill"))  # -0, too


def _signal(options: RunOptions) -> tuple[str, int]:
    """Return the name and the number of the signal to send."""
    name = options.signal or "TERM"
    try:
        return name, 0 if name == "0" else signal_number(name)
    except ValueError as error:
        raise Misconfigured(str(error), "quine kill -l") from None


def _kill(jobs: list[Agent | Remote], options: RunOptions) -> int:
    name, number = _signal(options)
    status = OK
    for job in jobs:
        on = _elsewhere(job) if isinstance(job, Agent) else ""
        if isinstance(job, Agent) and not on:
            status = _signalled(job, number) or status
            continue
        from quine.jobs import remote

        if isinstance(job, Agent):
            there = remote.running(job.id, on, options)
            if there is None:
                complain(f"{job.id}: {f'it does not run on {on} now' if job.alive else 'it has ended'}")
                status = FAILED
                continue
            job = there
        status = remote.call(["kill", "-s", name], job, options) or status
    return status


def _signalled(agent: Agent, number: int) -> int:
    """Signal a process of this machine; return the exit status."""
    fd = agent.hold()
    if agent.supervised and number:  # also without its process: it may wait for room on a full disk
        from quine.jobs import attach_logs

        if fd >= 0:
            os.close(fd)
        if attach_logs.send_signal(agent, number):
            return OK
        fd = agent.hold()
    if fd < 0:
        complain(f"{agent.id}: {'it has ended' if agent.known_here else 'its process is not known here'}")
        return FAILED
    try:
        stopped = agent.state() == "stopped"
        signal.pidfd_send_signal(fd, number)
        if number in WAKING and stopped:
            signal.pidfd_send_signal(fd, signal.SIGCONT)
    except OSError as error:
        complain(f"{agent.id}: {(error.strerror or '').lower()}")
        return FAILED
    finally:
        os.close(fd)
    return OK


def _elsewhere(agent: Agent) -> str:
    """Return the host of a job that no process here stands for: an item of a batch, or an agent whose proxy is lost."""
    from quine.jobs import batch_state

    state = batch_state.of_process(agent.pid) if agent.alive else None
    return agent.host if state and state["id"] != agent.id else _adrift(agent)


def _list_signals(names: list[str]) -> int:
    """Print all names, or for each number (an exit status over 128, too) its name and for each name its number."""
    if not names:
        print(" ".join(signal_name(number) for number in sorted(signal.valid_signals()) if number < 32))
        return OK
    for name in names:
        try:
            if name.isdigit():
                print(signal_name(signal_number(str(int(name) - 128 if int(name) > 128 else int(name)))))
            else:
                print(signal_number(name))
        except ValueError:
            raise Misconfigured(f"no such signal: {name!r}", "quine kill -l") from None
    return OK

"""`quine node --stage`: staging on the host of the job, before the command and after it.

    node --stage in KEY -- CMD…      lay out the files, then become CMD
    node --stage agent KEY -- WORDS… lay out the files, then become quine with WORDS
    node --stage out KEY [JOB]       send the returns from this directory, or from that of a detached job
    node --stage unbegun NAME        0 if the command of a job has certainly not begun, by the note of this name
    node --stage clean N -- NAME…    remove N names or patterns below this directory, and of the others empty ones, but
                                     not what is left out of results; clean-sent: of a batch without results

Laws
1. Before the command, this process becomes it, so nothing stands between the command and its streams, signals and
   status. After it, a separate process sends the returns, because a killed command can send nothing.
2. Failures are reported to the caller, which prints them; this process prints only those that cannot reach the caller.
3. The scan of this directory runs while the caller scans its own files.
4. A fatal signal leaves nothing behind: the first takes effect after the clean-up, later ones are ignored.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from quine.base.data_directory import named
from quine.base.errors import NOT_STARTED, complain, say
from quine.files.exclusions import Left, Places
from quine.staging import scan
from quine.staging.apply import Layout
from quine.staging.content import AGAIN, KNOWN, LONGEST_BLOB, ROUNDS, Broken, Changed, Feed, error_text, tell
from quine.staging.manifest import BadManifest, Manifest, digest_of, parse
from quine.staging.notes import left_alone
from quine.staging.renames import recover
from quine.staging.shared_directory import alone, identity
from quine.staging.source import Tree, bits, check_read
from quine.staging.store import Objects, Pack
from transport.errors import RequestError
from transport.rpc.call import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from quine.staging.scan import Scan
    from transport.rpc.outgoing import Asked

    class Detached(Protocol):
        """`quine.jobs.detach`."""

        def prepare(self, words: list[str]) -> bool: ...
        def give_up(self, words: list[str]) -> None: ...


MOST_LEFT = 100  # names that are left out below the top, and told: a message is bounded
NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
FATAL = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
ELSEWHERE = "choose another directory with --cwd, or workdir in the inventory"


class _Ended(BaseException):
    """A fatal signal, whose number is the text, arrived while temporary files exist."""


def main(words: list[str], detached: Callable[[], Detached]) -> int:
    """Run one phase: return the exit status, or become the command. `detached` loads the module of detached jobs."""
    phase, key, command = words[0], words[1], words[3:]
    if phase == "unbegun":
        from quine.staging import notes

        return 0 if notes.is_unbegun(key) else 1
    if phase in ("clean", "clean-sent"):
        from quine.staging.shared_directory import clean

        return clean(command[: int(key)], command[int(key) :], keeps=phase == "clean")
    for number in FATAL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        relay = Relay.from_environment()
        if relay is None:
            raise RequestError("this process has no origin")
        if phase == "out":
            _give_back(relay, key, *words[2:])
            relay.close()
            return 0
        done = _prepared(relay, key, command if phase == "agent" else [], detached)
        relay.close()
        if done:
            return _become(phase, command)
        _note(phase)
        return NOT_STARTED
    except _Ended as ended:
        from transport.status import die_of

        _note(phase)
        die_of(str(ended))
        return 128 + int(str(ended))
    except RequestError as error:
        if not str(error).startswith((AGAIN, KNOWN)):
            complain(f"staging: {error}", "", os.environ.get("QUINE_NODE_NAME", ""))
        _note(phase)
        return NOT_STARTED


def _note(phase: str) -> None:
    """The command has not begun."""
    from quine.staging import notes
    from transport import inherit

    if phase != "out" and (capability := inherit.read().get("capability")):
        notes.note_unbegun(str(capability))


def _end(number: int, _frame: object) -> None:
    for each in FATAL:
        signal.signal(each, _do_nothing)  # a second signal would interrupt the clean-up
    raise _Ended(number)


def _do_nothing(number: int, _frame: object) -> None:
    """Do nothing. Not SIG_IGN: Python complains on stderr of a signal that was pending when that was set."""


def _become(phase: str, command: list[str]) -> int:
    from transport.status import restore_signals

    for number in FATAL:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)
    restore_signals()
    try:
        if phase == "agent":
            from transport.this_build import own_command

            command = [*own_command(), *command]
        os.execvp(command[0], command)
    except (FileNotFoundError, NotADirectoryError):
        complain(f"command not found: {command[0]}", "", os.environ.get("QUINE_NODE_NAME", ""))
        return 127
    except OSError as error:
        complain(f"cannot execute {command[0]}: {error.strerror}", "", os.environ.get("QUINE_NODE_NAME", ""))
        return 126


# -- before the command ----------------------------------------------------------------------------


def _prepared(relay: Relay, key: str, words: list[str], detached: Callable[[], Detached]) -> bool:
    """Stage the files. Return whether the command may start.

    A job to be detached gets them in its own directory, and none if it was started already.
    """
    if words[:2] != ["run", "--detach"]:
        return _staged(relay, key)
    detach = detached()
    done = not detach.prepare(words)
    try:
        done = done or _staged(relay, key)
    finally:
        if not done:
            detach.give_up(words)
    return done


def _staged(relay: Relay, key: str) -> bool:
    """Stage the files in this directory. Return False if that failed and the caller knows why.

    Raises RequestError; the caller knows the reason if the text begins with AGAIN or KNOWN.
    """
    place = scan.key_of(os.getcwd(), key)
    record = "" if key == scan.ONCE else place
    objects = Objects()
    mask = os.umask(0)
    try:
        with objects.turn("place", place):
            foreign = recover(b".")
            if foreign and not scan.recall(record).digest:  # once: there is a record from then on
                say(f"quine: {os.environ.get('QUINE_NODE_NAME', '')}: {left_alone(foreign)}\n")
            for left in reversed(range(ROUNDS)):
                try:
                    return _lay_out(relay, record, objects)
                except RequestError as error:
                    if not left or not str(error).startswith(AGAIN):
                        raise
                except Broken as error:
                    if not left:
                        raise RequestError(str(error)) from None
            return False
    finally:
        os.umask(mask)
        objects.close()


def _lay_out(relay: Relay, place: str, objects: Objects) -> bool:
    record = scan.recall(place)
    with relay.stream("stage") as asked:
        tell(asked, {"say": "in", "has": record.digest})
        found = _scan(record.roots)
        feed = Feed(asked)
        try:
            message, packed = feed.hear(LONGEST_BLOB)
            digest, own = str(message.get("tree")), message.get("own")
            here = identity() if own is not None else ""
            if not digest or digest != record.digest or found.hash != record.hash:
                _make(asked, feed, place, objects, digest, packed, own, here)
            if own is None:
                tell(asked, {"say": "done"})
            else:
                _begin(asked, feed, objects, here)
        except BrokenPipeError:
            return False  # the caller has given up, and knows why
        except (OSError, BadManifest) as error:
            asked.close()
            if not isinstance(error, OSError):
                return _confess(relay, str(error))
            cure = ELSEWHERE if error.errno in NO_PLACE else getattr(error, "cure", "")
            return _confess(relay, error_text(error), cure)
        asked.end()
    return True


def _begin(asked: Asked, feed: Feed, objects: Objects, here: str) -> None:
    """Tell the caller that this job has its files, and wait until it knows: its command may write results then.

    Not while another job lays out its files by what it was told before: it would do so over these results.
    """
    with alone(objects, here):
        tell(asked, {"say": "done", "place": here})
        feed.hear()


def _confess(relay: Relay, why: str, cure: str = "", **more: str) -> bool:
    """Report a failure to the caller, and return False. A new request, for the other may be carrying contents."""
    with relay.stream("stage") as asked:
        tell(asked, {"say": "failed", "why": why, "cure": cure, **more})
        asked.end()
        asked.read(1)
    return False


def _scan(roots: list[bytes]) -> Scan:
    return scan.scan([(root or b".", root) for root in roots])


def _make(
    asked: Asked,
    feed: Feed,
    place: str,
    objects: Objects,
    digest: str,
    packed: bytes,
    own: object,
    here: str,
) -> None:
    """Lay out the entries that are missing or differ, and record the result.

    `own`: files that are laid out whatever others do with them; `here`: the identity of the directory. Raises OSError,
    BadManifest, Broken, RequestError.
    """
    known: dict[bytes, tuple[bytes, bytes]] = {}
    before = scan.recall(place).read()
    if before:
        old = before[1]
        known = {name: pair for name, *pair in zip(old.names, before[2], old.marks)}  # type: ignore[misc]
        if not packed and digest_of(before[0]) == digest:
            packed = before[0]
    if not packed:
        tell(asked, {"say": "manifest"})
        packed = feed.hear(LONGEST_BLOB)[1]
    if digest_of(packed) != digest:
        raise Broken("another manifest than was announced")
    manifest = parse(packed, whole=True)
    found, roots = _scan(manifest.roots), manifest.roots
    layout = Layout(b".", manifest, found.by_name(), known, exact=True)
    try:
        try:
            _fill(layout, manifest, asked, feed, objects, digest)
            if isinstance(own, list) and layout.changes(set(map(os.fsencode, own))):
                with alone(objects, here):
                    tell(asked, {"say": "others", "place": here})
                    layout.let_be(feed.hear(len(manifest) // 4 + 2)[1])
                    layout.commit()
            else:
                layout.commit()
        finally:
            layout.close()
    except _Ended:
        layout.close()  # the signal may have interrupted the first close
        raise
    if not place:
        return  # key ONCE: no record
    # The files made last are too new for the record. One sleep costs less than another scan.
    time.sleep(scan.TICK / 1e9)
    found, calm = scan.resolve_ambiguous(lambda: _scan(roots), _scan(roots))
    if calm and layout.stands(found.by_name()):
        scan.remember(place, digest, found, roots, packed, layout.facts(found))
    else:
        scan.forget(place)


def _fill(
    layout: Layout, manifest: Manifest, asked: Asked, feed: Feed, objects: Objects, digest: str
) -> None:
    wanted = layout.wanted(objects)
    if not wanted:
        layout.open()
        layout.fill(feed, set(), objects, None)
        return
    with objects.turn("tree", digest):
        wanted = layout.wanted(objects)
        layout.open()
        pack = Pack(objects.folder) if wanted else None
        try:
            if wanted:
                tell(asked, {"say": "want"}, bits(list(wanted.values()), len(manifest)))
            layout.fill(feed, set(wanted), objects, pack)
        finally:
            if pack:
                pack.close()


# -- after the command -----------------------------------------------------------------------------


def _go(job: str) -> tuple[str, str, bool]:
    """Go to the directory of a detached job, which may be gone; return it, and why it cannot give its results.

    Also whether that is because it was stopped.
    """
    from quine.tape import registry

    state = registry.state_directory()
    if len(found := registry.find(job, state)) == 1:
        job = found[0].id  # a prefix of the id is enough, as for any verb
    place = registry.record(os.path.join(state, "jobs", job)).get("cwd")
    if not found or not isinstance(place, str):
        return "", f"{job} is not detached, or forgotten", False
    if (end := found[0].verdict()).state not in ("exited", "signaled"):
        what = "has not ended" if end.state in registry.ALIVE else f"is {end.state}"
        return place, f"{job} {what}, and may have made a part of them, in {place}", False
    if found[0].stopped:
        return place, f"{job} was stopped", True
    try:
        os.chdir(place)
    except FileNotFoundError:
        pass
    except OSError as error:
        return place, error_text(error), False
    return place, "", False


def _give_back(relay: Relay, key: str, job: str = "") -> bool:
    """Send the returns that the caller asks for. Return False if that failed and the caller knows why.

    Raises RequestError if the caller could not be told.
    """
    from quine.staging import spec

    here, why, stopped = _go(job) if job else (os.getcwd(), "", False)
    if why:
        return _confess(relay, why, **({"stopped": here} if stopped else {}))
    for left in reversed(range(ROUNDS)):
        with relay.stream("stage") as asked:
            feed = Feed(asked)
            tell(asked, {"say": "out", "in": here})
            try:
                message, _ = feed.hear()
                fields = ("returns", "without", "own")
                patterns, names, own = (list(map(str, message.get(name, []))) for name in fields)
                places = Places(names, own, deep=True)
                lacks = Left(places, set(map(spec.text_of, patterns)))
                sources, missing, lacking = spec.matching(patterns, here, places)
                check_read(patterns, here, places)
                without = [*names, *own, *places.there(here, [name for _, name in sources])]
                given = scan.Sources(sources, scan.identity(named()), without, lacks)
                tree = Tree(given, scan.key_of(here, key, "out"))
                lacking = [*lacking, *sorted(lacks.paths.difference(lacking))[:MOST_LEFT]]
                tell(asked, {"tree": tree.digest, "missing": missing, "left": lacking}, tree.packed)
                said_last = tree.serve(asked, feed)
            except BrokenPipeError:
                return False  # the caller has given up, and knows why
            except OSError as error:
                if left and isinstance(error, (FileNotFoundError, Changed)):
                    continue
                asked.close()
                return _confess(relay, error_text(error))
            except Broken:
                return False  # the caller has refused, and reports it
            asked.end()
            asked.read(1)
            return said_last.get("say") == "done"
    return False

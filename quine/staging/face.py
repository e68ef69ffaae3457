"""The caller's side: the files are here, and what is brought back appears here.

Laws
1. What was named is what a job over there can have, while it is being started, and nothing else; what it can give is
   what was asked for, after it has ended.
2. All of what comes back appears, or nothing: the renames are done by a process of its own, which whoever kills this
   one does not reach.
3. Nothing of this is loaded by a command without --files and --returns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import ChainMap

from quine.exits import FAILED, NOT_STARTED
from quine.staging import survey, words
from quine.staging.content import AGAIN, KNOWN, ROUNDS, Broken, Changed, Feed, said, tell
from quine.staging.manifest import IMPLIED, BadManifest, Manifest, digest_of, parse, shown
from quine.staging.tree import Tree, bits
from transport import client
from transport.errors import Abandoned, RequestError
from transport.incoming import Streaming
from transport.spawn import Spawn
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from quine.staging.aside import Layout
    from transport.incoming import Incoming
    from transport.services import Service

MOST_BACK = 1 << 44  # bytes that are brought back


class Staging:
    """The files and returns of one job; `folder` is the caller's. Raises Misconfigured for what is not there."""

    def __init__(self, files: list[str], returns: list[str], folder: str, data_dir: str = "") -> None:
        self._folder = os.path.abspath(folder)
        self._sources = words.sources(files, self._folder)
        self._returns = words.returns(returns)
        data_dir = os.path.join(self._folder, data_dir) if data_dir else ""
        self._leave_out = survey.identity(data_dir) if data_dir else None
        self._ours = os.fsencode(os.path.relpath(data_dir, self._folder)) if data_dir else b""
        named = [part for pair in self._sources for part in pair]
        self._key = survey.key_of(*named)
        self._there = survey.key_of(*(name for _, name in self._sources))
        self._lock = threading.Lock()
        self._tree: Tree | None = None
        self._rounds = 0
        self._giving = threading.Lock()
        self._started = False  # the job has its files, and is the command from there on
        self._failure = self._cure = ""
        self._missing: list[str] = []
        self._in = ""  # where the job ran
        self._layout: Layout | None = None
        self._taking = threading.Lock()
        self._over = False

    def run(
        self,
        spawn: Spawn,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        *,
        services: Mapping[str, Service] | None = None,
        **more: Any,
    ) -> Status:
        """client.run of a job that has its files before it starts and gives its returns after it has ended."""
        self._failure, self._cure, self._rounds, self._started = "", "", 0, False
        job = Spawn(**spawn.to_json())
        offered: Mapping[str, Service] = services or {}
        if self._sources:
            phase = "agent" if spawn.own else "in"
            job.argv = ["node", "--stage", phase, self._there, "--", *spawn.argv]
            job.own = True
            offered = ChainMap({"stage": Streaming(self._given)}, offered)  # type: ignore[arg-type]
            more["on_sent"] = self._look_ahead
        status = client.run(job, stdin, stdout, stderr, offered, **more)
        if self._failure and (status.state, status.code) == ("exited", NOT_STARTED):
            return Status("unreachable", NOT_STARTED, host=status.host, detail=self._failure, hint=self._cure)
        if self._returns and status.state in ("exited", "signaled"):
            self._bring(job, status, stderr)
        return status

    # -- before ------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """While the job is on its way, not before: two threads of Python take turns."""

        def work() -> None:
            with contextlib.suppress(OSError):  # what is wrong is said when it asks
                self._have()

        threading.Thread(target=work, name="staging", daemon=True).start()

    def _have(self) -> Tree:
        with self._lock:
            if self._tree is None:
                self._tree = Tree(self._sources, self._key, self._leave_out)
            return self._tree

    def _given(self, incoming: Incoming) -> None:
        """The service `stage` of a job that is being started.

        One conversation after the other: the next is not heard before it is known how the last one ended, or a job
        that is quick to ask again is given what is no longer its own.
        """
        with self._giving:
            self._give(incoming)

    def _give(self, incoming: Incoming) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if self._started:
                raise Broken("this job has its files")
            if asked.get("say") == "failed":
                self._failure = f"the files cannot be laid out there: {shown(str(asked.get('why')).encode())}"
                self._cure = shown(str(asked.get("cure") or "").encode())
                return
            if asked.get("say") != "in":
                raise Broken("this job has nothing to give yet")
            tree = self._have()
            tell(incoming, {"tree": tree.digest}, b"" if asked.get("has") == tree.digest else tree.packed)
            self._started = tree.serve(incoming, feed).get("say") == "done"
            self._tree = None  # it may hold a good deal
        except (Abandoned, Broken):
            raise
        except OSError as error:
            self._rounds += 1
            self._tree = None
            if isinstance(error, (Changed, FileNotFoundError)) and self._rounds < ROUNDS:
                raise RequestError(AGAIN + said(error)) from None
            self._failure = f"the files cannot be staged: {said(error)}"
            raise RequestError(KNOWN + said(error)) from None

    # -- after -------------------------------------------------------------------------------------

    def _bring(self, job: Spawn, status: Status, stderr: int) -> None:
        """Have the returns here; what is wrong is put into the status."""
        from quine.staging.renames import recover

        self._failure, self._missing, self._over, self._in = "nothing came", [], False, ""
        recover(os.fsencode(self._folder))
        out = Spawn(
            ["node", "--stage", "out", self._there],
            own=True,
            where=status.host or job.where,
            env=job.env,
            cwd=job.cwd,
            tree=job.tree,
            lease=job.lease,
            context={**job.context, "control": True},
        )
        null = os.open(os.devnull, os.O_RDWR)
        try:
            ended = client.run(out, null, null, stderr, services={"stage": Streaming(self._taken)})
            with self._taking:  # a handler that was left hears of it at once, and lets go
                self._over = True
            if self._layout and not self._failure:
                self._failure = _apart(self._layout, os.fsencode(self._folder))
            elif self._failure and ended.state != "exited":
                self._failure = ended.detail or f"killed by {ended.signal}"
        except Exception as error:
            # Of ours, or Refused: the command has ended all the same, and that is told.
            self._failure = str(error)
        finally:
            os.close(null)
            with self._taking:
                self._over = True
                if self._layout:
                    self._layout.close()
                    self._layout = None
        wrong = [f"the files cannot be brought back: {self._failure}"] if self._failure else []
        if self._missing and not self._failure:
            wrong = [f"--returns {', '.join(self._missing)}: nothing there to be brought back"]
        if self._failure and self._in and not status.hint:
            status.hint = f"what was made is still over there, in {self._in}"
        if wrong:
            status.detail = "; ".join([*filter(None, [status.detail]), *wrong])
            status.code = status.code or FAILED

    def _taken(self, incoming: Incoming) -> None:
        """The service `stage` of the job that gives back."""
        with self._taking:
            if self._over:
                raise Broken("nothing is taken any more")
            self._take(incoming)

    def _take(self, incoming: Incoming) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if asked.get("say") == "failed":
                self._failure = shown(str(asked.get("why")).encode())
                return
            if asked.get("say") != "out":
                raise Broken("nothing is given here any more")
            self._in = shown(str(asked.get("in") or "").encode("utf-8", "surrogateescape"))
            tell(incoming, {"returns": self._returns})
            message, packed = feed.hear()
            manifest = parse(packed, whole="." in self._returns)
            if digest_of(packed) != message.get("tree"):
                raise Broken("another manifest than was announced")
            self._check(manifest)
            missing = message.get("missing")
            self._missing = [name for name in self._returns if isinstance(missing, list) and name in missing]
            self._lay_aside(manifest, incoming, feed)
            tell(incoming, {"say": "done"})
            self._failure = ""
        except (BadManifest, Broken) as error:
            self._failure = f"what came was refused: {error}"
            raise RequestError(KNOWN + self._failure) from None
        except Abandoned as error:
            self._failure = str(error)
            raise
        except OSError as error:
            self._failure = said(error)
            raise RequestError(KNOWN + self._failure) from None

    def _check(self, manifest: Manifest) -> None:
        """Only what was asked for, and the directories that lead there."""
        leading = {
            name.rpartition(b"/")[0]
            for index, name in enumerate(manifest.names)
            if words.allowed(name, self._returns)
        }
        for index, name in enumerate(manifest.names):
            if name.startswith(survey.ASIDE) or (self._ours and (name + b"/").startswith(self._ours + b"/")):
                raise BadManifest(f"{shown(name)} is quine's own")
            if words.allowed(name, self._returns):
                continue
            leads = any(above == name or above.startswith(name + b"/") for above in leading)
            if not (manifest.is_directory(index) and manifest.modes[index] & IMPLIED and leads):
                raise BadManifest(f"{shown(name)} was not asked for")
        if sum(manifest.sizes) > MOST_BACK:
            raise BadManifest("more than can be")

    def _lay_aside(self, manifest: Manifest, incoming: Incoming, feed: Feed) -> None:
        # Much of an import, and those who only give pay nothing for it.
        from quine.staging.aside import Layout

        if self._layout:  # of a conversation that was broken off
            self._layout.close()
            self._layout = None
        base = os.fsencode(self._folder)
        here = survey.look([(os.path.join(base, root) if root else base, root) for root in manifest.roots])
        layout = self._layout = Layout(base, manifest, here.by_name(), {})
        wanted: dict[bytes, int] = {}
        for index in layout.needs:
            if manifest.sizes[index]:
                wanted.setdefault(manifest.marks[index], index)
        layout.open()
        if wanted:
            tell(incoming, {"say": "want"}, bits(list(wanted.values()), len(manifest)))
        layout.fill(feed, set(wanted), None, None)


def _apart(layout: Layout, folder: bytes) -> str:
    """Rename everything to where it belongs; what went wrong, "" if nothing did.

    In a process of its own session: whoever kills this one, or its group, at that moment leaves no half behind.
    """
    from quine.staging.renames import recover

    read, write = os.pipe()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                why = ""
                try:
                    layout.commit(undo=True)
                    layout.close()
                except OSError as error:
                    why = said(error) or "it cannot be renamed"
                os.write(write, b"." + os.fsencode(why)[:4000])
            finally:
                os._exit(0)
        os.close(write)
        write = -1
        with open(read, "rb", closefd=False) as file:
            answer = file.read()
        os.waitpid(pid, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)
    if answer:
        return os.fsdecode(answer[1:])
    layout.leave()
    recover(folder)
    return ""

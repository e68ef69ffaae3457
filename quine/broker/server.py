"""The worker of a broker: takes connections, admits their processes, and lets their inferences be made.

Laws
1. A connection is served by a task of its own; none waits for another. Calls that may block run in a thread.
2. Nothing that a client sends is trusted but what the kernel says of it, and its proof.
3. It ends by itself when for some time no process that it serves has lived, and nothing is under way.
4. When too many connections wait for admission, the worker closes the oldest: an honest client sends its greeting at
   once. The connections of one tree are bounded, so that descriptors are left for other trees.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from quine.base import procs
from quine.base.errors import DENIED, Failure, NoGuest
from quine.base.messages import GuestError, Tool
from quine.broker import wire
from quine.broker.admission import Denied, Register
from quine.broker.connection import Client, Room, Walks, close_line
from quine.broker.credentials import GUEST, Credentials
from quine.broker.inference import Inferences, Payer
from quine.broker.keeper_log import Log
from quine.broker.key_sources import Given
from quine.budget import makers
from quine.budget.kept_counters import inode_of
from quine.budget.limits import Limits
from quine.budget.purse import Cap
from quine.providers import metering
from quine.providers.relay import error_to_json
from transport import quickjson
from transport.errors import Unseen
from transport.this_build import build_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from quine.budget.kept_records import KeptRecords

KEPT = ("QUINE_PRICES",)
IDLE, IDLE_VARIABLE = 60.0, "QUINE_BROKER_IDLE"  # seconds without a process to serve after which it ends
PATIENCE = 30.0  # seconds that a client may take to say who it is
MOST_FILES = 1 << 16
MOST_GREETING = 1 << 11  # connections that are not admitted yet; and a quarter of the descriptors at most
HELD = 2 * wire.LONGEST  # bytes of the requests of one tree
LARGEST = 1 << 63  # of a cap
FULL = 1.0  # seconds until connections are taken again, where there are no descriptors left


class Seat:
    """Everything that a worker has from its keeper."""

    def __init__(
        self,
        listener: int,
        records: KeptRecords,
        path: str,
        key: bytes,
        keys: dict[str, str],
        environ: dict[str, str],
        keeper: int,
        node: int,
        log: Log,
    ) -> None:
        self.listener = listener
        self.records = records
        self.path = path
        self.log = log
        self.key = key
        self.credentials = Credentials(environ, keys)
        self.given = Given(environ)
        # It tidies up each time: with 0 it would do nothing else, and so never end.
        self.idle = max(0.01, float(environ.get(IDLE_VARIABLE) or IDLE))
        self.keeper = keeper
        self.node = node  # inode of the socket's name


def work(seat: Seat) -> None:
    """Serve until there is nobody left to serve."""
    asyncio.run(_Worker(seat, procs.raise_open_files(MOST_FILES)).run())


class _Worker:
    def __init__(self, seat: Seat, files: int = MOST_FILES) -> None:
        self._seat = seat
        self._most = files // 4  # connections of a tree
        self._greeting: dict[Client, None] = {}  # not admitted yet, the oldest first
        self._rooms: WeakValueDictionary[int, Room] = WeakValueDictionary()  # by the inode of the ledger
        self._listener = socket.socket(fileno=os.dup(seat.listener))
        self._listener.setblocking(False)
        self._inferences, self._walks = Inferences(), Walks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        # A command that prints the key may take a minute, and threads of the loop's own are wanted by others.
        self._key_reader = ThreadPoolExecutor(1, "key")

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._due = self._tidying = False
        self._used = self._begun + PATIENCE  # its maker is still to come, on a busy machine not at once
        self._over = self._loop.create_future()
        self._register = Register(self._seat.records, self._watch, self._left)
        self._walks.members = self._register.members
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._tidy()
        await self._over
        self._walks.close()
        self._key_reader.shutdown(wait=False)
        await self._inferences.close()

    # -- life --------------------------------------------------------------------------------------

    def _watch(self, pidfd: int, call: Any) -> None:
        def ended() -> None:
            self._loop.remove_reader(pidfd)
            call()

        self._loop.add_reader(pidfd, ended)

    def _tidy(self) -> None:
        """Forget what nothing needs, now and each idle time. Until that is done this worker does not end.

        So no budget is given up whose maker was not looked for: it may have no agent below it for any time.
        """
        self._loop.call_later(self._seat.idle, self._tidy)
        self._due = True
        if not self._tidying:
            self._tidying = True
            self._begin(self._tidied())

    async def _tidied(self) -> None:
        try:
            while self._due:
                self._due = False
                try:
                    living = await asyncio.to_thread(makers.living, self._register.unwatched())
                except OSError:  # no descriptors are left, so nothing is known
                    self._due = True
                    await asyncio.sleep(FULL)
                else:
                    self._register.forget_books(living, self._inferences.trees)
        finally:
            self._tidying = False

    def _left(self) -> None:
        """A process that was served has ended."""
        self._used = self._loop.time()
        self._look()

    def _look(self) -> None:
        """Begin to count the idle time, or stop to.

        While a process lives that has made a budget, the broker knows its limits as they were first seen.
        """
        idle = not self._register.members and not self._register.makers and not self._tasks
        if self._timer and not idle:
            self._timer.cancel()
            self._timer = None
        elif idle and not self._timer:
            self._timer = self._loop.call_at(self._used + self._seat.idle, self._idle)

    def _idle(self) -> None:
        """End, unless a client comes in this moment: the name goes first, so that no later one finds it."""
        self._timer = None
        _unlink(self._seat)
        self._closing = True
        self._accept()
        if not self._over.done():
            self._over.set_result(None)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # the event would come again and again
                    self._loop.remove_reader(self._listener.fileno())
                    self._loop.call_later(FULL, self._loop.add_reader, self._listener.fileno(), self._accept)
                return
            if self._closing:  # its name is gone, so processes below that client would not find this broker
                close_line(line)
                continue
            client = Client(line)
            self._greeting[client] = None
            if len(self._greeting) > min(MOST_GREETING, self._most):
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                oldest.end()
            self._begin(self._serve(client))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        self._look()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look()
        if not task.cancelled() and (error := task.exception()):
            self._seat.log.write(error)

    # -- a connection ------------------------------------------------------------------------------

    async def _serve(self, client: Client) -> None:
        try:
            if client.uid != os.getuid():
                return
            try:
                ours, hello = await asyncio.wait_for(self._opened(client), PATIENCE)
                if "ask" in hello:
                    await client.send(quickjson.dumps(await self._told(client, hello)).encode())
                    return
                make = await asyncio.wait_for(self._greet(client, ours, hello), PATIENCE)
                self._greeting.pop(client, None)
                payer = make(await self._loop.run_in_executor(self._key_reader, self._seat.given.key))
                ready = {"kind": payer.config.kind, "model": payer.config.model}
                await client.send(quickjson.dumps(ready).encode())
            except (Denied, Unseen) as denied:
                await client.send(_error("denied", str(denied), "", DENIED))
            except NoGuest as failure:
                await client.send(_error("noguest", failure.detail, failure.hint, failure.status))
            except Failure as failure:
                await client.send(_error("misconfigured", failure.detail, failure.hint, failure.status))
            else:
                await self._infer_all(client, payer)
        except (OSError, asyncio.TimeoutError):
            pass  # the client has gone, or is none
        finally:
            self._greeting.pop(client, None)
            await self._walks.release(client)
            client.close()

    async def _infer_all(self, client: Client, payer: Payer) -> None:
        assert client.room
        while size := await client.size(wire.LONGEST):
            async with client.room.holding(size):
                body = await client.body(size)
                if client.over:
                    return
                await self._infer(client, payer, body)

    async def _opened(self, client: Client) -> tuple[str, dict[str, Any]]:
        """Return the nonce that was sent, and what the client has said to it. Raises OSError."""
        ours = wire.nonce()
        await client.send(quickjson.dumps({"nonce": ours}).encode())
        return ours, await client.receive_json()

    async def _told(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a process of the user that is no client. It has no key, mission or material in it."""
        if asked["ask"] == "raise":
            return await self._raised(client, asked)
        if asked["ask"] == "detach":
            supervisor = asked.get("supervisor")
            found = isinstance(supervisor, int) and self._register.detach(client.process, supervisor)
            return {"detached": found}
        if asked["ask"] == "resume":
            tree = asked.get("tree")
            return {"resumed": self._inferences.resume(tree if isinstance(tree, int) else 0)}
        if asked["ask"] != "status":
            return {"error": "unknown"}
        credentials = self._seat.credentials
        return {
            "pid": os.getpid(),
            "keeper": self._seat.keeper,
            "build": build_hash(),
            "seconds": round(self._loop.time() - self._begun, 1),
            "keys": credentials.names,
            "agents": len(self._register.members),
            "gates": self._inferences.status(credentials.name_of, credentials.keys),
        }

    async def _raised(self, client: Client, asked: dict[str, Any]) -> dict[str, Any]:
        """Raise a purse for a process, if that is not below it. Raises Denied."""
        try:
            tokens, cost, deadline = (None if value is None else float(value) for value in asked["limits"])
            to, which = (tokens, cost, deadline), int(asked["purse"])
            asker, lift = client.process, self._register.lift
            return {"raised": await self._walks.run(asker, lift, asker, which, to)}
        except (KeyError, TypeError, ValueError, OverflowError):
            return {"error": "unknown"}

    async def _greet(self, client: Client, ours: str, hello: dict[str, Any]) -> Callable[[str], Payer]:
        """Return the function that makes the payer, given the key of a file or a command. Raises Denied or OSError."""
        if "proof" in hello:
            nonces, pids = (ours, str(hello.get("nonce"))), (self._seat.keeper, client.pid)
            if not wire.same(str(hello["proof"]), wire.proof(self._seat.key, "client", nonces, pids)):
                raise Denied("it does not hold the keys of this broker")
            client.proved = True
            told = wire.proof(self._seat.key, "broker", nonces, pids)
            await client.send(quickjson.dumps({"proof": told}).encode())
            hello = await client.receive_json()
        if not hello:
            raise ConnectionResetError("the client has gone")
        if hello.get("build") != build_hash():
            raise Denied("it is of another build")
        # Whatever waits comes first: a ledger is closed when no living process has it.
        client.fds += await self._walks.purses(client.process, client.proved)
        try:
            cap = _cap(hello["mark"])
            concurrent, limited = int(hello["concurrent"]), bool(hello["limited"])
            asked = {name: str(hello["env"][name]) for name in GUEST if hello["env"].get(name)}
            tools = tuple(Tool(str(name), str(text), dict(schema)) for name, text, schema in hello["tools"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise OSError("malformed hello") from None
        inode = inode_of(client.ledger)
        if not inode:
            raise Denied("its ledger is none")
        room = self._rooms.get(inode) or self._rooms.setdefault(inode, Room(HELD))
        if room.lines >= self._most:
            raise Denied(f"there are {room.lines} connections of its tree already")
        # A process that has a key is closed to others, also to this one: it gives the purses that it has itself.
        given, client.fds = client.fds[1:], client.fds[:1]
        proved = client.proved
        if proved and self._seat.credentials.are_of_a_command:
            proved = not self._register.is_below_a_member(client.process)
        cap, purses = self._register.admit(client.process, inode, cap, proved, given)
        client.closed = self._register.connected(client.process, inode, client.end)
        client.room = room
        room.lines += 1
        if inode not in self._register.books:
            self._register.book(client.fds.pop())
        self._look()
        ledger = self._register.ledger(inode, cap, purses)
        concurrent = ledger.bound(Limits(concurrent=max(0, concurrent))).concurrent

        def payer(key: str) -> Payer:
            config = self._seat.credentials.config(asked, key)
            price = metering.price(config, limited or bool(ledger.mark.cost))
            return Payer(ledger, config, price, concurrent, tools, ledger.raises if purses else None)

        await self._walks.release(client)  # the ledger, where that is known
        return payer

    async def _infer(self, client: Client, payer: Payer, body: bytes) -> None:
        task = self._loop.create_task(self._inferences.infer(payer, body, client.note))
        gone = self._loop.create_task(client.gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await client.send(self._answer(task))
            else:
                raise ConnectionResetError("the client has cancelled it")
        finally:
            gone.cancel()
            task.cancel()
            # Both are over before the next frame is waited for: a late one would stop that from being heard.
            await asyncio.wait((gone, task))

    def _answer(self, task: asyncio.Task[bytes]) -> bytes:
        if error := task.exception():
            self._seat.log.write(error)
            return quickjson.dumps(error_to_json(GuestError(f"a defect in the broker: {error!r}"))).encode()
        return task.result()


def _cap(told: Any) -> Cap:
    """Return the caps that a client has told. Raises ValueError, TypeError or OverflowError."""
    tokens, cost, deadline = told
    cap = Cap(int(tokens), float(cost), float(deadline))
    if not all(0 <= value < LARGEST for value in cap):
        raise ValueError("a cap below 0 or without end")
    return cap


def _unlink(seat: Seat) -> None:
    """Remove the name of the socket, if it is still that of this broker."""
    try:
        if os.stat(seat.path).st_ino == seat.node:
            os.unlink(seat.path)
    except OSError:
        pass


def _error(kind: str, detail: str, hint: str, status: int) -> bytes:
    return quickjson.dumps({"error": kind, "detail": detail, "hint": hint, "status": status}).encode()

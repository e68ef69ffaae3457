"""The ledger of a tree: slots that die with their process, budgets that hold when many draw on them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Failure
from quine.base.messages import Remaining, Spent
from quine.budget import purse, shared_counters
from quine.budget.ledger import LEAST_REPLY, MOST_REPLY, PIECE, Cap, Ledger, Reservation
from quine.budget.limits import Limits
from quine.budget.shared_counters import MUTEX, NAME
from tests.support.machine import in_child, kill
from transport.inherit import MemoryFile

Make = Callable[..., Ledger]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[int] = []

    def make(**limits: float) -> Ledger:
        ledger = Ledger.create(Limits(**limits))  # type: ignore[arg-type]
        made.append(ledger.fd)
        return ledger

    yield make
    for fd in made:
        os.close(fd)


@contextlib.contextmanager
def waiting(meanwhile: Callable[[], object]) -> Iterator[list[bool]]:
    """Call `meanwhile` in the first sleep of a ledger, as the event it waits for. Yield a list of the sleeps."""
    naps: list[bool] = []

    def nap(seconds: float) -> None:
        naps.append(True)
        meanwhile()

    with mock.patch.object(time, "sleep", nap):
        yield naps


def close(fds: list[int] | None) -> None:
    assert fds is not None
    for fd in fds:
        os.close(fd)


def test_places_for_agents_are_all_or_none(make: Make) -> None:
    ledger = make(agents=3)
    two = ledger.agents(3, 2)
    assert ledger.agents(3, 2) is None
    one = ledger.agents(3)
    assert ledger.agents(3) is None
    close(two)
    close(one)
    close(ledger.agents(3, 3))
    assert ledger.totals()[0] == 6


def test_many_places_are_taken_in_pieces_and_each_slot_is_tried_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that asks for many again and again would keep the lock from all other processes of the tree."""
    limit = 2 * PIECE + 1
    tree = make(agents=limit)
    monkeypatch.setattr(shared_counters, "lock", mock.Mock(wraps=shared_counters.lock))
    tries = shared_counters.lock.call_args_list  # type: ignore[attr-defined]
    held = tree.agents(limit, limit)
    assert held and len(held) == limit and tree.totals()[0] == limit
    asked = [call.args[1] for call in tries]
    assert (asked.count(MUTEX.first), len(asked)) == (3, limit + 3)
    tries.clear()
    os.close(held.pop())
    assert tree.agents(limit, limit + 1) is None and not tries
    assert tree.agents(limit, 2) is None and tree.totals()[0] == limit
    close(more := tree.agents(limit, 1))
    assert more
    close(held)


def test_no_limit_needs_no_place(make: Make) -> None:
    ledger = make(agents=0)
    assert ledger.agents(0, 1000) == []
    assert ledger.totals()[0] == 1000


def test_a_place_dies_with_its_process_and_not_before(make: Make) -> None:
    ledger = make(agents=1)
    pid = in_child(lambda: ledger.agents(1))
    assert ledger.agents(1) is None
    kill(pid)
    close(ledger.agents(1))


def test_a_share_has_as_many_places_as_were_granted() -> None:
    ledger = Ledger.create(Limits(agents=9), share=True)
    try:
        with ledger.book.changing() as facts:
            ledger.book.put(facts._replace(granted=3))
        assert ledger.agents(9, 4) is None
        two = ledger.agents(9, 2)
        assert ledger.agents(9, 2) is None
        close(ledger.agents(9, 1))
        close(two)
    finally:
        os.close(ledger.fd)


def test_what_a_dead_one_had_reserved_is_charged_when_its_slot_is_taken(make: Make) -> None:
    ledger = make()
    narrow = Ledger(ledger.book, Cap(tokens=30_000))
    kill(in_child(lambda: narrow.reserve(20, 3000)))
    hold = ledger.reserve(20, 10)
    assert ledger.totals()[1] == 3000 + MOST_REPLY
    assert narrow.left() == (30_000 - 10 - 3000 - MOST_REPLY, None)
    ledger.settle(hold, 0)


def test_an_inference_waits_for_whichever_slot_is_free_first(make: Make) -> None:
    ledger = make(concurrent=2)
    first, second = (ledger.reserve(2, 10, on_wait=pytest.fail) for _ in range(2))
    with pytest.raises(KeyError, match="waits"):
        ledger.reserve(2, 10, on_wait=lambda: {}["waits"])
    got = []
    waiting = threading.Thread(target=lambda: got.append(ledger.reserve(2, 10)))
    waiting.start()
    ledger.settle(second, 7)
    waiting.join(60)
    assert got
    assert got[0].index == second.index
    for hold in (first, got[0]):
        ledger.settle(hold, 1)
    assert ledger.totals()[1] == 9


def test_what_is_reserved_is_not_given_twice(make: Make) -> None:
    ledger = make(tokens=10_000)
    hold = ledger.reserve(20, 1000)
    assert hold.output == 9000
    assert ledger.left() == (0, None)
    # Nothing is free now, but something may be when the first has settled.
    with waiting(lambda: ledger.settle(hold, 1500)) as naps:
        next_one = ledger.reserve(20, 1000)
    assert naps == [True]
    assert next_one.output == 10_000 - 1500 - 1000
    ledger.settle(next_one, 8000)
    assert ledger.left() == (500, None)
    with pytest.raises(Spent, match="9500 of 10000 tokens are used") as spent:
        ledger.reserve(20, 400)
    assert spent.value.option == "--max-tokens"


def test_a_reply_of_the_least_size_is_begun_at_once(make: Make) -> None:
    ledger = make(tokens=1000)
    with waiting(lambda: pytest.fail("it waits for nobody")):
        hold = ledger.reserve(20, 1000 - LEAST_REPLY)
    assert hold.output == LEAST_REPLY
    ledger.settle(hold, 0)


def test_two_at_one_time_share_what_is_left(make: Make) -> None:
    ledger = make(tokens=30_000)
    first = ledger.reserve(20, 1000)
    assert first.output == MOST_REPLY
    second = ledger.reserve(20, 1000)
    assert second.output == 30_000 - (1000 + MOST_REPLY) - 1000
    for hold in (first, second):
        ledger.settle(hold, 1000 + hold.output)
    assert ledger.left() == (0, None)


def test_two_at_one_time_share_the_money_that_is_left(make: Make) -> None:
    ledger = make(cost=1.0)

    def price(prompt: int, reply: int) -> float:
        return (prompt + reply) / 20_000

    first = ledger.reserve(20, 1000, price, Remaining(None, 0.6))
    second = ledger.reserve(20, 1000, price)
    assert first.output == pytest.approx(0.6 * 20_000 - 1000, abs=1)
    assert second.output == pytest.approx(0.4 * 20_000 - 1000, abs=2)
    for hold in (first, second):
        ledger.settle(hold, 0)


def test_what_a_killed_process_had_reserved_is_charged(make: Make) -> None:
    ledger = make(tokens=40_000)
    pid = in_child(lambda: ledger.reserve(20, 3000))
    assert ledger.left() == (40_000 - 3000 - MOST_REPLY, None)
    kill(pid)
    for _ in range(2):
        assert ledger.left() == (40_000 - 3000 - MOST_REPLY, None)
        assert ledger.totals()[1] == 3000 + MOST_REPLY
    hold = ledger.reserve(20, 1)
    assert hold.output == MOST_REPLY
    ledger.settle(hold, 7)
    assert ledger.totals()[1] == 3000 + MOST_REPLY + 7


def test_money_of_a_killed_process_is_charged(make: Make) -> None:
    ledger = make(cost=1.0)
    kill(in_child(lambda: ledger.reserve(20, 1000, lambda prompt, reply: (prompt + reply) / 50_000)))
    ledger.collect()
    assert ledger.totals()[1:] == (1000 + MOST_REPLY, pytest.approx((1000 + MOST_REPLY) / 50_000))


def test_each_of_many_that_were_killed_is_charged_once_by_many_that_look(make: Make) -> None:
    ledger = make(tokens=10_000_000)
    for pid in [in_child(lambda: ledger.reserve(20, 1000)) for _ in range(6)]:
        kill(pid)
    barrier, go = os.pipe()

    def look(number: int) -> None:
        os.read(barrier, 1)  # the end of the file: all at one time
        if number % 3 == 0:
            ledger.settle(ledger.reserve(20, 1), 0)
        elif number % 3 == 1:
            ledger.left()
        else:
            ledger.collect()

    pids = []
    for number in range(6):
        pids.append(os.fork())
        if not pids[-1]:
            os.close(go)
            status = 1
            with contextlib.suppress(BaseException):
                look(number)
                status = 0
            os._exit(status)
    for fd in (go, barrier):
        os.close(fd)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 6
    assert ledger.totals()[1] == 6 * (1000 + MOST_REPLY)


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("what", ["charge", "settle"])
def test_a_payment_that_is_killed_in_the_middle_counts_once(make: Make, what: str, writes: int) -> None:
    """The payer dies before its first write, between two, or after the last one; then others look."""
    ledger = make(tokens=100_000)
    kill(in_child(lambda: ledger.reserve(20, 1000)))

    def die() -> None:
        hold = None if what == "charge" else ledger.reserve(20, 50)
        left, write = [writes], os.pwrite

        def dying(*given: object) -> int:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return write(*given)  # type: ignore[arg-type]

        with mock.patch.object(os, "pwrite", dying):
            ledger.settle(hold, 70) if hold else ledger.collect()
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        try:
            die()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    for _ in range(2):
        ledger.settle(ledger.reserve(20, 1), 3)
    own = 0 if what == "charge" else 70 if writes else 50 + MOST_REPLY
    assert ledger.totals()[1] == 1000 + MOST_REPLY + own + 6


def test_money(make: Make) -> None:
    ledger = make(cost=1.0)

    def price(prompt: int, reply: int) -> float:
        return prompt * 1e-5 + reply * 1e-4

    hold = ledger.reserve(20, 10_000, price)  # 0.1 for the prompt, 0.9 for the reply
    assert hold.output == pytest.approx(9000, abs=1)
    ledger.settle(hold, 11_000, 0.95)
    assert ledger.left()[1] == pytest.approx(0.05)
    with pytest.raises(Spent, match=r"0\.9500 of 1\.0000 US dollars") as spent:
        ledger.reserve(20, 10_000, price)
    assert spent.value.option == "--max-cost"


def test_a_descendant_gets_a_narrower_budget_and_never_a_wider_one(make: Make) -> None:
    limits = Limits(tokens=10_000)
    ledger = make(tokens=10_000)
    ledger.settle(ledger.reserve(1, 10), 4000)
    told = ledger.to_json(limits)
    same = Ledger.join(told, limits)
    narrow = Ledger.join(told, Limits(tokens=1000))
    wide = Ledger.join(told, Limits(tokens=1_000_000))
    none = Ledger.join(told, Limits())
    assert same and narrow and wide and none
    assert [one.left()[0] for one in (same, narrow, wide, none)] == [6000, 1000, 6000, 6000]
    assert {one.fd for one in (same, narrow, wide, none)} == {ledger.fd}
    lie = {"mark": [10**9, 0.0, 0.0], "given": told["given"]}
    lied_to = Ledger.join(lie, limits)
    assert lied_to
    assert lied_to.left()[0] == 6000


def test_a_descendant_gets_a_narrower_sum_from_now_on(make: Make) -> None:
    ledger = make(cost=10.0)
    ledger.settle(ledger.reserve(1, 10, lambda prompt, reply: 1.0), 0, 4.0)
    told = ledger.to_json(Limits(cost=10.0))
    sums = {1.0: 1.0, 5.0: 5.0, 7.0: 6.0, 0.0: 6.0}
    for cost, left in sums.items():
        descendant = Ledger.join(told, Limits(cost=cost))
        assert descendant and descendant.left() == (None, left)


@pytest.mark.parametrize(("seconds", "most"), [(10, 10), (1000, 100), (0, 100)])
def test_a_descendant_gets_less_time_and_never_more(make: Make, seconds: int, most: int) -> None:
    ledger = make(deadline=100)
    descendant = Ledger.join(ledger.to_json(Limits(deadline=100)), Limits(deadline=seconds))
    assert descendant
    left = descendant.time_left()
    assert left is not None and 0 < left <= most


def test_time(make: Make) -> None:
    assert make().time_left() is None
    left = make(deadline=100_000).time_left()
    assert left is not None
    assert 90_000 < left <= 100_000


def test_a_deadline_that_is_raised_meanwhile_is_not_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at twice: before a raise to none there was one, and behind it that was 0 seconds after the boot."""
    caps = [Cap(0, 0.0, 1e12), Cap()]
    monkeypatch.setattr(Ledger, "mark", property(lambda ledger: caps.pop(0)))
    left = make().time_left()
    assert left is not None and left > 0


FIND = """
from quine.budget.ledger import Ledger
from quine.agent.session import Limits
ledger = Ledger.join(None, Limits())
print(None if ledger is None else ledger.agents(1) is not None)
"""


@pytest.mark.parametrize("closed", [False, True])
def test_who_has_closed_its_descriptors_still_belongs_to_the_tree(make: Make, closed: bool) -> None:
    """It is found with the processes above: here with this one."""
    ledger = make(agents=1)
    for taken in (False, True):
        held = ledger.agents(1) if taken else []
        words = [sys.executable, "-c", FIND]
        done = subprocess.run(words, close_fds=closed, capture_output=True, check=True, timeout=120)
        assert done.stdout.decode().strip() == str(not taken)
        close(held)


@pytest.mark.parametrize("which", ["ledger", "purse"])
def test_a_descriptor_that_was_closed_since_is_looked_for_anew(make: Make, which: str) -> None:
    """A program above makes a ledger, and the number that was seen there is that of a pipe when it is opened."""
    ledger = make(tokens=100)
    held = purse.create(ledger.book, "a" * 36, "cmd", (0, 0.0, 0.0), (0, 0))
    reading, writing = os.pipe()
    inodes = {"ledger": os.fstat(ledger.fd).st_ino, "purse": os.fstat(held).st_ino}

    def seen(fd: int, inode: int) -> MemoryFile:
        return MemoryFile(os.getppid(), inode, f"/proc/self/fd/{fd}")

    true = {"ledger": ledger.fd, "purse": held}
    stale = {**true, which: reading}
    walks = [
        {name: [seen(fds[key], inodes[key])] for name, key in ((NAME, "ledger"), (purse.NAME, "purse"))}
        for fds in (stale, true)
    ]
    try:
        joined = Ledger.join(None, Limits(), lambda: walks.pop(0))
        assert joined and not walks
        assert os.fstat(joined.fd).st_ino == inodes["ledger"]
        assert [each.ident for each in joined.around()] == ["a" * 36]
        assert os.get_inheritable(joined.fd)
        close([joined.fd, *joined.purses])
        with pytest.raises(Failure, match="gone 100 times"):
            Ledger.join(None, Limits(), lambda: {NAME: [seen(reading, inodes["ledger"])], purse.NAME: []})
    finally:
        close([held, reading, writing])


def test_what_a_command_inherits_it_cannot_write_to(make: Make) -> None:
    ledger = make(tokens=100)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(ledger.fd, b"\0" * 8, 0)
    assert os.get_inheritable(ledger.fd)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.sampled_from([0, 100, 3000, 20_000]), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_never_more_than_the_limit(steps: list[tuple[int, int, int]]) -> None:
    """Up to four at a time: as long as replies keep to what they were given, the total keeps to the limit.

    Each begins before others have settled: so many are under way then, and one more only where it need not wait.
    """
    limit = 40_000
    ledger = Ledger.create(Limits(tokens=limit))
    under_way: list[tuple[Reservation, int, int]] = []

    def settle() -> None:
        hold, prompt, reply = under_way.pop(0)
        ledger.settle(hold, prompt + min(reply, hold.output))

    try:
        for prompt, reply, others in steps:
            while len(under_way) > others:
                settle()
            try:
                with waiting(settle):
                    under_way.append((ledger.reserve(4, prompt), prompt, reply))
            except Spent:
                assert limit - ledger.totals()[1] - prompt < LEAST_REPLY
            assert ledger.totals()[1] + sum(prompt + hold.output for hold, prompt, _ in under_way) <= limit
        while under_way:
            settle()
        assert ledger.totals()[1] <= limit
    finally:
        os.close(ledger.fd)


def test_many_processes_draw_on_one_budget(make: Make) -> None:
    """A hundred inferences from ten processes, a third of them killed: the sum is right, and nothing is given twice."""
    ledger = make(tokens=30_000, concurrent=4)

    def draw() -> None:
        for _ in range(10):
            try:
                hold = ledger.reserve(4, 500)
            except Spent:
                return
            ledger.settle(hold, 500 + LEAST_REPLY)  # no reply is given less

    pids = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            try:
                draw()
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids[::3]:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    draw()
    used = ledger.totals()[1]
    assert used % (500 + LEAST_REPLY) == 0
    assert 7_500 <= used <= 30_000
    assert ledger.left() == (30_000 - used, None)

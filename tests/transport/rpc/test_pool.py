"""Threads that call functions: no more than allowed, none more than needed, and all calls are made once."""

from __future__ import annotations

import _thread
import queue
import threading

import pytest

from transport.rpc.pool import Threads

PATIENCE = 60


def test_all_calls_are_made_once_by_no_more_threads_than_allowed() -> None:
    pool, done, at_once, lock = Threads(3), queue.Queue[int](), [0, 0], threading.Lock()

    def call(number: int) -> None:
        with lock:
            at_once[0] += 1
            at_once[1] = max(at_once)
        done.put(number)
        with lock:
            at_once[0] -= 1

    for number in range(500):
        pool.submit(call, number)
    assert sorted(done.get(timeout=PATIENCE) for _ in range(500)) == list(range(500))
    pool.shutdown()
    assert done.empty() and 1 <= at_once[1] <= 3


def test_a_call_at_a_time_takes_one_thread() -> None:
    pool, names = Threads(8), set()
    for _ in range(20):
        called = threading.Event()
        pool.submit(lambda event=called: (names.add(_thread.get_ident()), event.set()))
        assert called.wait(PATIENCE)
        while not pool._idle:  # it is about to wait for the next one
            pass
    pool.shutdown()
    assert len(names) == 1


def test_a_call_that_blocks_keeps_no_other_waiting_while_a_thread_is_left() -> None:
    pool, gate, done = Threads(2), threading.Event(), threading.Event()
    pool.submit(gate.wait)
    pool.submit(done.set)
    assert done.wait(PATIENCE)
    gate.set()
    pool.shutdown()


def test_an_error_of_a_call_ends_no_thread() -> None:
    pool, done = Threads(1), threading.Event()
    pool.submit(lambda: 1 / 0)
    pool.submit(done.set)
    assert done.wait(PATIENCE)
    pool.shutdown()


def test_where_none_can_be_started_the_call_is_refused_or_left_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pool, gate, done = Threads(2), threading.Event(), []
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(RuntimeError):
            pool.submit(done.append, "never")
    pool.submit(gate.wait)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        pool.submit(done.append, "by the one that runs")
    gate.set()
    pool.shutdown()
    assert done == ["by the one that runs"]


def test_calls_that_wait_can_be_dropped() -> None:
    pool, gate, begun, done = Threads(1), threading.Event(), threading.Event(), []
    pool.submit(lambda: (begun.set(), gate.wait()))
    pool.submit(done.append, 1)
    assert begun.wait(PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)
    gate.set()
    pool.shutdown()
    assert done == []

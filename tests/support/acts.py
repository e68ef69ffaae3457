"""Acts that must fail with one errno, and acts at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


def refused(number: int, act: Callable[[], object]) -> OSError:
    with pytest.raises(OSError) as caught:
        act()
    assert caught.value.errno == number, caught.value
    return caught.value


def together(*acts: Callable[[], object]) -> None:
    """Call all acts at the same moment; raise an exception of one of them."""
    gate, wrong = threading.Barrier(len(acts)), []

    def run(act: Callable[[], object]) -> None:
        gate.wait()
        try:
            act()
        except BaseException as problem:
            wrong.append(problem)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]

"""Inferences against a real server that bears five at a time and sixty in a window: all of them get their replies.

How long that takes, and how many are refused, is proven over virtual time in test_gate.py.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from quine.base.messages import unheard
from tests.broker.inferring import gates, inferences, ledger, payer, request, run
from tests.vendors import chat
from tests.vendors.limits import Limited
from tests.vendors.server import Said

AGENTS = 100


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True], ids=["exact", "whole seconds"])
def test_a_hundred_at_once_get_their_replies(whole: bool) -> None:
    async def work() -> None:
        async with inferences() as made:

            async def agent() -> None:
                answer = json.loads(await made.infer(payer(provider, paid), request(), unheard))
                assert answer["message"]["content"] == "hi"

            await asyncio.gather(*(agent() for _ in range(AGENTS)))
            (gate,) = gates(made)
            assert (gate["waiting"], gate["under_way"]) == (0, 0)
            assert gate["refused"] == len(provider.refusals)

    with Limited(chat, Said("hi"), 5, 60, 3.0, 0.02, whole) as provider, ledger() as paid:
        run(work())
    assert len(provider.requests) == AGENTS + len(provider.refusals)
    assert len(provider.refusals) < AGENTS / 8  # on a machine at its limit an answer of 429 comes late
    assert provider.most <= 5

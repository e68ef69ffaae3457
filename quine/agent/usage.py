"""What one life has used, what is left of it, and what the guest is told of that after each batch of calls.

Laws
1. Turns and context belong to the life; tokens, money and time belong to the tree, and the ledger has them.
2. `last` is set once: the next reply is the last one, and the guest has been told so.
"""

from __future__ import annotations

from collections.abc import Sequence

from quine.agent import prompt
from quine.base.messages import Guest, Left, Message, Reply, Usage
from quine.budget.ledger import LEAST_REPLY, Ledger
from quine.budget.limits import Limits
from quine.providers import metering

FULL = 0.8  # share of the context at which the guest is warned, once
LATE = 0.8  # share of the time of the tree after which the guest is told to come to an end


class Account:
    def __init__(self, limits: Limits, ledger: Ledger, guest: Guest, price: metering.Price | None) -> None:
        self.usage = Usage()
        self.turns = 0
        self.inferences = 0
        self.last = ""  # turn_exhaustion, context_exhaustion or budget: the mode in which the life ends
        self._limits = limits
        self._ledger = ledger
        self._guest = guest
        self._price = price
        self._context = 0  # tokens of the conversation up to the last reply, if the guest has told
        self._told = 0  # messages that those are
        self._warned = False

    def count(self, reply: Reply, messages: int) -> None:
        """After a reply to so many messages."""
        self.inferences += 1
        self.usage += reply.usage
        if reply.usage.input:
            self._context, self._told = reply.usage.input + reply.usage.output, messages + 1
        if reply.stop == "context":
            self._context = max(self._context, self._limits.window)

    @property
    def out_of_turns(self) -> bool:
        return 0 < self._limits.turns <= self.turns

    def used(self, messages: Sequence[Message]) -> int:
        """Tokens of the conversation: as the guest has told, and about so many since."""
        return self._context + metering.tokens(messages[self._told :])

    def notes(self, messages: Sequence[Message], result: str) -> list[str]:
        """What the last `result` of a batch is followed by."""
        lines = []
        if limit := self._limits.turns:
            lines.append(f"[TURNS LEFT] {max(0, limit - self.turns)}")
        # What has come since the guest counted is in its next prompt: without it the warning comes a batch too late.
        used = self.used(messages) + metering.tokens([Message("user", result)])
        window = self._limits.window
        lines.append(f"[CONTEXT USED] {round(used / 1000)}K of {round(window / 1000)}K")
        lines += self._of_tree()
        last = "turn_exhaustion" if self.out_of_turns else ""
        last = last or ("context_exhaustion" if 0 < window <= used else "")
        last = last or ("" if self.affords(2, used) else "budget")
        if last and not self.last:
            self.last = last
            lines.append(prompt.last_note(last))
        elif not self._warned and window and used >= FULL * window:
            self._warned = True
            lines.append(prompt.FULL.format(round(100 * used / window)))
        return lines

    def _of_tree(self) -> list[str]:
        tokens, dollars = self.left()
        lines = [] if tokens is None else [f"[TOKENS LEFT] {tokens}"]
        if dollars is not None:
            lines.append(f"[COST LEFT] {dollars:.4f} US dollars")
        if (left := self._ledger.time_left()) is not None:
            late = left < (1 - LATE) * self._limits.deadline
            lines.append(f"[TIME LEFT] {max(0, round(left))} s{prompt.LATE if late else ''}")
        return lines

    def left(self, surely: bool = False) -> Left:
        """Tokens and dollars of the tree; what is relayed is paid at the origin, which tells what is left there.

        `surely`: what others have reserved and may give back is not taken for used.
        """
        own = self._ledger.left(surely)
        told: Left | None = getattr(self._guest, "surely" if surely else "left", None)
        return own if told is None else own.least(told)

    def affords(self, count: int, prompt: int) -> bool:
        """Can so many inferences with prompts of so many tokens be paid?"""
        tokens, dollars = self.left(surely=True)
        # What the guest has counted has the tools in it.
        prompt = max(prompt, metering.TOOLS) if self._context else prompt + metering.TOOLS
        if tokens is not None and tokens < count * (prompt + LEAST_REPLY):
            return False
        return dollars is None or not self._price or dollars >= count * self._price.about(prompt, LEAST_REPLY)

"""Usage of a session: counts turns, tokens and context, and writes the notes about what is left for the guest.

Laws
1. Turns and context belong to the session. Tokens, money and time belong to the tree and are in the ledger.
2. Once `last` is set, the next reply is the last one, and a note has told the guest so.
3. Some servers (Ollama, SGLang, proxies) leave out the beginning of a prompt that is too long, without a word. Their
   count tells: a conversation only grows. In doubt it is whole, since a window that is too small ends a session early.
"""

from __future__ import annotations

from quine.agent import prompt
from quine.base.messages import Guest, Message, Remaining, Reply, Usage
from quine.budget.ledger import LEAST_REPLY, Ledger
from quine.budget.limits import Limits
from quine.providers import metering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


FULL = 0.8  # share of the context window at which the guest is warned, once
LEAST_WINDOW = 1024  # tokens: a server that says less means something else
FAR = 0.75  # share of the least size of a prompt, below which a server has read a part of it
NEW = 3  # times the estimate of what is new: a server that counts no cached tokens tells no more than that
LATE = 0.8  # share of the time of the tree after which the guest is told to finish


class _Sizes:
    """The sizes of prompts, of which some are known at least: law 3."""

    def __init__(self) -> None:
        self.least = 0  # tokens of the last prompt, without reasoning: servers drop that by their own rules
        self.read = 0  # tokens of the last one that was cut; 0 = none was
        self.window = 0  # tokens that a server has which cuts
        self._first = 0  # tokens of the first prompt: each later one begins with its instructions and tools
        self._most = 0  # tokens of the longest conversation that it had
        self._thought = 0  # tokens of replies with reasoning
        self._any = 0  # tokens of the last prompt that any tokenizer makes of it, at least
        # As `least`, if a prompt that was far too short was whole all the same; 0 = none was too short.
        self._short = 0

    def count(self, reply: Reply, new: Sequence[Message]) -> None:
        """Count a prompt that had `new` messages since the last one, and its reply."""
        read, written = reply.usage.input, reply.usage.output
        added = metering.at_least(new)
        least = self.least + added
        self._any += added
        self._most = max(self._most, read + written)
        self._first = self._first or read
        if read > self.window:
            self.window = 0
        alone = max(FAR * self._first, NEW * metering.tokens(new))
        whole, short = read - self._thought, self._short and self._short + added
        if read >= FAR * least:
            self._short = 0
        elif max(LEAST_WINDOW, alone) < read:
            # Another tokenizer counts the new messages too, and no tokenizer makes so little of all of them.
            if FAR * short <= read <= short or read < FAR * self._any:
                usual = 1 << (self._most - 1).bit_length()  # most windows are powers of two
                self.read, self.window = read, usual if usual < least else self._most
            self._short = max(0, whole)
        else:
            self._short = short
        self.least = max(least, whole)
        if reply.message.reasoning or reply.usage.reasoning or "</think>" in reply.message.text:
            self._thought += written


class Account:
    def __init__(self, limits: Limits, ledger: Ledger, guest: Guest, price: metering.Price | None) -> None:
        self.usage = Usage()
        self.turns = 0
        self.inferences = 0
        self.last = ""  # turn_exhaustion, context_exhaustion or budget: the mode in which the session ends
        self._limits = limits
        self._ledger = ledger
        self._time = limits.deadline or ledger.time_left() or 0.0  # a purse has a deadline of its own
        self._guest = guest
        self._price = price
        self._served = 0  # tokens of context, as the server has told; 0 = not yet
        self._context = 0  # tokens up to the last reply, if the provider has reported usage
        self._counted = 0  # number of messages in `_context`
        self._sizes = _Sizes()
        self._warned = self._told = False

    def count(self, reply: Reply, messages: Sequence[Message]) -> None:
        """Count `reply`, sent in answer to `messages`."""
        self.inferences += 1
        self.usage += reply.usage
        if reply.usage.input:
            if not self.last:  # before the last reply results may have been dropped
                self._sizes.count(reply, messages[self._counted :])
            self._context, self._counted = reply.usage.input + reply.usage.output, len(messages) + 1
            if self._sizes.read:
                self._context = max(self._context, self._sizes.least)
        if reply.window >= LEAST_WINDOW:
            self._served = reply.window
        if reply.stop == "context":
            self._context = max(self._context, self.window)

    @property
    def window(self) -> int:
        """The tokens that a conversation may have: of the limit and of what the server gives, the smaller; 0 = any."""
        return min(filter(None, (self.found, self._served)), default=0)

    @property
    def found(self) -> int:
        """The limit of the context, or less if the server was found out to cut at less, also for a next session."""
        return min(filter(None, (self._limits.window, self._sizes.window)), default=0)

    @property
    def out_of_turns(self) -> bool:
        return 0 < self._limits.turns <= self.turns

    def used(self, messages: Sequence[Message]) -> int:
        """Return the tokens of the conversation: those reported by the provider, and an estimate of the rest."""
        return self._context + metering.tokens(messages[self._counted :])

    def notes(self, messages: Sequence[Message], result: str) -> list[str]:
        """Return the lines below the last `result` of a batch. May set `last`."""
        lines = []
        if limit := self._limits.turns:
            lines.append(f"[TURNS LEFT] {max(0, limit - self.turns)}")
        # The next prompt includes the new results: without them the warning would come a batch too late.
        used = self.used(messages) + metering.tokens([Message("user", result)])
        window = self.window
        if self._sizes.read:
            lines.append(prompt.FORGOTTEN.format(self._sizes.read, self._sizes.least))
            self._sizes.read = 0
        if window < self._limits.window and not self._told:
            self._told = True
            lines.append(prompt.SERVED.format(window, self._limits.window))
        lines.append(f"[CONTEXT USED] {round(used / 1000)}K of {round(window / 1000)}K")
        lines += self._of_tree()
        last = "turn_exhaustion" if self.out_of_turns else ""
        last = last or ("context_exhaustion" if 0 < window <= used else "")
        last = last or ("" if self.affords(2, used) or self._borrows(2, used) else "budget")
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
            late = left < (1 - LATE) * self._time
            lines.append(f"[TIME LEFT] {max(0, round(left))} s{prompt.LATE if late else ''}")
        return lines

    def left(self, surely: bool = False) -> Remaining:
        """Return tokens and dollars left to the tree; for relayed inference, the lower of here and the origin.

        `surely`: amounts that others have reserved, and may give back, do not count as used.
        """
        own = self._ledger.left(surely)
        remaining: Remaining | None = getattr(self._guest, "surely" if surely else "left", None)
        return own if remaining is None else own.least(remaining)

    def _borrows(self, count: int, prompt: int) -> bool:
        """Whether the origin lends enough for that, to a machine that pays by itself."""
        prompt = max(prompt, metering.TOOLS) if self._context else prompt + metering.TOOLS
        if not metering.borrow(self._ledger, self._price, count, prompt):
            return False
        for name in ("left", "surely"):  # as told with the last reply, before the loan
            if hasattr(self._guest, name):
                setattr(self._guest, name, Remaining())
        return True

    def affords(self, count: int, prompt: int) -> bool:
        """Return whether `count` inferences with prompts of `prompt` tokens can be paid."""
        tokens, dollars = self.left(surely=True)
        # Counts reported by the provider include the tools.
        prompt = max(prompt, metering.TOOLS) if self._context else prompt + metering.TOOLS
        if tokens is not None and tokens < count * (prompt + LEAST_REPLY):
            return False
        return dollars is None or not self._price or dollars >= count * self._price.about(prompt, LEAST_REPLY)

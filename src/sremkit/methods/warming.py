"""When a warm-up has reached what it is for: pairs win their batch, and the share of those that do has settled.

A given pair wins when no other text fits its image better, or no other image its text; each direction counts for
a half. By guessing it would win once in c, against c - 1 others. The share that wins first creeps up from there, then
rises fast, then slowly. The warm-up suffices after the first epoch with

    share >= sqrt(guessed)  and  share < 1.25 share two epochs before

Both are needed. While the share still creeps, chance makes it stand still now and then, so it has to be half-way to
certainty, as the square root is on a scale of logarithms. And what rises fast is worth waiting for. The constants are
a choice that fits measured warm-ups (tests/methods/test_warming.py), not a result.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sremkit.objectives.candidates import diagonal_mask, low

SETTLED = 1.25  # the share has settled when it is less than so many times that of two epochs before


class Warming:
    """Counts the pairs that win their batch, epoch by epoch. What it counts stays on the device until then."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The warm-up is over."""
        self.shares: list[float] = []  # of the whole epochs so far, three at most
        self.guessed = math.nan  # what guessing would have won in the last of them
        self._tally = torch.zeros(3, dtype=torch.float64)  # wins, wins expected of guessing, queries
        self._has_seen = False

    @torch.no_grad()
    def see(self, logits: Tensor, image_ids: Tensor | None) -> None:
        """Count the winners of one batch.

        Args:
            logits: (b, b), rows images, columns texts, the given pairs on the diagonal.
            image_ids: (b,) integers; pairs with equal numbers share their image and are no rivals.
        """
        given = logits.diagonal()  # (b,)
        no_rival = diagonal_mask(logits) if image_ids is None else image_ids[:, None] == image_ids  # (b, b)
        rivals = logits.masked_fill(no_rival, low(logits.dtype))  # (b, b)
        # A tie is no win: where all logits are alike, nobody wins.
        wins = (given > rivals.amax(dim=1)).sum() + (given > rivals.amax(dim=0)).sum()
        candidates = len(logits) - no_rival.sum(dim=1) + 1  # (b,) with the given one, in either direction
        guessed = 2 * candidates.double().reciprocal().sum()
        if self._tally.device != logits.device:
            self._tally = self._tally.to(logits.device)
        # In place and without a look at the numbers, so that a step can be recorded and replayed.
        self._tally[0].add_(wins)
        self._tally[1].add_(guessed)
        self._tally[2].add_(2 * len(logits))
        self._has_seen = True

    def finish_epoch(self) -> None:
        """Turn the counts of the epoch into its share."""
        wins, guessed, queries = self._tally.tolist()
        if queries == 0:
            return
        self.shares = [*self.shares[-2:], wins / queries]
        self.guessed = guessed / queries
        self._tally.zero_()

    def is_enough(self) -> bool:
        """Whether the last epoch says that the warm-up suffices; never before the third one."""
        if len(self.shares) < 3:
            return False
        two_before, _, share = self.shares
        return share >= math.sqrt(self.guessed) and share < SETTLED * two_before

    def in_words(self) -> str:
        """What the last epoch reached."""
        if not self.shares:
            return "no epoch of it is complete"
        share = self.shares[-1]
        reached = f"{_percent(share)} of the pairs win their batch"
        if share < math.sqrt(self.guessed):
            wanted = f"{_percent(math.sqrt(self.guessed))} is the least that counts"
            return f"{reached}; guessing would win {_percent(self.guessed)}, and {wanted}"
        if len(self.shares) < 3:
            return f"{reached} after {len(self.shares)} epochs, and it takes three to see whether that grows"
        growth = share / self.shares[0] - 1 if self.shares[0] > 0 else math.inf
        more = f"{100 * abs(growth):.0f} % {'more' if growth >= 0 else 'less'}"
        return f"{reached}, {more} than two epochs before"

    def state_dict(self) -> dict[str, Tensor]:
        """Empty before and after the warm-up."""
        if not self._has_seen:
            return {}
        shares = torch.tensor(self.shares, dtype=torch.float64)  # (0,) to (3,)
        return {"winning/tally": self._tally, "winning/shares": shares}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state; one without these entries comes from outside a warm-up."""
        self.forget()
        if "winning/tally" in state:
            self._tally = state["winning/tally"].clone()
            self.shares = state["winning/shares"].tolist()
            self._has_seen = True


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"

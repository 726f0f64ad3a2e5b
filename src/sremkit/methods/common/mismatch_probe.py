"""The mismatch probe: compares pairs with synthetic mismatches to decide whether a mixture's low mode is noise.

A mixture finds two components in any sample, also where every pair is correct and some are merely hard. But the
statistic of a mismatched pair can be measured: image i with text i + 1 of the batch is one. The given text of image i
and the given image of text i + 1 are excluded from the candidates, as the true counterparts of a mismatched pair are
absent too. If a share s of the pairs were mismatched and not yet fitted, s / 2 of the pairs would lie below the median
of these probes. So

    mismatch ratio = 2 (share of pairs below the median of the probes) / (weight of the mixture's lower component)

is about 1 where the lower component consists of mismatched pairs, and near 0 where it consists of hard ones. Fitting
mismatched pairs lowers it, so it is computed at the end of the warm-up and not later.

Where few pairs are mismatched, the lower component consists of hard ones and some mismatched ones, and the ratio is
small although there are mismatches. So their share in all pairs counts too:

    mismatch rate = 4 (share of pairs below the lower quartile of the probes)

The quartile in the place of the median leaves out hard pairs, which lie above most probes.

Probes are random mismatches. A mismatch that is nearly right, such as the caption of a similar image, scores as hard
pairs do and far above them: neither number sees it.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sremkit.objectives.logits import diagonal_mask, mask_invalid

TOLERANCE = 1e-3  # values this close are equal: the logits of very unlikely pairs are all clamped to one value


class MismatchProbe(NamedTuple):
    """Each image i with the text i + 1."""

    probability: Tensor  # (b,) of matching, without the given candidates; mean of both directions
    is_valid: Tensor  # (b,) bool: False where image i and text i + 1 belong to the same image


def mismatch_probe(logits: Tensor, valid: Tensor | None = None) -> MismatchProbe:
    """The synthetic mismatches of a batch.

    Args:
        logits: (b, b), rows images, columns texts, the given pairs on the diagonal.
        valid: (b, b) bool, True where a candidate counts.
    """
    negative = ~diagonal_mask(logits) if valid is None else valid & ~diagonal_mask(logits)  # (b, b)
    others = mask_invalid(logits, negative)
    i2t, t2i = (_next_text(others.softmax(dim)) for dim in (1, 0))
    return MismatchProbe((i2t + t2i) / 2, _next_text(negative))


def _next_text(matrix: Tensor) -> Tensor:
    """The entries (i, i + 1), cyclic: (b,)."""
    return matrix.roll(-1, dims=1).diagonal()


def mismatch_ratio(pairs: Tensor, probes: Tensor, lower_weight: float) -> float:
    """The share of the lower component that the probes explain.

    Args:
        pairs: (n,) statistic of the pairs.
        probes: (k,) the same statistic of the synthetic mismatches.
        lower_weight: weight of the lower component of a mixture over `pairs`.
    """
    below = (pairs <= probes.median() + TOLERANCE).double().mean().item()
    return 2 * below / max(lower_weight, 1e-9)


def mismatch_rate(pairs: Tensor, probes: Tensor) -> float:
    """The share of all pairs that are mismatched as the probes are: (n,) and (k,) as for `mismatch_ratio`."""
    quartile = probes.sort().values[len(probes) // 4]
    return min(1.0, 4 * (pairs <= quartile + TOLERANCE).double().mean().item())

"""Right, shuffled and subtle pairs apart: what each kind has of a training, and how well a score tells it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.scenes import SceneTruth
from sremkit.evaluation import detection_metrics
from sremkit.objectives import Loss, Terms

KINDS = ("right", "shuffled", "subtle")
RIGHT, SHUFFLED, SUBTLE = range(3)


class KindWatch:
    """Adds up, over an epoch, what each kind of pair had of the training. Tells nobody in the training.

    Args:
        kind: (num_pairs,) a number out of RIGHT, SHUFFLED and SUBTLE for each training pair.
    """

    def __init__(self, kind: np.ndarray) -> None:
        self.kind = torch.as_tensor(kind)
        self._start()

    def _start(self) -> None:
        self.sums = torch.zeros(3, len(KINDS), dtype=torch.float64)  # asked, selected, pull
        self.selects = False

    def step(self, batch: Batch, terms: Loss, pull: Tensor | None = None) -> None:
        """Enter one batch; every pair is asked for in two directions."""
        self.kind = self.kind.to(batch.pair_id.device)
        of_kind = F.one_hot(self.kind[batch.pair_id], len(KINDS)).double()  # (b, 3)
        asked = of_kind.new_full((len(of_kind),), 2.0)
        selected = torch.zeros_like(asked)
        if isinstance(terms, Terms):
            self.selects = True
            selected = terms.clean_i2t.double() + terms.clean_t2i.double()
        pulled = torch.zeros_like(asked) if pull is None else pull.double()
        self.sums = self.sums.to(of_kind.device) + torch.stack([asked, selected, pulled]) @ of_kind  # (3, 3)

    def finish_epoch(self) -> dict[str, float]:
        """Which share of each kind was selected (for methods that select), and of all pull went to each kind."""
        asked, selected, pull = self.sums
        metrics: dict[str, float] = {}
        if self.selects:
            metrics |= {
                f"selected_{name}": v for name, v in zip(KINDS, (selected / asked).tolist(), strict=True)
            }
        if pull.sum() > 0:
            metrics |= {
                f"pull_{name}": v for name, v in zip(KINDS, (pull / pull.sum()).tolist(), strict=True)
            }
        self._start()
        return metrics

    def state(self) -> dict[str, float]:
        return {str(k): value for k, value in enumerate(self.sums.flatten().tolist())} | {
            "selects": self.selects
        }

    def load_state(self, state: dict[str, float]) -> None:
        sums = [state[str(k)] for k in range(self.sums.numel())]
        self.sums = torch.tensor(sums, dtype=torch.float64).view(3, len(KINDS))
        self.selects = bool(state["selects"])


def kind_of_pairs(truth: SceneTruth) -> np.ndarray:
    """(m,) RIGHT, SHUFFLED or SUBTLE."""
    return np.where(truth.is_subtle, SUBTLE, np.where(truth.is_noisy, SHUFFLED, RIGHT))


def aurocs(score: np.ndarray, kind: np.ndarray) -> dict[str, float]:
    """How well a score, low for wrong pairs, tells each kind of wrong pair from the right ones."""
    measured = {}
    for wrong in (SHUFFLED, SUBTLE):
        judged = (kind == wrong) | (kind == RIGHT)
        measured[f"{KINDS[wrong]}_auroc"] = detection_metrics(kind[judged] == wrong, score[judged])["auroc"]
    return measured

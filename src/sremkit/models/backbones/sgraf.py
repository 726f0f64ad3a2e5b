"""SGRAF: the mean of an SGR and a SAF, whose similarities the field averages after the sigmoid (`Ensemble`).

The two share no weights, and are trained together here, where the original trains them separately (build `sgr` and
`saf` for that, and average their sigmoids).

Reference: Diao et al., "Similarity Reasoning and Filtration for Image-Text Matching", AAAI 2021.
"""

from __future__ import annotations

from typing import Any

from sremkit.models import BACKBONES
from sremkit.models.backbones.saf import SimilarityAttentionFiltration, Statistics
from sremkit.models.backbones.sgr import SimilarityGraphReasoning
from sremkit.models.ensemble import Ensemble
from sremkit.models.layers.similarity_nodes import NodeMatcher
from sremkit.models.matcher import Matcher


@BACKBONES.register("sgraf")
class SimilarityGraphReasoningAndFiltration(Ensemble, options_of=NodeMatcher):
    """The mean of the similarities of SGR and SAF (SGRAF).

    Args:
        num_steps: SGR's steps of reasoning.
        statistics: what SAF's filter is normalised over in training; see `saf`.
    """

    supports_cuda_graphs = True
    compares_in_autocast = True
    small_options = NodeMatcher.small_options

    def __init__(self, *, num_steps: int = 3, statistics: Statistics = "caption", **options: Any) -> None:
        super().__init__()
        self.sgr = SimilarityGraphReasoning(num_steps=num_steps, **options)
        self.saf = SimilarityAttentionFiltration(statistics=statistics, **options)

    def pair(self) -> tuple[Matcher, Matcher]:
        return self.sgr, self.saf

"""How an epoch goes: one file a method. The training loop runs a method and never names one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.models import Matcher, build_matcher
from sremkit.models.encoding import EncodedPairs
from sremkit.objectives import Loss
from sremkit.registry import Registry


class Scorer(Protocol):
    """A matcher as a method sees it: a batch in, its logits (b, b) out; of two networks (2, b, b)."""

    def __call__(self, batch: Batch) -> Tensor: ...


class Pairing(NamedTuple):
    """Which image each text was given with, and how to change it."""

    image_of_text: Tensor  # (num_pairs,) as given
    encode: Callable[[Tensor], tuple[Matcher, EncodedPairs]]  # the model that counts; all images, these texts
    give_images: Callable[[Tensor], None]  # from now on the texts come with these images


@dataclass(frozen=True)
class Surroundings:
    """What a method has at hand beside the batches. Most need no more than the first two."""

    num_pairs: int
    device: torch.device
    matcher: Matcher | None = None  # for what a batch's logits do not tell, such as a pass over all pairs
    every_pair: Callable[[int], Iterator[Batch]] | None = (
        None  # each training pair once, in an order of this number
    )
    trusted: Batches | None = None  # pairs known to be right, set aside from the training data
    pairing: Pairing | None = None  # for a method that gives texts other images

    def whole(self) -> tuple[Matcher, Callable[[int], Iterator[Batch]]]:
        """The matcher and the passes over all pairs, for a method that cannot do without."""
        if self.matcher is None or self.every_pair is None:
            raise ValueError("this method passes over all pairs; start it with the matcher and the passes")
        return self.matcher, self.every_pair


class Method:
    """A way to learn from pairs of which some are wrong. Subclasses give `loss`, and what else they need."""

    #: How many networks it trains, whose mean is evaluated. Several make its results those of an ensemble.
    networks: ClassVar[int] = 1
    #: Whether it needs pairs known to be right; then `data.trusted_images` are set aside for it.
    needs_trusted: ClassVar[bool] = False
    #: Whether a step computes the same whatever its numbers are, so that it can be recorded and replayed.
    recordable: ClassVar[bool] = True

    @classmethod
    def model(cls, backbone: str, **options: Any) -> Matcher:
        """The model that it trains, of this backbone."""
        member = {"name": backbone, "options": options}
        return (
            build_matcher(backbone, **options) if cls.networks == 1 else build_matcher("twins", member=member)
        )

    def start(self, surroundings: Surroundings) -> None:
        """Called once before the first batch, or before the state of a stopped run is loaded."""

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Called before the first batch of each epoch, such as to look at all pairs and divide them."""

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        """The loss of one batch; `warmup` is true in the epochs that only prepare the model."""
        raise NotImplementedError

    def finish_epoch(self) -> None:
        """Called after the last batch of each epoch."""

    def warmed_up(self) -> bool:
        """Whether the warm-up has reached what it is for; asked after each of its epochs."""
        return False

    def warmth(self) -> str:
        """What the warm-up has reached, in words that can follow a colon; empty if the method cannot tell."""
        return ""

    def too_cold(self) -> str:
        """Why the end of the warm-up now would do harm, as a sentence; empty if it would not."""
        return ""

    def found_out(self) -> str:
        """What the warm-up has found out, as a sentence said at its end; empty if there is nothing to say."""
        return ""

    def state_dict(self) -> dict[str, Tensor]:
        """What the method remembers between batches, so that a stopped run can go on exactly."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            raise ValueError(f"this method keeps no state, but the checkpoint holds {sorted(state)}")


METHODS: Registry[type[Method]] = Registry("method", package="sremkit.methods")


def build_method(name: str, **options: Any) -> Method:
    """Build a method by its name: `build_method("srem", margin=0.2)`."""
    return METHODS[name](**options)


__all__ = ["METHODS", "Method", "Pairing", "Scorer", "Surroundings", "build_method"]

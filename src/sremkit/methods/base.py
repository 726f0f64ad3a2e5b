"""The base class of a training method, what the trainer gives it, and the registry of methods."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sremkit.config.options import TakesOptions
from sremkit.config.settings import check_options
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.models import Matcher, build_matcher
from sremkit.models.matcher import EncodedPairs
from sremkit.objectives import Loss
from sremkit.registry import Registry

#: The forward pass of the trained model: logits (b, b) of a batch, or (2, b, b) of two networks.
Forward: TypeAlias = Callable[[Batch], Tensor]


class Pairing(NamedTuple):
    """The image of each training text, for a method that changes it."""

    image_of_text: Tensor  # (num_pairs,) int64, as given
    encode: Callable[[Tensor], tuple[Matcher, EncodedPairs]]  # texts -> model, all images and these texts
    assign_images: Callable[[Tensor], None]  # (num_pairs,): the image that each text is trained with from now on


@dataclass(frozen=True)
class TrainingContext:
    """What a method may use apart from batches. Most methods need the first two fields only."""

    num_pairs: int
    device: torch.device
    matcher: Matcher | None = None
    scan_pairs: Callable[[int], Iterator[Batch]] | None = None  # each pair once, in a random order of this number
    trusted: Batches | None = None  # pairs known to be correct, held out from the training pairs
    pairing: Pairing | None = None
    take_pairs: Callable[[Tensor], Batch] | None = None  # these training pairs, on the device
    restart: Callable[[], None] | None = None  # initialise the model again, and forget the optimizer's state

    def require_scan(self) -> tuple[Matcher, Callable[[int], Iterator[Batch]]]:
        """The matcher and `scan_pairs`, for a method that scores all pairs between epochs."""
        if self.matcher is None or self.scan_pairs is None:
            raise ValueError("this method scores all pairs between epochs; start it with matcher and scan_pairs")
        return self.matcher, self.scan_pairs


@dataclass(frozen=True)
class WarmupStatus:
    """The state of the warm-up after an epoch of it. A method that does not monitor its warm-up is always ready."""

    is_ready: bool = True  # the warm-up may end
    message: str = ""  # what it has reached, as the end of a sentence
    finding: str = ""  # what the warm-up has shown about the data, as a sentence


class Method(TakesOptions):
    """A method to learn from pairs of which some are mismatched. A subclass implements `loss`."""

    #: Number of networks that are trained; their mean similarity is evaluated, so more than one is an ensemble.
    networks: ClassVar[int] = 1
    #: Whether it needs pairs known to be correct; `data.trusted_images` are held out for it.
    needs_trusted: ClassVar[bool] = False
    #: Whether `warmup_status` reports when the warm-up may end; otherwise it has a fixed length.
    monitors_warmup: ClassVar[bool] = False
    #: Whether training returns to the warm-up if what follows destroys what was learned (`training/warmup.py`).
    returns_to_warmup: ClassVar[bool] = False
    #: Whether a step runs the same kernels whatever the values are, so that CUDA graphs can replay it.
    supports_cuda_graphs: ClassVar[bool] = True
    #: Names of its functions that `loss` calls and torch.compile must not trace, because they run the model.
    uncompiled: ClassVar[tuple[str, ...]] = ()
    #: Whether several processes can share a batch. A method that encodes a batch by itself works in one process.
    supports_processes: ClassVar[bool] = True
    #: Whether it trains differently in warm-up epochs; without a warm-up, a recipe's warm-up epochs are ordinary ones.
    has_warmup: ClassVar[bool] = True
    #: Whether it divides the pairs into clean and noisy ones; `report.clean` of its loss holds the division.
    selects_pairs: ClassVar[bool] = False

    #: Estimated probability that each training pair is correct, (num_pairs,), of a method that estimates it.
    clean_prob: Tensor | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "graph_key" not in own and not own.keys().isdisjoint({"loss", "begin_epoch", "finish_epoch"}):
            cls.graph_key = Method.graph_key  # type: ignore[method-assign]  # the inherited one may not suffice

    @classmethod
    def model(cls, backbone: str, **options: Any) -> Matcher:
        """Build the model that the method trains, with this backbone."""
        if cls.networks == 1:
            return build_matcher(backbone, **options)
        return build_matcher("two-networks", member={"name": backbone, "options": options})

    @classmethod
    def example_options(cls) -> dict[str, Any]:
        """Options for a small dual encoder whose logits are scaled cosines, as tests and examples train."""
        return {}

    def start(self, context: TrainingContext) -> None:
        """Called once, before the first batch and before a checkpoint is loaded."""

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Called before the first batch of an epoch, for example to split all pairs into clean and noisy."""

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        """The loss of one batch; its `report` holds what the method selected."""
        raise NotImplementedError

    def finish_epoch(self) -> None:
        """Called after the last batch of an epoch."""

    def graph_key(self) -> Hashable:
        """What a captured step depends on, apart from weights and from tensors that are only written in place.

        Called after `begin_epoch`. CUDA graphs are replayed in later epochs too, as long as it stays the same; with
        None they are captured anew in each epoch. A subclass that overrides `loss`, `begin_epoch` or `finish_epoch`
        does not inherit it.
        """
        return None

    def warmup_status(self) -> WarmupStatus:
        """Called after each epoch of the warm-up."""
        return WarmupStatus()

    def collapse_message(self) -> str:
        """Why training has to return to the warm-up, if it has to; asked after a warm-up until an epoch ends ready."""
        return ""

    def state_dict(self) -> dict[str, Tensor]:
        """The state that a checkpoint keeps, so that a stopped run resumes exactly."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            raise ValueError(f"this method keeps no state, but the checkpoint holds {sorted(state)}")


METHODS: Registry[type[Method]] = Registry(
    "method",
    packages=("sremkit.methods",),
    group="sremkit.methods",
    accepts=lambda component: issubclass(component, Method),
)


def build_method(name: str, **options: Any) -> Method:
    """Build a method by its name: `build_method("srem", margin=0.2)`."""
    method = METHODS[name]
    check_options(method, options, where="method")
    return method(**options)

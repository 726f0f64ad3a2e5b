"""What a captured step must not do, found out without a CUDA device: on tensors without values, and on
a tape that plays the same operations again, as a CUDA graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.methods import Method, TrainingContext
from sremkit.models import Matcher
from training import tiny

SIZE = 24  # of a batch
NUM_PAIRS = 96

#: In the place of a device: its tensors have shapes and no numbers, so that nothing can wait for one.
DEVICE = torch.device("meta")


@contextmanager
def stand_in_for_a_device() -> Iterator[None]:
    """Lets `DEVICE` be asked for autocast, of which it knows nothing: there is none."""
    with (
        mock.patch.object(torch, "is_autocast_enabled", return_value=False),
        mock.patch.object(torch, "autocast", return_value=nullcontext()),
    ):
        yield


class HostWaitsError(Exception):
    """A step that cannot be captured, and the operation that is to blame."""


#: What makes a tensor of the host's own numbers, which a device has to be sent.
_OF_HOST_NUMBERS = (torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor)


class _RefuseHostNumbers(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_host_rows = func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list | np.ndarray)
        if func in _OF_HOST_NUMBERS or by_host_rows:
            raise HostWaitsError(f"{func.__name__} sends numbers from the host to the device")
        return func(*args, **(kwargs or {}))


class _RefuseReading(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # A number on the host would be frozen into the graph; anything larger would have to travel.
        if any(tensor.device != DEVICE for tensor in tensors) or kwargs.get("device", DEVICE) != DEVICE:
            raise HostWaitsError(f"{func} takes or gives a tensor that is not on the device")
        # The stand-in refuses to read such a selection, but not to write to it.
        if "index_put" in str(func) and any(
            leaf is not None and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        ):
            raise HostWaitsError(f"{func} counts what a mask selects")
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            raise HostWaitsError(f"{func} needs the numbers of a tensor, or has a shape that does") from error


@contextmanager
def refusing_to_wait() -> Iterator[None]:
    """HostWaitsError where what is computed on `DEVICE` inside the block could not be captured."""
    with _RefuseHostNumbers(), _RefuseReading():
        yield


class Tape(TorchDispatchMode):
    """Runs a step on the CPU and writes down its operations; played, they are done to the same memory again.

    Whatever Python does besides is not on it: as in a CUDA graph, counters stand still, branches go the way they
    went, and a tensor that an attribute was given later is not the one that is read.
    """

    def __init__(self, step: Callable[[Batch], Tensor], batch: Batch) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []
        self._batch = batch
        with self:
            self.result = step(batch)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._operations.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}, made))))
        return made

    @torch.no_grad()
    def play(self, batch: Batch) -> Tensor:
        """The result of the captured step for another batch of the same shape."""
        for field in fields(batch):
            given = getattr(batch, field.name)
            if isinstance(given, Tensor):
                getattr(self._batch, field.name).copy_(given)
        for func, *remembered in self._operations:
            # Aliases: some operations change a shape in place.
            args, kwargs, before = tree_map_only(Tensor, Tensor.detach, remembered)
            for old, new in zip(tree_leaves(before), tree_leaves(func(*args, **kwargs)), strict=True):
                # Views and changes in place are in their memory already.
                if isinstance(old, Tensor) and old.untyped_storage()._cdata != new.untyped_storage()._cdata:
                    old.copy_(new)
        return self.result


def started(method: Method, device: torch.device, *, seed: int = 0) -> tuple[Matcher, Method]:
    """A small model of the method's own kind, and the method with some division of the pairs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        matcher = method.model("dual", image_dim=12, text_dim=8, hidden_size=16, embed_size=8, dropout=0.0)
    matcher = matcher.to(device).train()
    trusted = Batches(tiny.tiny_pairs(num_images=8), batch_size=8)
    take_pairs = lambda rows: Batches(tiny.tiny_pairs(), batch_size=SIZE).take(rows.cpu().numpy()).to(device)  # noqa: E731
    surroundings = TrainingContext(
        NUM_PAIRS, device, matcher, lambda round_: iter(()), trusted, take_pairs=take_pairs, restart=lambda: None
    )
    method.start(surroundings)
    for name in ("clean",):
        if isinstance(division := getattr(method, name, None), Tensor):
            some = torch.arange(division.numel()).view(division.shape) % 3 > 0
            setattr(method, name, some.to(device))
    if hasattr(method, "num_splits"):
        method.num_splits = 1
        method.learns_noisy = method.noisy_after < 1
    return matcher, method


def batch_number(k: int) -> Batch:
    rows = np.random.default_rng(k).permutation(NUM_PAIRS)[:SIZE]
    return Batches(tiny.tiny_pairs(), batch_size=SIZE).take(rows)


def descend(matcher: Matcher, method: Method, *, warmup: bool) -> Callable[[Batch], Tensor]:
    """A step of plain gradient descent that gives its loss."""

    def step(batch: Batch) -> Tensor:
        loss = method.loss(lambda b: matcher.logits_and_losses(b)[0], batch, warmup=warmup).total
        parameters = [p for p in matcher.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(1e-3 * gradient.to(parameter))
        return loss.detach()

    return step


def check_it_never_waits(method: Method, *, warmups: tuple[bool, ...] = (True, False)) -> None:
    """Two steps eager, as a graph has before it, then every kind of step that may be captured."""
    with stand_in_for_a_device():
        matcher, method = started(method, DEVICE)
        batch = batch_number(0).to(DEVICE)
        try:
            for _ in range(2):
                descend(matcher, method, warmup=warmups[0])(batch)
        except (NotImplementedError, RuntimeError) as error:
            raise HostWaitsError("a step needs the numbers of a tensor, or has a shape that does") from error
        for warmup in warmups:
            with refusing_to_wait():
                descend(matcher, method, warmup=warmup)(batch)


def losses_and_memory(method: Method, *, warmup: bool, replayed: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The losses of eight steps, and what the method then remembers; from the third on replayed if wanted."""
    matcher, method = started(method, torch.device("cpu"))
    step = descend(matcher, method, warmup=warmup)
    losses = [step(batch_number(k)).clone() for k in range(2)]
    if replayed:
        tape = Tape(step, batch_number(2))
        losses.append(tape.result.clone())
        step = tape.play
    losses += [step(batch_number(k)).clone() for k in range(len(losses), 8)]
    return losses, {**method.state_dict(), **matcher.state_dict(prefix="model/")}

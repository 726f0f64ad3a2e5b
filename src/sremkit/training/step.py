"""One step of the optimizer, from a batch to updated weights: forward pass, loss, backward pass, update, average.

The forward pass is plain, compiled, with gradient caching, or joined over processes (`training/distributed.py`). The
whole step runs eagerly, or is replayed as a CUDA graph (`training/cuda_graphs.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sremkit.config.recipes import Auto, Precision, TrainingSettings
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.methods import Method
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.regional_compile import compile_around_kernels, run_eagerly
from sremkit.objectives import Loss
from sremkit.training.cuda_graphs import GraphedSteps, uses_cuda_graphs
from sremkit.training.distributed import JointForward, all_reduce_gradients, all_reduce_sum, join_ids
from sremkit.training.execution import run_or_repeat

Record = TypeVar("Record")  # what is kept of a step


@dataclass(frozen=True)
class StepResult:
    """The result of a step for metrics and observers; all tensors are detached."""

    batch: Batch  # on the device, with the pair numbers of all processes
    total: Tensor  # the loss of all processes, with the backbone's own losses
    loss: Loss  # of the method
    extra_losses: dict[str, Tensor]  # the backbone's own
    pull: Tensor | None  # (b,) how strongly each given pair was pulled together


class OptimizerStep:
    """Forward pass, loss, backward pass, gradient clipping and update, without synchronisation of the device.

    Args:
        settings: as resolved by `training/execution.py`; "auto" is float32 and eager here.
        world: number of processes that share a batch.
    """

    def __init__(
        self, matcher: Matcher, method: Method, settings: TrainingSettings, *, device: torch.device, world: int = 1
    ) -> None:
        self.matcher = matcher
        self.method = method
        self.settings = settings
        self.device = device
        self.world = world
        if world > 1 and not method.supports_processes:
            raise UserError(
                "this method encodes its batches by itself and works in one process; start it without torchrun"
            )
        self.forward = build_forward(matcher, settings, world=world)
        self.compiled_loss: CompiledLoss | None = None
        if settings.compile is True and method.supports_cuda_graphs:
            self.compiled_loss = CompiledLoss(method, self.forward)
        self.optimizer = torch.optim.Adam(
            matcher.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=settings.cuda_graphs is True,
        )

    def __call__(self, batch: Batch, *, warmup: bool, precision: Precision | None = None) -> StepResult:
        """Train on one batch, in the precision of the settings unless another one is given."""
        if self.world > 1:
            batch = join_ids(batch)
        self.matcher.train()
        with autocast(precision or self.settings.precision, self.device):
            if self.compiled_loss is not None and precision is None and self.is_full(batch):
                loss = self.compiled_loss(batch, warmup=warmup)
            else:
                loss = self.method.loss(self.forward, batch, warmup=warmup)
        extra = self.forward.pop_extra_losses()
        total = loss.total + sum(extra.values())
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        if self.world > 1:
            all_reduce_gradients(list(self.matcher.parameters()))
            extra = {name: all_reduce_sum(own.detach()) for name, own in extra.items()}
            total = loss.total + sum(extra.values())
        for network in self.matcher.networks():
            torch.nn.utils.clip_grad_norm_(network.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        # Detached: a CUDA graph would keep the autograd graph, and with it the streams of all gradients.
        loss = replace(loss, total=loss.total.detach())
        extra = {name: own.detach() for name, own in extra.items()}
        return StepResult(batch, total.detach(), loss, extra, self.forward.pop_pull())

    def is_full(self, batch: Batch) -> bool:
        """Whether the batch has the batch size; the last one of an epoch may have fewer pairs."""
        return len(batch) == self.settings.batch_size

    def autocast(self) -> torch.autocast:
        """The precision of this training, for scoring outside of steps."""
        return autocast(self.settings.precision, self.device)


class CompiledLoss:
    """The loss of a method by torch.compile, which fuses its many small kernels (450 of SREM's objective on a GPU).

    The forward pass and `Method.uncompiled` are not traced; the former may be compiled by itself. Only full batches in
    the precision of the settings use the compiled loss: each further size or precision would have to be compiled, too.
    """

    def __init__(self, method: Method, forward: Callable[[Batch], Tensor]) -> None:
        for name in method.uncompiled:
            setattr(method, name, torch.compiler.disable(getattr(method, name)))
        self._compute = torch.compile(method.loss, dynamic=False)
        self._forward = torch.compiler.disable(lambda batch: forward(batch))

    def __call__(self, batch: Batch, *, warmup: bool) -> Loss:
        return self._compute(self._forward, batch, warmup=warmup)


class StepRunner(Generic[Record]):
    """Runs the optimizer step as its settings say: eager, compiled or as a replayed CUDA graph, in its precision.

    Args:
        step: with settings without "auto".
        record: what is kept of the result of a step. It is part of the CUDA graph, so it does not wait for the device,
            and changes tensors in place only.
        given: the settings before "auto" was resolved; what they leave to "auto" falls back to eager steps.
        process: rank and number of processes.
        warn: called with a sentence.
    """

    def __init__(
        self,
        step: OptimizerStep,
        record: Callable[[StepResult], Record],
        given: TrainingSettings,
        *,
        process: tuple[int, int],
        warn: Callable[[str], None],
    ) -> None:
        self.step, self.settings, self.device, self.warn = step, step.settings, step.device, warn
        self.record = record
        self.graphed: GraphedSteps[Record] | None = None
        if uses_cuda_graphs(self.settings, step.matcher, step.method, process, self.device):
            fall_back = self._fall_back_from_graphs if given.cuda_graphs == "auto" else None
            self.graphed = GraphedSteps(self._run, self.device, can_capture=self._kernels_support, on_failure=fall_back)
        self.may_fall_back = given.compile == "auto" and bool(self.settings.compile)
        self._has_warned_of_kernels = False
        self._graph_key: Hashable = None  # what the present graphs depend on
        self._warmup = self._is_float32 = False  # of the present step
        self._has_compiled_loss = False  # since graphs were dropped

    def __call__(self, batch: Batch, number: int, *, warmup: bool) -> Record:
        """Train on one batch. With CUDA graphs the tensors of the record are valid until the next step.

        Args:
            number: of steps that the weights were trained for before.
        """
        self._warmup = warmup
        # The first steps of a bf16 training are in float32.
        self._is_float32 = self.settings.precision == "bf16" and number < self.settings.float32_steps
        if self.graphed is None:
            return self._run(batch.to(self.device, non_blocking=True))
        if self._is_float32:  # few, and of larger values than the kernels support
            return self.graphed.eager(batch)
        if self.step.compiled_loss is not None and not self._has_compiled_loss and self.step.is_full(batch):
            self._has_compiled_loss = True
            return self.graphed.eager(batch)  # compiles, which a capture does not allow
        return self.graphed(batch)

    def keep_graphs(self, key: Hashable) -> None:
        """Keep the CUDA graphs if they were captured under the same key, else drop them; None is never the same."""
        if key is None or key != self._graph_key:
            self.reset()
        self._graph_key = key

    def reset(self) -> None:
        """Capture anew from now on: what a step depends on was replaced outside of steps."""
        self._graph_key = None
        self._has_compiled_loss = False
        if self.graphed is not None:
            self.graphed.reset()

    def _run(self, batch: Batch) -> Record:
        def step() -> StepResult:
            return self.step(batch, warmup=self._warmup, precision="float32" if self._is_float32 else None)

        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            with self._without_compiling():
                return self.record(step())
        if not self.may_fall_back:
            return self.record(step())
        matcher, method = self.step.matcher, self.step.method
        return self.record(run_or_repeat(step, matcher, method, self.device, self._fall_back_from_compile))

    def _without_compiling(self) -> AbstractContextManager[Any]:
        """Inside, a loss that would have to be compiled again runs eagerly: a capture does not allow compiling."""
        return nullcontext() if self.step.compiled_loss is None else torch.compiler.set_stance("eager_on_recompile")

    def _fall_back_from_compile(self, why: str) -> None:
        run_eagerly(self.step.matcher)
        self.step.compiled_loss = None
        self.may_fall_back = False
        self.reset()  # the state of the method was restored, which may have replaced its tensors
        self.warn(f"training.compile: compiling failed ({why}); training continues without it")

    def _fall_back_from_graphs(self, why: str) -> None:
        self.warn(f"training.cuda_graphs: a step could not be captured ({why}); training continues without it")

    def _kernels_support(self, batch: Batch) -> bool:
        """Whether the step of this batch can be captured; the first one that cannot is reported."""
        with self.step.autocast():
            supported = self.step.matcher.kernels_support(batch)
        if not supported and not self._has_warned_of_kernels:
            self._has_warned_of_kernels = True
            self.warn(
                "training.cuda_graphs: some batches have longer captions, more regions or wider similarities than the "
                "kernels support; their steps run eagerly, which is slower"
            )
        return supported


def autocast(precision: Precision | Auto, device: torch.device) -> torch.autocast:
    """bfloat16 autocast if that is the precision; "auto" has to be resolved before (`training/execution.py`).

    `cache_enabled=False`: cached bfloat16 weights would survive `optimizer.step()` under an enclosing autocast, and
    CUDA graphs must not hold them.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def build_forward(matcher: Matcher, settings: TrainingSettings, *, world: int) -> TrackedForward:
    """The forward pass for these settings and this number of processes."""
    if world > 1 and len(matcher.networks()) > 1:
        raise UserError("a method that trains two networks works in one process; start it without torchrun")
    if settings.compile is True and (world > 1 or settings.grad_cache_chunk_size is not None):
        raise UserError("training.compile works in one process, without training.grad_cache_chunk_size; leave it out")
    if settings.grad_cache_chunk_size is not None:
        if world > 1 or len(matcher.networks()) > 1:
            raise UserError(
                "training.grad_cache_chunk_size works with one network in one process; use smaller batches instead"
            )
        return TrackedForward(GradCacheForward(matcher, settings.grad_cache_chunk_size))
    if world > 1:
        return TrackedForward(JointForward(matcher))
    if settings.compile is True and not compile_around_kernels(matcher):
        return TrackedForward(torch.compile(matcher.logits_and_losses))
    return TrackedForward(matcher.logits_and_losses)


class TrackedForward:
    """Keeps what a step needs of the last forward pass: the backbone's own losses, and the logits for their gradient.

    Args:
        compute: the logits of a batch, and the backbone's own losses.
    """

    def __init__(self, compute: Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]) -> None:
        self._compute = compute
        self._logits: Tensor | None = None
        self._extra_losses: dict[str, Tensor] = {}

    def __call__(self, batch: Batch) -> Tensor:
        logits, self._extra_losses = self._compute(batch)
        if logits.requires_grad:
            logits.retain_grad()
            self._logits = logits
        return logits

    def pop_extra_losses(self) -> dict[str, Tensor]:
        """The backbone's own losses of the last call, which are released here."""
        losses, self._extra_losses = self._extra_losses, {}
        return losses

    def pop_pull(self) -> Tensor | None:
        """How strongly the last backward pass pulled each given pair together: max(0, -dL/dF_ii), (b,).

        The sum of two networks. None where the method computed no logits by this forward pass.
        """
        logits, self._logits = self._logits, None
        if logits is None or logits.grad is None:
            return None
        pull = (-logits.grad.diagonal(dim1=-2, dim2=-1)).clamp_min(0)  # (b,) or (2, b)
        return pull if pull.ndim == 1 else pull.sum(dim=0)


class GradCacheForward:
    """Gradient caching for dual encoders: encodes in chunks, compares the whole batch.

    Gradient accumulation would reduce the number of negatives. Here every pair is compared with all others: a chunk's
    activations are discarded after encoding and recomputed, with the same random numbers, in the backward pass.
    """

    def __init__(self, matcher: Matcher, chunk_size: int) -> None:
        if any(hasattr(module, "running_mean") for module in matcher.modules()):
            raise UserError(
                f"'{matcher.name}' normalises by batch statistics, which a chunk would change; "
                "training.grad_cache_chunk_size is for backbones without them, such as 'dual' and 'clip'"
            )
        self.matcher = matcher
        self.chunk_size = chunk_size

    def __call__(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        chunks = [batch[start : start + self.chunk_size] for start in range(0, len(batch), self.chunk_size)]
        images = self._encode(self.matcher.encode_images, chunks)
        texts = self._encode(self.matcher.encode_texts, chunks)
        return self.matcher.compare(images, texts), {}

    def _encode(self, encode: Callable[[Batch], Encoded], chunks: list[Batch]) -> Encoded:
        def pooled(chunk: Batch) -> Tensor:
            encoded = encode(chunk)
            if encoded.local is not None or encoded.pooled is None:
                raise UserError(
                    "training.grad_cache_chunk_size saves memory only where images and texts are compared as vectors; "
                    f"'{self.matcher.name}' compares words with regions, which takes most of its memory: "
                    "lower training.batch_size instead"
                )
            return encoded.pooled

        return Encoded(pooled=torch.cat([checkpoint(pooled, chunk, use_reentrant=False) for chunk in chunks]))


class EMA:
    """A second model whose weights are an exponential moving average, with a decay that rises over the first steps.

        ema <- d ema + (1 - d) weights,  d = min(decay, (1 + step) / (10 + step))

    `torch.optim.swa_utils.AveragedModel` copies the weights at the first update and compares its counter, a tensor,
    with 0 in each one, which on a GPU waits for the device. This version does neither.
    """

    def __init__(self, matcher: Matcher, decay: float) -> None:
        self.decay = decay
        self.matcher = copy.deepcopy(matcher).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, matcher: Matcher, step: int) -> None:
        """Update after step number `step` of this model, counted from 1; buffers are copied."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.matcher.parameters()), list(matcher.parameters()), weight)
        for average, current in zip(self.matcher.buffers(), matcher.buffers(), strict=True):
            average.copy_(current)

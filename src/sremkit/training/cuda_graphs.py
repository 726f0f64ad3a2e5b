"""Training steps that are captured once and replayed as CUDA graphs.

A step of a small model is hundreds of short kernels, which the host launches more slowly than the device runs them. A
graph launches them together, with the metrics and statistics of the step. It contains no decisions of Python, and its
shapes are fixed. So graphs are captured anew when the learning rate, the warm-up or what else the method's steps depend
on has changed (`Method.graph_key`); texts are padded to a few widths; and the first steps of each shape run eagerly,
which also initialises libraries.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit import ops
from sremkit.config.recipes import TrainingSettings
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.io import first_line
from sremkit.methods import Method
from sremkit.models.matcher import Matcher
from sremkit.models.regional_compile import parts_around_kernels

Result = TypeVar("Result")

_WIDTH = 8  # with the node of the whole text, texts are padded to a multiple of this number of nodes
_WORDS = 128  # and all words of a batch to a multiple of this number
_EAGER_STEPS = 2  # of each shape before its first capture


def uses_cuda_graphs(
    settings: TrainingSettings, matcher: Matcher, method: Method, process: tuple[int, int], device: torch.device
) -> bool:
    """Whether steps are replayed as CUDA graphs; an error where the results would not be the same."""
    if settings.cuda_graphs is not True:
        return False
    if device.type != "cuda":
        raise UserError(
            "training.cuda_graphs needs a CUDA device, and this run is on the CPU; "
            "leave it out, or choose a GPU with --set training.device=cuda"
        )
    if not method.supports_cuda_graphs:
        raise UserError(
            "training.cuda_graphs replays the same kernels in every step, but this method decides during a step "
            "what to compute; leave training.cuda_graphs out"
        )
    if not matcher.supports_cuda_graphs:
        raise UserError(
            f"training.cuda_graphs needs steps that never wait for the device, and those of {matcher.name} do; "
            "leave training.cuda_graphs out"
        )
    if process[1] > 1 or settings.grad_cache_chunk_size is not None:
        raise UserError("training.cuda_graphs works in one process, without training.grad_cache_chunk_size")
    network = matcher.networks()[0]  # two networks have the same backbone
    if network.text_input == "words":
        _require_kernels(settings, network)
    return True


def _require_kernels(settings: TrainingSettings, matcher: Matcher) -> None:
    """The reference path waits for the number of words of a batch; so does a model that is compiled as a whole."""
    if ops.backend == "plain" or not ops.has_triton():
        why = "SREMKIT_KERNELS is 'plain'" if ops.has_triton() else "Triton is not installed"
        raise UserError(
            f"training.cuda_graphs needs the kernels for {matcher.name}, and {why}; change that, or leave "
            "training.cuda_graphs out"
        )
    if settings.compile is True and not parts_around_kernels(matcher):
        raise UserError(
            f"{matcher.name} has nothing around its kernels to compile, and compiled as a whole it cannot be captured; "
            "leave training.compile out, or training.cuda_graphs"
        )


class _Graph(NamedTuple):
    graph: Any
    batch: Batch  # its input
    result: Any  # its output


class GraphedSteps(Generic[Result]):
    """Calls `step` with batches on the device; from the third batch of a shape on by replaying a CUDA graph.

    The tensors of a result are valid until the next call.

    Args:
        can_capture: whether the step of a batch can be captured; if not, it runs eagerly.
        on_failure: called with the reason when a capture fails; from then on all steps run eagerly. If absent, or if
            the device cannot be used any more, a failed capture is an error.
    """

    def __init__(
        self,
        step: Callable[[Batch], Result],
        device: torch.device,
        *,
        can_capture: Callable[[Batch], bool] = lambda batch: True,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._step = step
        self._device = device
        self._can_capture = can_capture
        self._on_failure = on_failure
        self._has_failed = False
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def reset(self) -> None:
        """Capture anew from now on: something that steps depend on was changed outside of them."""
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the memory of the old ones is released with them

    def __call__(self, batch: Batch) -> Result:
        batch = pad_to_bucket(batch)
        shape = _shape(batch)
        if shape not in self._graphs:
            if self._has_failed or self._seen[shape] < _EAGER_STEPS or not self._can_capture(batch):
                self._seen[shape] += 1
                return self._run_eagerly(batch.to(self._device, non_blocking=True))
            # A copy, because replays write into it.
            new = self._capture(batch.to(self._device, copy=True))
            if new is None:
                return self._run_eagerly(batch.to(self._device, non_blocking=True))
            self._graphs[shape] = new
        captured = self._graphs[shape]
        for own, given in zip(_tensors(captured.batch), _tensors(batch), strict=True):
            own.copy_(given, non_blocking=True)
        captured.graph.replay()
        return captured.result

    def eager(self, batch: Batch) -> Result:
        """The step of this batch without a graph, padded to the same shapes."""
        return self._run_eagerly(pad_to_bucket(batch).to(self._device, non_blocking=True))

    def _run_eagerly(self, batch: Batch) -> Result:
        # On the capture stream, so that what libraries allocate per stream is there.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            result = self._step(batch)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return result

    def _capture(self, batch: Batch) -> _Graph | None:
        """The graph of a step; None if the capture has failed and steps run eagerly from now on."""
        recovery = None if self._on_failure is None else _Recovery(self._device, self._pool)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": prefetching threads allocate meanwhile, which is not part of the step.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            with _without_garbage_collection(), capture:
                result = self._step(batch)
        except UserError:
            raise
        except Exception as problem:
            why = first_line(problem)
            if recovery is not None and self._on_failure is not None and recovery.recover():
                self._has_failed = True
                self.reset()
                self._stream = torch.cuda.Stream(self._device)  # the old one may still be capturing
                self._on_failure(why)
                return None
            if not isinstance(problem, RuntimeError):
                raise
            raise RuntimeError(
                f"a training step could not be captured ({why}), and the generator of this process's device is "
                "unusable now; start again, with --set training.cuda_graphs=false if it happens again"
            ) from problem
        return _Graph(graph, batch, result)


class _Recovery:
    """Makes the device usable again after a failed capture.

    A step that is captured changes nothing on the device, so only what the capture itself has changed is restored.
    PyTorch ends an invalid capture by an error, before it gives stream, memory pool and generator back. Stream and pool
    are given back here, and the generator continues from the state before, in a new generator state.
    """

    def __init__(self, device: torch.device, pool: Any) -> None:
        self._device = device
        self._pool = pool
        self._stream = torch.cuda.current_stream(device)
        self._generator = torch.cuda.get_rng_state(device)

    def recover(self) -> bool:
        """Restore, and draw a random number as a test; whether all of it worked."""
        try:
            torch.cuda.set_stream(self._stream)
            end = getattr(torch._C, "_cuda_endAllocateToPool", None)
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            if end is not None:
                with suppress(RuntimeError):  # given back already
                    end(index, self._pool)
            fresh = torch.Generator(self._device)
            fresh.set_state(self._generator)
            torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())
            torch.rand(1, device=self._device)
            torch.cuda.synchronize(self._device)
            torch.cuda.set_rng_state(self._generator, self._device)
        except (RuntimeError, AttributeError):
            return False
        return True


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """No garbage collection inside.

    An earlier run of this process leaves its graphs in reference cycles. One that is destroyed during a capture may
    invalidate it, and a failed capture leaves the process without random numbers.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def pad_to_bucket(batch: Batch) -> Batch:
    """The batch with its texts padded to one of a few widths and total numbers of words."""
    if batch.words is None or batch.word_mask is None or batch.max_total_words is None:
        return batch
    missing = -(1 + batch.words.shape[1]) % _WIDTH
    return replace(
        batch,
        words=F.pad(batch.words, (0, missing)),
        word_mask=F.pad(batch.word_mask, (0, missing)),
        max_total_words=-(-batch.max_total_words // _WORDS) * _WORDS,
    )


def _shape(batch: Batch) -> tuple[Any, ...]:
    return batch.max_total_words, *(t.shape for t in _tensors(batch))


def _tensors(batch: Batch) -> list[Tensor]:
    return [t for f in fields(batch) if isinstance(t := getattr(batch, f.name), Tensor)]

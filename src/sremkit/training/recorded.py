"""Training steps that are recorded once and replayed: CUDA graphs.

A step of a small model is hundreds of short kernels, and the host takes longer to launch them than the
device to run them. Recorded, they are launched as one. What a recording cannot see are Python's own decisions, and
its shapes are fixed. So steps are recorded anew in each epoch, where rates and a method's memory may have changed;
texts are padded to a few widths; and the first steps of each shape run as usual, which also prepares libraries.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.methods import Method
from sremkit.models.compiling import parts_around_kernels
from sremkit.models.matcher import Matcher
from sremkit.recipes import TrainingSettings

Outcome = TypeVar("Outcome")

_WIDTH = 8  # with the node of the whole text, texts are padded to a multiple of so many nodes
_WORDS = 128  # and all words of a batch to a multiple of so many
_AS_USUAL = 2  # steps of each shape before the first recording


def records(
    settings: TrainingSettings,
    matcher: Matcher,
    method: Method,
    process: tuple[int, int],
    device: torch.device,
) -> bool:
    """Whether steps are recorded; refused where that would not give the same training."""
    if not settings.recorded:
        return False
    if device.type != "cuda":
        raise UserError(
            "training.recorded replays steps on a CUDA device, and this run is on the processor; "
            "leave it out, or choose a GPU with --set training.device=cuda"
        )
    if not method.recordable:
        raise UserError(
            "training.recorded replays the same kernels in every step, but this method decides during a step "
            "what to compute; leave training.recorded out"
        )
    if not matcher.recordable:
        raise UserError(
            f"training.recorded replays steps that never wait for the device, and those of {matcher.name} do; "
            "leave training.recorded out"
        )
    if process[1] > 1 or settings.micro_batch is not None:
        raise UserError("training.recorded works in one process, without training.micro_batch")
    network = matcher.networks()[0]  # of two they are of one kind
    if network.text_input == "words":
        _refuse_without_kernels(settings, network)
    return True


def _refuse_without_kernels(settings: TrainingSettings, matcher: Matcher) -> None:
    """Words of different numbers are what the plain way waits for; so does all that is compiled, but for parts."""
    if kernels.backend == "plain" or not kernels.has_triton():
        why = "SREMKIT_KERNELS is 'plain'" if kernels.has_triton() else "Triton is not installed"
        raise UserError(
            f"training.recorded needs the kernels for {matcher.name}, and {why}; change that, or leave "
            "training.recorded out"
        )
    if settings.compile and not parts_around_kernels(matcher):
        raise UserError(
            f"{matcher.name} has nothing around its kernels to compile, and compiled as a whole it cannot be recorded; "
            "leave training.compile out, or training.recorded"
        )


class _Recording(NamedTuple):
    graph: Any
    batch: Batch  # what the graph reads
    outcome: Any  # what it writes


class RecordedSteps(Generic[Outcome]):
    """Calls `step` with batches on the device; from the third batch of a shape on by replaying a recording.

    An outcome's tensors are valid until the next call.

    Args:
        can_record: whether a batch's step can be recorded; if not, it runs as usual.
    """

    def __init__(
        self,
        step: Callable[[Batch], Outcome],
        device: torch.device,
        *,
        can_record: Callable[[Batch], bool] = lambda batch: True,
    ) -> None:
        self._step = step
        self._device = device
        self._can_record = can_record
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def forget(self) -> None:
        """Record anew from now on: something that steps depend on was changed outside of them."""
        self._recordings.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the memory of the old ones went with them

    def __call__(self, batch: Batch) -> Outcome:
        batch = round_up(batch)
        shape = _shape(batch)
        if shape not in self._recordings:
            if self._seen[shape] < _AS_USUAL or not self._can_record(batch):
                self._seen[shape] += 1
                return self._as_usual(batch.to(self._device, non_blocking=True))
            # A copy, because replays write into it.
            self._recordings[shape] = self._record(batch.to(self._device, copy=True))
        recording = self._recordings[shape]
        for own, given in zip(_tensors(recording.batch), _tensors(batch), strict=True):
            own.copy_(given, non_blocking=True)
        recording.graph.replay()
        return recording.outcome

    def as_usual(self, batch: Batch) -> Outcome:
        """The step of this batch without a recording, in one of the same shapes."""
        return self._as_usual(round_up(batch).to(self._device, non_blocking=True))

    def _as_usual(self, batch: Batch) -> Outcome:
        # On the stream that will record: what libraries keep for a stream is then there.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            outcome = self._step(batch)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return outcome

    def _record(self, batch: Batch) -> _Recording:
        graph = torch.cuda.CUDAGraph()
        # Threads that read ahead ask for memory meanwhile, which is not part of the step.
        mode = "thread_local"
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode)
        try:
            with _garbage_kept(), recording:
                outcome = self._step(batch)
        except RuntimeError as problem:
            why = str(problem).partition("\n")[0]
            raise RuntimeError(
                f"a training step could not be recorded ({why}), and this process can draw no more random numbers on "
                "its device; start again, with --set training.recorded=false if it happens again"
            ) from problem
        return _Recording(graph, batch, outcome)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """No collection of garbage meanwhile.

    A run that ended in this process leaves its recordings in cycles. One that is destroyed while another is made may
    spoil that one, and a recording that fails leaves the process without random numbers.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def round_up(batch: Batch) -> Batch:
    """The batch with its texts padded to one of a few widths and numbers of words."""
    if batch.words is None or batch.word_mask is None or batch.most_words is None:
        return batch
    missing = -(1 + batch.words.shape[1]) % _WIDTH
    return replace(
        batch,
        words=F.pad(batch.words, (0, missing)),
        word_mask=F.pad(batch.word_mask, (0, missing)),
        most_words=-(-batch.most_words // _WORDS) * _WORDS,
    )


def _shape(batch: Batch) -> tuple[Any, ...]:
    return batch.most_words, *(t.shape for t in _tensors(batch))


def _tensors(batch: Batch) -> list[Tensor]:
    return [t for f in fields(batch) if isinstance(t := getattr(batch, f.name), Tensor)]

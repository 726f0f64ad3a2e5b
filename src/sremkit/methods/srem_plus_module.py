"""SREM-plus as a module for a training loop of one's own: a loss with a memory, keyed by pair ids.

It is the method `srem-plus` of `srem train` (srem_plus.py), fed with logits instead of batches, and without
re-matching, which needs the collection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.methods.base import TrainingContext
from sremkit.methods.srem_plus import SREMPlusMethod
from sremkit.objectives import Loss
from sremkit.objectives.logits import as_logits

PAIR_IDS = "pair_ids"  # in the state, of a module without `num_pairs`
MIN_CAPACITY = 1024  # pairs, of a module without `num_pairs`


class SREMPlus(nn.Module):
    """SREM-plus: weights each pair by its scores over many epochs.

    .. code-block:: python

        criterion = SREMPlus(num_pairs=len(dataset))
        warmup = True
        for epoch in range(epochs):
            for images, texts, pair_ids in loader:
                loss = criterion(model(images, texts), pair_ids, warmup=warmup)
                ...
            criterion.finish_epoch()
            warmup = warmup and not criterion.is_ready()

    The state (`state_dict`) holds tensors only. With several processes, each calls the module with its own pairs, and
    `finish_epoch` joins their memories; save the state after it.

    Args:
        num_pairs: pair ids are integers from 0 to `num_pairs` - 1, such as the index in the dataset. Without it they
            are integers or strings of any kind, and the memory grows with every new one.
        options: those of the method `srem-plus` (`srem describe srem-plus`), without re-matching.
    """

    def __init__(self, num_pairs: int | None = None, **options: Any) -> None:
        super().__init__()
        if num_pairs is not None and num_pairs < 1:
            raise ValueError(f"num_pairs must be at least 1, got {num_pairs}")
        rematching = sorted(name for name in options if name.startswith("rematch"))
        if rematching:
            raise TypeError(f"{', '.join(rematching)}: re-matching needs the collection; use `srem train`")
        self.method = SREMPlusMethod(**options)
        self.num_pairs = num_pairs
        self.method.start(TrainingContext(num_pairs or MIN_CAPACITY, torch.device("cpu")))
        self._updated = torch.zeros_like(self.method.rematched)  # pairs of this epoch
        self._row_of_id: dict[int | str, int] = {}  # without num_pairs
        self._monitors_warmup = False

    def forward(
        self,
        logits: Tensor,
        pair_ids: Tensor | Sequence[int | str],
        *,
        warmup: bool = False,
        image_ids: Tensor | None = None,
    ) -> Loss:
        """The loss of one batch; its `report` holds the weight of each pair.

        Args:
            logits: (b, b), rows images, columns texts, the given pairs on the diagonal.
            pair_ids: (b,) the same for a pair in every epoch.
            warmup: learn from all pairs, before the memory can separate them. It changes between epochs.
            image_ids: (b,) integers; pairs with equal numbers share their image and are not each other's negatives.
        """
        logits = as_logits(logits)
        self._move_to(logits.device)
        rows = self._rows(pair_ids).to(logits.device)
        if len(rows) != len(logits):
            raise ValueError(f"pair_ids must hold one id for each of the {len(logits)} pairs, got {len(rows)}")
        if self._monitors_warmup and not warmup:
            self.method.begin_epoch(0, warmup=False)  # forgets what served the warm-up
        self._monitors_warmup = warmup
        ids = torch.arange(len(logits)) if image_ids is None else image_ids
        with torch.autocast(device_type=logits.device.type, enabled=False):
            loss = self.method.loss(lambda _: logits, Batch(rows, ids.to(logits.device)), warmup=warmup)
        self._updated[rows] = True
        return loss

    def finish_epoch(self) -> None:
        """Estimate from the memory how probably each pair is correct. Call it after each epoch, in every process."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._join_processes()
        self._updated.zero_()
        self.method.finish_epoch()

    def is_ready(self) -> bool:
        """Whether the warm-up may end: the in-batch accuracy of its last epoch is at least sqrt(chance)."""
        return self.method.warmup_status().is_ready

    def message(self) -> str:
        """What the warm-up has reached, and what it has shown about the data."""
        status = self.method.warmup_status()
        return "; ".join(part for part in (status.message, status.finding) if part)

    def clean_prob(self, pair_ids: Tensor | Sequence[int | str] | None = None) -> Tensor:
        """The estimated probability that each pair is correct, 1 before the first estimate; of all pairs by default."""
        if pair_ids is not None:
            return self.method.clean_prob[self._rows(pair_ids).to(self.method.clean_prob.device)]
        known = slice(None) if self.num_pairs is not None else slice(len(self._row_of_id))
        return self.method.clean_prob[known].clone()  # the method's own changes in place

    def extra_repr(self) -> str:
        return f"num_pairs={self.num_pairs}"

    def _rows(self, pair_ids: Tensor | Sequence[int | str]) -> Tensor:
        """(b,) the row of each pair in the memory."""
        if self.num_pairs is None:
            ids = pair_ids.tolist() if isinstance(pair_ids, Tensor) else pair_ids
            rows = [self._row_of_id.setdefault(i, len(self._row_of_id)) for i in ids]
            self._grow()
            return torch.tensor(rows, dtype=torch.int64)
        rows_given = torch.as_tensor(pair_ids)
        if rows_given.dtype.is_floating_point or rows_given.dtype == torch.bool or rows_given.ndim != 1:
            raise TypeError(f"pair_ids must be one integer for each pair, got {rows_given.dtype} {rows_given.shape}")
        if rows_given.device.type == "cpu" and len(rows_given):  # on a GPU the host would wait for it
            least, most = int(rows_given.min()), int(rows_given.max())
            if least < 0 or most >= self.num_pairs:
                raise ValueError(
                    f"pair_ids must lie between 0 and {self.num_pairs - 1}, got {least} to {most}; leave num_pairs out "
                    "for ids of another kind"
                )
        return rows_given.long()

    def _grow(self) -> None:
        """Make room for all known ids, twice as much as is needed."""
        method, capacity = self.method, len(self.method.memory)
        if len(self._row_of_id) <= capacity:
            return
        more = 2 * len(self._row_of_id) - capacity
        method.memory = torch.cat([method.memory, method.memory.new_full((more,), float("nan"))])
        method.probe_memory = torch.cat([method.probe_memory, method.probe_memory.new_full((more,), float("nan"))])
        method.clean_prob = torch.cat([method.clean_prob, method.clean_prob.new_ones(more)])
        method.rematched = torch.cat([method.rematched, method.rematched.new_zeros(more)])
        self._updated = torch.cat([self._updated, self._updated.new_zeros(more)])

    def _move_to(self, device: torch.device) -> None:
        method = self.method
        if method.memory.device == device:
            return
        method.memory, method.probe_memory = method.memory.to(device), method.probe_memory.to(device)
        method.clean_prob, method.rematched = method.clean_prob.to(device), method.rematched.to(device)
        self._updated = self._updated.to(device)

    def _join_processes(self) -> None:
        """Each pair's memory from the processes that had it in this epoch; the same everywhere before and after."""
        if self.num_pairs is None:
            raise RuntimeError("with several processes SREMPlus needs num_pairs, and integers as pair ids")
        for memory in (self.method.memory, self.method.probe_memory):
            own = self._updated & ~memory.isnan()
            total, count = memory.masked_fill(~own, 0.0), own.to(memory.dtype)
            dist.all_reduce(total)
            dist.all_reduce(count)
            memory.copy_(torch.where(count > 0, total / count.clamp_min(1), memory))
        for name, value in self.method.batch_accuracy.state_dict().items():
            if name.endswith("sums"):
                dist.all_reduce(value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, value in self.method.state_dict().items():
            destination[prefix + name] = value
        if self.num_pairs is None:
            text = json.dumps(list(self._row_of_id)).encode()
            destination[prefix + PAIR_IDS] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        ids = state.pop(PAIR_IDS, None)
        stored, by_rows = len(state["memory"]), self.num_pairs is not None
        if (ids is None) != by_rows or (by_rows and stored != self.num_pairs):
            built = f"num_pairs={stored}" if ids is None else "no num_pairs"
            raise ValueError(f"this state belongs to a module with {built}; here num_pairs is {self.num_pairs}")
        if ids is not None:
            self._row_of_id = {pair_id: row for row, pair_id in enumerate(json.loads(bytes(ids.tolist())))}
        self.method.load_state_dict({name: value.clone() for name, value in state.items()})
        self.method.rematched = torch.zeros_like(self.method.memory, dtype=torch.bool)
        self._updated = torch.zeros_like(self.method.rematched)
        self._monitors_warmup = any(name.startswith(("batch_accuracy", "probe_memory")) for name in state)

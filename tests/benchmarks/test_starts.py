"""The comparison of starts: each loss is what its name says, and the figures of a history are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import starts
from benchmarks.starts import STARTS, SREMStart, start_cells, start_facts, starts_table
from sremkit.data.batch import Batch
from sremkit.methods import METHODS
from sremkit.objectives import SREM

LOGITS = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
BATCH = Batch(pair_id=torch.arange(6), image_id=torch.arange(6))


def warmup_total(name: str, *, epoch: int = 0) -> float:
    method = SREMStart(**(STARTS[name] or {}))
    method.begin_epoch(epoch, warmup=True)
    return float(method.loss(lambda batch: LOGITS, BATCH, warmup=True).total)


def complementary(logits: torch.Tensor) -> float:
    return float(SREM(check_finite=False)(logits, warmup=True, image_ids=BATCH.image_id).total)


def test_each_start_is_what_its_name_says() -> None:
    assert warmup_total("complementary") == pytest.approx(complementary(LOGITS))
    assert warmup_total("scaled") == pytest.approx(127 * complementary(LOGITS))
    assert warmup_total("tempered-4") == pytest.approx(complementary(4 * LOGITS))
    p = LOGITS.softmax(1).diagonal(), LOGITS.softmax(0).diagonal()
    by_hand = sum(float(((1 - q**0.7) / 0.7).mean()) for q in p)
    assert warmup_total("gce-0.7") == pytest.approx(by_hand)
    assert warmup_total("gce-0.7-then-complementary", epoch=1) == pytest.approx(by_hand)
    # A shift of all logits does not change the complementary loss.
    assert warmup_total("gce-0.7-then-complementary", epoch=2) == pytest.approx(complementary(LOGITS))


@pytest.mark.parametrize("name", [name for name, options in STARTS.items() if options is not None])
def test_after_the_warm_up_every_start_is_srem(name: str) -> None:
    method = SREMStart(**(STARTS[name] or {}))
    method.begin_epoch(0, warmup=False)
    expected = SREM(check_finite=False)(LOGITS, image_ids=BATCH.image_id).total
    assert float(method.loss(lambda batch: LOGITS, BATCH, warmup=False).total) == pytest.approx(float(expected))


def test_the_figures_of_a_start() -> None:
    def epochs(*values: float, warmup: int) -> list[dict[str, Any]]:
        return [{"val/rsum": value, "warmup": k < warmup} for k, value in enumerate(values)]

    facts = start_facts(epochs(10, 40, 100, 96, 120, warmup=3))
    assert (facts["change"], facts["kept"], facts["best"], facts["last"]) == (3, 0.96, 120, 120)
    assert facts["worst_step"] == pytest.approx(0.96)
    assert start_facts(epochs(10, 40, warmup=2))["kept"] is None  # it never ended
    row = {"source": "scenes", "start": "gce-0.7", "rate": 0.4, "seed": 0, "history": epochs(10, 40, 30, warmup=2)}
    assert "0.750" in starts_table([row]).as_text()


def test_cells_differ_in_their_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = start_cells(str(tmp_path), list(STARTS), [0.4], [0], ["training.epochs=2"])
    assert [labels["start"] for labels, _ in cells] == list(STARTS)
    assert len({str(recipe.training) + str(recipe.model) for _, recipe in cells}) == 1
    assert {recipe.method["name"] for _, recipe in cells} == {"srem-start", "infonce"}
    assert METHODS["srem-start"] is SREMStart
    ran: list[int] = []
    monkeypatch.setattr(starts, "run_grid", lambda cells, folder, on_row: ran.append(len(cells)) or [])
    monkeypatch.setattr(starts, "starts_table", lambda rows: starts.Table("starts", []))
    assert starts.main(["--starts", "complementary", "--noise", "0,0.4", "-o", str(tmp_path / "o.csv")]) == 0
    assert ran == [2]

"""How long the scoring of an audit takes on a quiet machine, and next to a process that keeps a core busy.

    python -m benchmarks.audit_busy --pairs 6000 30000 --out results/audit-busy.csv

Vectors are generated, so no data are needed. "Quiet" holds only if nothing else runs; the load of the machine before
each measurement is written next to it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import make_parser
from sremkit.audit.scoring.cross_fit import CrossFitScorer
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.worker_processes import usable_cores

IMAGE_DIM, TEXT_DIM, LATENT = 1280, 384, 64  # widths of the default encoders


def generated(pairs: int, *, rate: float = 0.2, seed: int = 0) -> PairVectors:
    """Two noisy views of a common latent vector, `rate` of the pairs shuffled."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(pairs, LATENT)).astype(np.float32)
    views = [
        latent @ rng.normal(size=(LATENT, dim)).astype(np.float32) / 8
        + rng.normal(size=(pairs, dim)).astype(np.float32)
        for dim in (IMAGE_DIM, TEXT_DIM)
    ]
    image_of_text = np.arange(pairs)
    moved = rng.permutation(pairs)[: round(rate * pairs)]
    image_of_text[moved] = np.roll(image_of_text[moved], 1)
    images, texts, given = (torch.from_numpy(array) for array in (*views, image_of_text))
    return PairVectors(images, texts, given, np.ones(pairs, dtype=bool))


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that each keep a core busy."""
    started = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def measure(pairs: int, *, busy_processes: int, workers: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    settings, vectors = ScoringSettings(), generated(pairs)
    with busy(busy_processes):
        started = time.monotonic()
        scores = CrossFitScorer(settings, workers=workers).fit_score(vectors)
        seconds = time.monotonic() - started
    rate = scores.noise_rate
    return {
        "pairs": pairs,
        "busy_processes": busy_processes,
        "workers": workers,
        "cores": usable_cores(),
        "load_before": round(load, 2),
        "seconds": round(seconds, 2),
        "noise_rate": float("nan") if rate is None else round(rate.estimate, 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_busy", __doc__)
    parser.add_argument("--pairs", type=int, nargs="*", default=[6000, 30000], help="sizes")
    parser.add_argument("--busy", type=int, default=1, help="busy processes next to the audit")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="processes of the audit")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    rows = []
    for pairs in options.pairs:
        for processes in (0, options.busy):
            rows.append(measure(pairs, busy_processes=processes, workers=options.workers))
            if options.out is not None:
                write_csv(rows, options.out)
    names = list(rows[0])
    print(aligned([names, *([str(row[name]) for name in names] for row in rows)]))
    for alone, shared in zip(rows[::2], rows[1::2], strict=True):
        print(f"{alone['pairs']:,} pairs: {shared['seconds'] / alone['seconds']:.2f} times as long next to other work")


if __name__ == "__main__":
    main()

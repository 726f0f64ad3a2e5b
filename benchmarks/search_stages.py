"""CPU time of the two stages of a search on one thread: encoding texts, and finding vectors, plain and fast.

    python -m benchmarks.search_stages runs/serve-load/related/run      # of `python -m benchmarks.serve_load`

The plain encoder is transformers' forward pass, the plain search FAISS's comparison with all vectors. CPU time is
that of the thread, so other processes matter only where they share caches and memory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.commands import make_parser, run_command
from benchmarks.serve_load import caption
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.search.index_folder import open_index
from sremkit.search.vector_index import VectorIndex, faiss_module

SIZES = (1, 2, 4, 8)  # queries of a batch
REPETITIONS = 30
RESULTS = 20
QUERIES = 64  # that the exactness is checked with


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("search_stages", __doc__)
    parser.add_argument("run", type=Path, help="with an index")
    return run_command(parser, measure, arguments)


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    faiss_module().omp_set_num_threads(1)
    searcher = open_index(args.run)
    texts = [caption(37 * k) for k in range(QUERIES)]
    encoders = {"plain": MiniLMEncoder(), "packed": MiniLMEncoder(packed=True)}
    rng = np.random.default_rng(0)
    queries = {
        "images": searcher.texts.vectors[rng.permutation(len(searcher.texts))[:QUERIES]],
        "texts": searcher.images.vectors[rng.permutation(len(searcher.images))[:QUERIES]],
    }
    indexes = {"images": searcher.images.with_bounds(), "texts": searcher.texts.with_bounds()}
    result = {
        "encode_ms": {
            name: {size: milliseconds(partial(encoder.encode, texts[:size])) for size in SIZES}
            for name, encoder in encoders.items()
        },
        **{name: search_times(index, queries[name]) for name, index in indexes.items()},
    }
    print(json.dumps(result, indent=2))


def search_times(index: VectorIndex, queries: np.ndarray) -> dict[str, object]:
    ways = {"plain": replace(index, bounded=None), "bounds": index}
    found = {name: way.search(queries, RESULTS)[1] for name, way in ways.items()}
    return {
        "vectors": len(index),
        "has_bounds": index.bounded is not None,
        "compared_with_all": None if index.bounded is None else index.bounded.search(queries, RESULTS).count(None),
        "largest_difference_of_products": float(np.abs(found["plain"] - found["bounds"]).max()),
        "find_ms": {
            name: {size: milliseconds(partial(way.search, queries[:size], RESULTS)) for size in SIZES}
            for name, way in ways.items()
        },
    }


def milliseconds(function: Callable[[], object]) -> float:
    """The median CPU time of this thread."""
    function()
    times = []
    for _ in range(REPETITIONS):
        started = time.thread_time()
        function()
        times.append(time.thread_time() - started)
    return round(1000 * float(np.median(times)), 2)


if __name__ == "__main__":
    raise SystemExit(main())

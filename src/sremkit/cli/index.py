"""Build the search index of a run or an audit; `srem search` and `srem serve` read it.

srem index runs/mine
srem index runs/mine --source features/other --image-root photos/
srem index audits/mine

Every image and caption of the collection is encoded once. Up to 100,000 vectors are searched exactly; more are put
into an inverted file (IVF), whose recall against exact search is measured and reported. Models that attend over regions
and words have no vectors: candidates are found by the projected means of both, and scored by the model. The index of an
audit begins with training the audit's scorer on the pairs that were kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sremkit.cli.progress import StageProgress

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.search.searcher import Searcher

HELP = "build the search index of a run or an audit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_OR_AUDIT", help="folder of a trained run or a finished audit")
    parser.add_argument("--split", choices=("train", "val", "test"), default="train", help="split of the run's data")
    parser.add_argument("--source", metavar="PATH", help="index another collection with features, such as a folder "
                        "that `srem features` wrote")  # fmt: skip
    parser.add_argument("--format", help="of --source, one of `srem list formats`; recognised by default")
    parser.add_argument("--image-root", metavar="DIR", help="folder of the image files, for pages, if the collection "
                        "has features alone")  # fmt: skip
    parser.add_argument("--encoder", metavar="DIR", help="CLIP or SigLIP folder that the audit was made with")
    parser.add_argument("--kind", choices=("flat", "ivf"), help="exact search or an inverted file (default: flat up "
                        "to 100,000 vectors)")  # fmt: skip
    parser.add_argument("--candidates", type=int, default=100, help="what a cross-attention model scores for a query")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from sremkit.search.index_folder import SearchedData

    root = None if args.image_root is None else str(Path(args.image_root).absolute())
    source = None if args.source is None else str(Path(args.source).absolute())
    data = SearchedData(args.split, source, args.format, root, args.encoder)
    build(args.folder, data, Console(highlight=False, markup=False, soft_wrap=True), args.kind, args.candidates)


def open_or_build(folder: Path) -> Searcher:
    """The index of a folder, which is built with default options where it is missing; progress goes to stderr."""
    from rich.console import Console

    from sremkit.search.index_folder import SearchedData, has_index, open_index

    if has_index(folder):
        return open_index(folder)
    return build(folder, SearchedData(), Console(highlight=False, markup=False, soft_wrap=True, stderr=True))


def build(
    folder: Path, data: object, console: Console, kind: str | None = None, candidates: int | None = None
) -> Searcher:
    """Build an index with progress, and print what it is."""
    from sremkit.search.index_folder import INDEX, build_index

    options = {} if candidates is None else {"candidates": candidates}
    with StageProgress(console) as progress:
        searcher = build_index(folder, data, kind=kind, progress=progress.stage, **options)  # type: ignore[arg-type]
    facts = searcher.facts
    console.print(f"{folder / INDEX}: {facts['model']} on {facts['collection']}, {facts['seconds']:.1f} s")
    for name, noun in (("images", "images"), ("texts", "captions")):
        part = facts[name]
        recall = "exact search" if part["kind"] == "flat" else f"inverted file, recall@10 {part['recall@10']:.3f}"
        console.print(f"  {part['count']:,} {noun}, {part['dim']} dimensions, {recall}")
    if facts["candidate_recall@10"] is not None:
        console.print(
            f"  the model scores {facts['candidates']} candidates for a query; of its own ten best images "
            f"{100 * facts['candidate_recall@10']:.1f} % are among them"
        )
    return searcher

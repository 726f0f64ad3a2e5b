"""Counts the files of the package that a training pair, or a row of a table, passes on its way.

    python -m benchmarks.ways train dual        # or vse-infty, sgr
    python -m benchmarks.ways audit

Traces every call of the package's functions. Not on the way, and not counted: what reads settings and finds components
(config, registry, experiment, cli, extras, errors, io), and what watches the run (validation, metrics, monitors,
reports, progress, checkpoints).
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import sremkit
from benchmarks.commands import make_parser, run_command

SOURCE = Path(sremkit.__file__).parent
NOT_ON_THE_WAY = (
    "config/", "registry.py", "experiment/", "cli/", "extras.py", "errors.py", "io.py", "evaluation/", "reports/",
    "methods/base.py", "methods/common/batch_accuracy.py", "objectives/warmup.py", "training/warmup.py",
    "models/__init__.py", "data/formats/__init__.py", "methods/common/state_dicts.py",
    "training/metrics.py", "training/diagnostics.py", "training/reporters.py", "training/state.py",
    "training/distributed.py", "training/execution.py", "training/cuda_graphs.py", "training/checkpoint.py",
    "audit/report.py",
)  # fmt: skip
BACKBONES = {
    "dual": ["data.words=false", "model.hidden_size=16", "model.embed_size=8"],
    "vse-infty": ["model.embed_size=16", "model.word_dim=8"],
    "sgr": ["model.embed_size=16", "model.word_dim=8", "model.sim_dim=8"],
}


def trace(action: Callable[[], object]) -> list[str]:
    """The files whose functions `action` calls, in any thread."""
    for module in pkgutil.walk_packages(sremkit.__path__, "sremkit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    called: set[str] = set()

    def record(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(f"{SOURCE}/"):
            called.add(str(Path(code.co_filename).relative_to(SOURCE)))

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(file for file in called if not file.startswith(NOT_ON_THE_WAY))


def train(backbone: str, folder: Path) -> Callable[[], None]:
    """Reads a small table of vectors or regions, and trains one epoch after one of warm-up."""
    from sremkit.config.recipes import recipe_from_table
    from sremkit.data.training_pairs import noise_for, read_training_pairs
    from sremkit.experiment import make_trainer, prepare
    from sremkit.training.reporters import Reporter

    rng = np.random.default_rng(0)
    shape = (60, 16) if backbone == "dual" else (60, 6, 16)
    np.save(folder / "images.npy", rng.normal(size=shape).astype(np.float32))
    np.save(folder / "texts.npy", rng.normal(size=(60, 8)).astype(np.float32))
    rows = [f"{k}.png,a word and word{k % 7},{'train' if k < 48 else 'val'}" for k in range(60)]
    (folder / "pairs.csv").write_text("\n".join(["image,caption,split", *rows]) + "\n")
    vectors = {"image_features": str(folder / "images.npy"), "text_features": str(folder / "texts.npy")}
    table = {
        "name": "way",
        "data": {"source": str(folder / "pairs.csv"), "format": "table", "min_count": 1, "options": vectors},
        "noise": {"rate": 0.4},
        "model": {"name": backbone},
        "method": {"name": "srem"},
        "training": {"epochs": 1, "warmup_epochs": 1, "batch_size": 16},
    }
    prepared = prepare(recipe_from_table(table, BACKBONES[backbone]))
    trainer = make_trainer(prepared, Reporter())

    def read_and_train() -> None:
        noise_for(prepared.recipe.noise, read_training_pairs(prepared.recipe.data))
        trainer.run()

    return read_and_train


def audit(folder: Path) -> Callable[[], object]:
    """Audits a small table of drawn images, from pixels and captions to verdicts."""
    from sremkit.audit.audit import Audit
    from sremkit.data.generated.scenes import SceneImages

    scenes = SceneImages(120)
    rows = ["id,image,caption"]
    for k in range(120):
        scenes.open(k).save(folder / f"{k}.png")
        rows.append(f'{k},{k}.png,"{scenes.captions(k)[0].text}"')
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    return lambda: Audit.open(folder / "pairs.csv", format="table", id="id").find(folder / "audit", workers=0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("ways", __doc__)
    parser.add_argument("way", choices=["train", "audit"])
    parser.add_argument("backbone", nargs="?", choices=sorted(BACKBONES), default="dual", help="that is trained")
    return run_command(parser, print_way, arguments)


def print_way(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        action = train(args.backbone, Path(work)) if args.way == "train" else audit(Path(work))
        print("\n".join(trace(action)))


if __name__ == "__main__":
    sys.exit(main())

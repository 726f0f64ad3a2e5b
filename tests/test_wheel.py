"""The wheel works where only the core dependencies are installed, and commands name the extras they lack there.

The environment is a new one without pip and without access to the packages of this one. The core dependencies are
linked into it from here, with everything that they require: installing torch again would take minutes and a network.
Which packages these are is read from the wheel, so a core dependency that it does not declare is missing there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from sremkit.version import __version__

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.alone  # builds, and starts processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its core dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("core") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in closure(metadata(wheel).get_all("Requires-Dist")):
        link(name, packages)
    install = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, "--quiet", str(wheel)], check=True, capture_output=True)
    return interpreter


def metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        return message_from_string(archive.read(f"sremkit-{__version__}.dist-info/METADATA").decode())


def closure(requirements: list[str] | None) -> set[str]:
    """Names of the required packages and of all that these require, without extras."""
    found: set[str] = set()
    pending = list(requirements or ())
    while pending:
        requirement = pending.pop()
        name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
        if "extra ==" not in requirement and name not in found:
            try:
                pending += distribution(name).requires or ()
            except PackageNotFoundError:  # for another platform
                continue
            found.add(name)
    return found


def link(name: str, packages: Path) -> None:
    """Link the top-level folders and files of an installed package into another environment."""
    installed = distribution(name)
    for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        source = Path(str(installed.locate_file(top)))
        if source.exists() and not (packages / top).exists():
            (packages / top).symlink_to(source)


def run(python: Path, code: str, cwd: Path) -> str:
    done = subprocess.run([python, "-I", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheel_holds_types_recipes_templates_and_tables(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"sremkit/py.typed", "sremkit/configs/scenes-srem.toml", "sremkit/reports/templates/base.html"} <= set(names)
    assert {"sremkit/bench/published.csv"} <= set(names)
    source = REPOSITORY / "src" / "sremkit"
    modules = {f"sremkit/{file.relative_to(source).as_posix()}" for file in source.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_the_wheels_metadata(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Project-URL"]
    assert "Typing :: Typed" in fields.get_all("Classifier")
    assert {"audit", "train", "all"} <= set(fields.get_all("Provides-Extra"))
    core = {re.match(r"[\w-]+", r)[0] for r in fields.get_all("Requires-Dist") if "extra ==" not in r}
    assert core == {"torch", "numpy", "safetensors", "rich", "docstring-parser"}


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()


def test_every_module_imports_and_the_objective_runs_with_the_core_alone(python: Path, tmp_path: Path) -> None:
    code = """
import importlib, importlib.util, pkgutil, torch, sremkit
assert importlib.util.find_spec("pyarrow") is None and importlib.util.find_spec("PIL") is None
names = [m.name for m in pkgutil.walk_packages(sremkit.__path__, "sremkit.") if "__main__" not in m.name]
for name in names:
    importlib.import_module(name)
logits = torch.eye(4, dtype=torch.float64).mul(8).requires_grad_()
out = sremkit.SREM()(logits)
out.total.backward()
assert out.clean_i2t.all() and logits.grad.isfinite().all()
print(len(names), sremkit.__file__)
"""
    number, file = run(python, code, tmp_path).split()
    assert int(number) > 100
    assert str(python.parents[1]) in file  # the wheel's, not the checkout's


#: With the core alone: a command's arguments, and the extra that it asks for.
LACKING = {
    "demo": "demo",
    "audit pairs.csv": "audit",
    "audit pairs.csv --sharded --engine ray": "audit,scale",
    "export audits/mine -o keep.txt": "audit",
    "train scenes-srem": "train",
    "train flickr8k-dual-srem": "train",
    "train flickr8k-dual-srem --track wandb --track mlflow": "mlflow,train,wandb",
    "train clip-finetune-srem --set data.source=pairs.csv --set model.folder=clip": "hf,train",
    "features pairs.csv -o features": "features",
    "review audits/mine": "review",
    "score audits/mine new.csv -o scored.csv": "audit",
    "index runs/mine": "search",
    "search runs/mine dog": "search",
    "serve runs/mine": "serve",
    "export-model runs/mine --onnx -o model": "onnx",
    "bench methods --data scenes": "train",
    "bench figures curves": "report",
}
#: What works with the core alone.
WORKING = ("list", "describe srem", "doctor", "completion bash", "train scenes-srem --print-config",
           "noise make --images 20 -o noise.npy", "noise inspect noise.npy",
           "data make --images 8 --regions 2 --dim 4 -o made")  # fmt: skip


def test_commands_name_the_extra_that_they_lack_or_work(python: Path, tmp_path: Path) -> None:
    code = f"""
import contextlib, io, json
from sremkit.cli.main import main
results = {{}}
for line in {[*LACKING, *WORKING]!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line.split())
    results[line] = [code, err.getvalue()]
print(json.dumps(results))
"""
    results = json.loads(run(python, code, tmp_path))
    for line, extra in LACKING.items():
        code, error = results[line]
        assert code == 2, line
        assert error.startswith(f"srem: `srem {line.split()[0]}` needs "), error
        assert error.rstrip().endswith(f"pip install 'sremkit[{extra}]'"), error
    assert {line: results[line] for line in WORKING} == {line: [0, ""] for line in WORKING}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "noise.npy"]


def test_the_script_srem_is_installed(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python.parent / "srem", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"sremkit {__version__}\n"

"""A package of somebody else, installed by pip: its method, backbone and format are listed, described and trained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sremkit.training.run_folder import RunFolder

REPOSITORY = Path(__file__).parents[1]

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-plugin"
version = "1.0"

[project.entry-points."sremkit.methods"]
squared = "tiny_plugin:Squared"
broken = "tiny_plugin_that_is_not_there:Nothing"

[project.entry-points."sremkit.backbones"]
linear = "tiny_plugin:Linear"

[project.entry-points."sremkit.formats"]
counting = "tiny_plugin:Counting"

[tool.setuptools]
py-modules = ["tiny_plugin"]
"""

PLUGIN = '''
import numpy as np
import torch

from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs
from sremkit.methods import Method
from sremkit.models import Encoded, Matcher
from sremkit.objectives import Loss


class Squared(Method):
    """Squared error to the identity.

    Args:
        target: logit of a given pair.
    """

    def __init__(self, *, target: float = 4.0) -> None:
        self.target = target

    def loss(self, forward, batch, *, warmup):
        logits = forward(batch)
        error = (logits - self.target * torch.eye(len(batch))).square().mean()
        return Loss(error, {"squared": error.detach()})


class Linear(Matcher):
    """Two linear maps and a product."""

    image_input, text_input = "vectors", "sentences"

    def __init__(self, *, image_dim: int, text_dim: int, width: int = 4) -> None:
        super().__init__()
        self.image = torch.nn.Linear(image_dim, width)
        self.text = torch.nn.Linear(text_dim, width)

    def encode_images(self, batch):
        return Encoded(pooled=self.image(batch.images))

    def encode_texts(self, batch):
        return Encoded(pooled=self.text(batch.sentences))

    def compare(self, images, texts):
        return images.whole() @ texts.whole().T


class Counting:
    """Numbered pairs of random vectors, as many as a file says."""

    @staticmethod
    def recognizes(path):
        return path.suffix == ".count"

    @staticmethod
    def read(path, *, split):
        count = int(path.read_text())
        vectors = np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)
        names = [f"{split}-{k}" for k in range(count)]
        return Pairs(
            name="counting", split=split, pair_ids=names, texts=names, image_of_text=np.arange(count),
            image_ids=names, image_features=ArrayFeatures(vectors), text_features=ArrayFeatures(vectors[:, :5].copy()),
        )
'''

RECIPE = """
[data]
source = "{source}"
words = false

[model]
name = "linear"

[method]
name = "squared"
target = 3.0

[training]
epochs = 2
warmup_epochs = 0
batch_size = 8
device = "cpu"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the installed plugin."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("target")
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "tiny_plugin.py").write_text(PLUGIN)
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    command = ["install", "--quiet", *offline, *constraints, "--target", str(target), str(project)]
    run = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    paths = [str(target), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def srem(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sremkit", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_components_of_a_plugin_are_listed_and_a_broken_one_is_a_sentence(
    environment: dict[str, str],
) -> None:
    listed = srem("list", environment=environment)
    assert listed.returncode == 0
    for line in (
        "squared     Squared error to the identity.",
        "linear     Two linear maps",
        "counting    Numbered pairs",
    ):
        name, description = line.split(maxsplit=1)
        assert any(row.split()[:1] == [name] and description[:12] in row for row in listed.stdout.splitlines())
    assert "broken" not in listed.stdout
    assert listed.stderr.count("srem: the method 'broken' of the package 'tiny-plugin' is left out") == 1
    assert "No module named 'tiny_plugin_that_is_not_there'" in listed.stderr
    assert "Traceback" not in listed.stderr


def test_a_plugin_is_trained_and_evaluated(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pairs.count").write_text("40")
    (tmp_path / "mine.toml").write_text(RECIPE.format(source=tmp_path / "pairs.count"))
    out = tmp_path / "run"
    trained = srem("train", str(tmp_path / "mine.toml"), "--out", str(out), environment=environment)
    assert trained.returncode == 0, trained.stderr[-2000:]
    first, last = RunFolder.open(out).read_metrics()
    assert last["squared"] < first["squared"]
    evaluated = srem("eval", str(out), environment=environment)
    assert evaluated.returncode == 0, evaluated.stderr[-2000:]
    wrong = srem("train", str(tmp_path / "mine.toml"), "--set", "method.targt=1", environment=environment)
    assert wrong.returncode == 2
    assert "did you mean 'method.target'" in wrong.stderr

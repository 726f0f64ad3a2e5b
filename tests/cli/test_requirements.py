"""A command names everything that it lacks before it starts to work; `srem doctor` does so for all commands."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from sremkit.cli import doctor, requirements
from sremkit.cli.main import COMMANDS, build_parser, main
from sremkit.cli.requirements import NEEDS, check_packages
from sremkit.config.recipes import load_recipe, recipe_to_toml
from sremkit.errors import MissingExtraError
from sremkit.extras import is_installed
from sremkit.training.run_folder import RunFolder

REPOSITORY = Path(__file__).parents[2]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages_of(extra: str) -> set[str]:
    """The packages of an extra, with those of the extras that it names."""
    found = set()
    for requirement in EXTRAS[extra]:
        own = re.fullmatch(r"sremkit\[(.+)\]", requirement)
        found |= set().union(*map(packages_of, own[1].split(","))) if own else {re.match(r"[\w.-]+", requirement)[0]}
    return found


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "is_installed", lambda package: False)


def missing(*arguments: str) -> str:
    with pytest.raises(MissingExtraError) as raised:
        check_packages(build_parser().parse_args(arguments))
    return str(raised.value)


def test_every_command_states_its_needs() -> None:
    assert set(NEEDS) == set(COMMANDS)


def test_every_extra_installs_what_its_commands_need() -> None:
    for command, needs in NEEDS.items():
        for need in needs:
            assert set(need.packages) <= packages_of(need.extra), command


def test_every_named_package_is_known_by_its_module() -> None:
    assert all(is_installed(package) for needs in NEEDS.values() for need in needs for package in need.packages)
    assert not is_installed("no-such-package")


@pytest.mark.usefixtures("nothing_installed")
def test_the_demo_names_all_packages_and_one_extra() -> None:
    assert missing("demo") == (
        "`srem demo` needs pillow, pyarrow, tensorboard, matplotlib, jinja2, which are not installed; "
        "install with: pip install 'sremkit[demo]'"
    )


@pytest.mark.usefixtures("nothing_installed")
def test_needs_follow_from_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "onnxruntime" in missing("audit", "pairs.csv")
    assert "needs pyarrow, matplotlib, jinja2, which" in missing("audit", "--image-emb", "x", "--text-emb", "y")
    assert missing("audit", "pairs.csv", "--sharded", "--engine", "ray").endswith("'sremkit[audit,scale]'")
    with_features = tmp_path / "features"
    with_features.mkdir()
    (with_features / "pooled.npy").touch()
    assert "onnxruntime" not in missing("audit", str(with_features))
    assert "pillow" in missing("train", "scenes-srem")
    assert "pillow" not in missing("train", "flickr8k-dual-srem")
    assert "accelerate" not in missing("train", "flickr8k-dual-srem")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "accelerate" in missing("train", "flickr8k-dual-srem")
    check_packages(build_parser().parse_args(["train", "flickr8k-dual-srem", "--print-config"]))
    assert "pillow, which is not" in missing("bench", "methods", "--data", "scenes")
    check_packages(build_parser().parse_args(["bench", "methods", "--data", "flickr8k"]))
    assert "matplotlib" in missing("bench", "figures", "curves")
    for command in ("list", "doctor", "describe srem", "noise inspect x.npy", "compare runs/x"):
        check_packages(build_parser().parse_args(command.split()))


@pytest.mark.usefixtures("nothing_installed")
def test_scoring_and_searching_name_the_encoders_that_they_will_use(tmp_path: Path) -> None:
    audit, clip_audit = tmp_path / "audit", tmp_path / "clip-audit"
    for folder, encoder in ((audit, None), (clip_audit, "models/clip")):
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"encoder": encoder}))
    runs = {}
    for recipe in ("features-dual-srem", "f30k-sgr-srem", "scenes-srem", "clip-finetune-srem"):
        overrides = ["data.source=features"] if recipe.startswith(("features", "clip")) else []
        config = recipe_to_toml(load_recipe(recipe, overrides))
        runs[recipe] = str(RunFolder.create(tmp_path / recipe, config=config).path)
    assert "onnxruntime" in missing("score", str(audit), "new.csv", "-o", "x.csv")
    assert "onnxruntime" not in missing("score", str(audit), "--image-emb", "a", "--text-emb", "b", "-o", "x.csv")
    assert "needs pyarrow, pillow, transformers, which" in missing("score", str(clip_audit), "new.csv", "-o", "x.csv")
    assert "onnxruntime" in missing("search", str(audit), "a dog")
    assert missing("search", str(clip_audit), "a dog").startswith("`srem search` needs pyarrow, pillow, faiss-cpu, tr")
    assert "onnxruntime" in missing("search", runs["features-dual-srem"], "a dog")
    assert "onnxruntime" not in missing("search", runs["f30k-sgr-srem"], "a dog")
    assert "onnxruntime" in missing("search", runs["f30k-sgr-srem"], "--image", "dog.jpg")
    assert "onnxruntime" in missing("serve", runs["f30k-sgr-srem"])
    assert "onnxruntime" not in missing("serve", runs["scenes-srem"])
    assert "faiss-cpu, transformers, which" in missing("search", runs["clip-finetune-srem"], "a dog")
    assert "jinja2" in missing("search", runs["scenes-srem"], "a dog", "--format", "html")
    assert "onnxruntime" in missing("bench", "audit", "--data", "pairs.csv", "--truth", "is_wrong")


@pytest.mark.usefixtures("nothing_installed")
def test_a_command_that_lacks_a_package_does_nothing_else(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "-o", str(out)]) == 2
    assert capsys.readouterr().err.startswith("srem: `srem demo` needs pillow")
    assert not out.exists()


def test_the_doctor_reports_versions_devices_packages_and_commands(capsys) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for heading in ("versions:", "devices:", "optional packages:", "commands:"):
        assert heading in out.splitlines()
    assert re.search(r"^  torch +\d", out, re.M)
    assert re.search(r"^  cpu +\d+ cores", out, re.M)
    assert re.search(r"^  audit +ready", out, re.M)


@pytest.mark.usefixtures("nothing_installed")
def test_the_doctor_says_what_is_missing_and_how_to_install_it(capsys) -> None:
    main(["doctor"])
    out = capsys.readouterr().out
    assert re.search(r"^  export +lacks pyarrow: pip install 'sremkit\[audit\]'$", out, re.M)
    assert re.search(r"^  list +ready$", out, re.M)


def test_the_doctor_names_the_smallest_extra_of_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["torch>=2", "nowhere; extra == 'all'", "b-c; extra == 'all'", "nowhere>=1; extra == 'small'"]
    monkeypatch.setattr(doctor, "requires", lambda name: [*required, "z; extra == 'dev'", "sremkit[x]; extra == 'all'"])
    assert doctor._optional_packages() == {
        "b-c": "missing: pip install 'sremkit[all]'",
        "nowhere": "missing: pip install 'sremkit[small]'",
    }


def test_the_doctor_distinguishes_needs_of_some_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "is_installed", lambda package: package != "accelerate")
    assert doctor._commands()["train"] == "ready, but some arguments need accelerate: pip install 'sremkit[train]'"
    assert doctor._commands()["demo"] == "ready"

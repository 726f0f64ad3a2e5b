"""The model card: what the model was trained on, with what noise, what it reaches, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sremkit.config.recipes import Recipe
from sremkit.data.noise import protocol_label
from sremkit.data.subwords import AnyTokenizer
from sremkit.errors import UserError
from sremkit.evaluation.recall import RECALLS
from sremkit.io import digest, read_json
from sremkit.models import Matcher
from sremkit.training.run_folder import RunFolder
from sremkit.version import __version__

INPUTS = {
    "regions": "region features of each image",
    "vectors": "one feature vector for each image",
    "pixels": "pixels, as the image processor of the model prepares them",
    "words": "words, as ids of vocabulary.json",
    "sentences": "one sentence vector for each text",
}


def card_of_run(folder: RunFolder, matcher: Matcher, vocabulary: AnyTokenizer | None, *, name: str) -> str:
    """The card of a run's best model."""
    recipe, record = folder.recipe(), folder.read_record()
    if not record:
        raise UserError(f"{folder.path} has no record yet; finish it with `srem train --resume {folder.path}`")
    sections = {
        "Data": _data(recipe, record),
        "Noise": _noise(record["noise"]),
        "Training": _training(recipe, record),
        "Results": "\n\n".join(_results(folder, recipe, record)),
    }
    return _card(matcher, vocabulary, name=name, lead=f"Trained by the recipe `{record['recipe']}`.", sections=sections)


def card_of_published(path: Path, matcher: Matcher, vocabulary: AnyTokenizer | None, *, name: str) -> str:
    """The card of an imported checkpoint, of which only the weights are known."""
    sections = {
        "Origin": f"`{path.name}`, SHA-256 begins with `{digest(path.read_bytes())}`. Data, noise and results are "
        "those of its publication; its license holds for these weights.",
    }
    return _card(matcher, vocabulary, name=name, lead="Imported from a published checkpoint.", sections=sections)


def _data(recipe: Recipe, record: dict[str, Any]) -> str:
    kept = recipe.data.keep
    filtered = "" if kept is None else f" Only the pairs that the keep-list `{Path(kept).name}` names were used."
    return f"`{Path(recipe.data.source).name}`, split `{recipe.data.train_split}`: {record['pairs']:,} pairs.{filtered}"


def _training(recipe: Recipe, record: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {value}" for key, value in recipe.method.items() if key != "name")
    t = recipe.training
    precision = record.get("execution", {}).get("precision", t.precision)
    return (
        f"Method `{recipe.method['name']}`{f' ({options})' if options else ''}; {t.warmup_epochs} epochs of warm-up, "
        f"{t.epochs} after it, batches of {t.batch_size}, learning rate {t.learning_rate:g}, {precision}, seed "
        f"{record['seed']}, torch {record['environment']['torch']}."
    )


def _results(folder: RunFolder, recipe: Recipe, record: dict[str, Any]) -> list[str]:
    """Paragraphs and tables: validation of the stored epoch, and what `srem eval` has left in the folder."""
    row = folder.best()[1].get("metrics", {})
    seen = " These are training pairs: the data had no splits." if record.get("validates_on_training_pairs") else ""
    validation = {key.removeprefix("val/"): value for key, value in row.items() if key.startswith("val/")}
    results = [
        f"Validation, split `{recipe.data.val_split}`, epoch {row.get('epoch', 0) + 1}.{seen}",
        _recall(validation),
    ]
    tests = [read_json(file) for file in sorted(folder.path.glob("eval-test*.json"))]
    for test in tests:
        if not test["ensemble"]:
            folds = f", mean of {test['folds']} folds" if test["folds"] > 1 else ""
            results += [f"Test, split `{test['split']}`{folds}.{seen}", _recall(test["metrics"])]
    if not tests:
        results.append("There was no test result when the model was exported (`srem eval RUN --split test`).")
    return results


def _noise(noise: dict[str, Any]) -> str:
    if noise["rate"] == 0:
        return "None was added to the training pairs."
    return (
        f"{100 * noise['rate']:.1f} % of the training pairs were made wrong on purpose, "
        f"{protocol_label(noise['protocol'])} (seed {noise['seed']}, index {noise['hash']})."
    )


def _recall(metrics: dict[str, float]) -> str:
    known = [key for key in (*RECALLS, "rsum") if key in metrics]
    head = " | ".join("R_sum" if key == "rsum" else key.replace("/", " ") for key in known)
    numbers = " | ".join(f"{metrics[key]:.1f}" for key in known)
    return f"| {head} |\n|{'---|' * len(known)}\n| {numbers} |"


def _card(matcher: Matcher, vocabulary: AnyTokenizer | None, *, name: str, lead: str, sections: dict[str, str]) -> str:
    words = "" if vocabulary is None else f" The vocabulary has {len(vocabulary):,} words."
    inputs = f"Images: {INPUTS[matcher.image_input]}. Texts: {INPUTS[matcher.text_input]}.{words}"
    given = {key: value for key, value in matcher.options.items() if value is not None and not isinstance(value, dict)}
    options = ", ".join(f"{key} = {value}" for key, value in given.items())
    backbone = f"`{matcher.name}` ({options})" if options else f"`{matcher.name}`"
    count = sum(parameter.numel() for parameter in matcher.parameters())
    body = "\n".join(f"## {title}\n\n{text}\n" for title, text in sections.items())
    return f"""\
---
library_name: sremkit
tags: [image-text-retrieval, noisy-correspondence, {matcher.name}]
---

# {name}

Image-text retrieval with the backbone {backbone}; {count:,} parameters. {lead}

## How to load it

```python
from sremkit.model_files import load_model

matcher, vocabulary = load_model("{name}")  # this folder
```

{inputs} Written by sremkit {__version__}.

{body}"""

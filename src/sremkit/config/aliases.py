"""Names that were changed: recipe keys, command-line options, tensors of a checkpoint. Old ones keep working.

Each table maps an old name to the new one. A recipe or a command that uses an old name works and warns; run folders
and checkpoints, which nobody edits, are read without a warning. Finished cells of a grid keep their keys, because
`table_for_hashing` gives every setting the name it had when the keys were introduced. Options that were removed are
refused with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sremkit.errors import UserError, UserNotice

T = TypeVar("T")

#: Old and new name of a recipe key, "table.key".
RECIPE_KEYS = {
    "training.recorded": "training.cuda_graphs",
    "training.average": "training.ema_decay",
    "training.clip": "training.max_grad_norm",
    "training.micro_batch": "training.grad_cache_chunk_size",
    "training.full_precision_steps": "training.float32_steps",
    "method.least_separation": "method.min_separation",
    "method.least_resemblance": "method.min_mismatch_ratio",
    "method.belief_power": "method.clean_prob_power",
    "method.rematch_among": "method.rematch_top_k",
    "method.rematch_turns": "method.rematch_every",
    "method.least_label": "method.min_label",
}

#: Old and new name of a command's options, by the command's words: {"bench methods": {"--old": "--new"}}.
OPTIONS: dict[str, dict[str, str]] = {
    "audit": {"--by-shard": "--sharded", "--sample": "--max-train-pairs"},
    "export": {"--what": "--format", "--which": "--select"},
    "bench methods": {"--side-by-side": "--jobs"},
    "bench ablation": {"--side-by-side": "--jobs"},
    "features": {"--what": "--features"},
}

#: Old and new value of a command's option, under the option's new name: {"audit": {"--engine": {"old": "new"}}}.
OPTION_VALUES: dict[str, dict[str, dict[str, str]]] = {"audit": {"--engine": {"plain": "local"}}}

#: Options of a command that were removed, and why: {"audit": {"--old": "reason"}}.
REMOVED_OPTIONS: dict[str, dict[str, str]] = {
    "audit": {"--words": "scoring of single words did not pay on photographs"},
}

#: Old and new name of a model in a checkpoint.
MODEL_NAMES = {"twins": "two-networks"}

#: Old and new key of an audit's summary.json.
SUMMARY_KEYS = {"judged": "scored", "choice": "cutoff", "by_shard": "sharded"}

#: Old and new name of a column of an audit's pairs.parquet.
AUDIT_COLUMNS = {"mismatch_score": "match_probability"}

#: Old and new name of a tensor in a checkpoint; one that ends in "/" stands for all that begin with it.
CHECKPOINT_KEYS = {
    "average/": "ema/",
    "method/winning/tally": "method/batch_accuracy/sums",
    "method/belief": "method/clean_prob",
    "method/strangers": "method/probe_memory",
    "method/believes_all": "method/all_clean",
    "method/believed": "method/clean",
    "method/kept": "method/clean",
    "method/divisions": "method/num_splits",
}


class RenamedWarning(UserNotice):
    """Something was used under its old name."""


def rename_keys(table: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """A recipe's nested tables under today's names; one warning names all old ones."""
    renamed = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    used = []
    for old, new in RECIPE_KEYS.items():
        name, key = old.split(".")
        entries = renamed.get(name)
        if isinstance(entries, dict) and key in entries:
            new_key = new.split(".")[1]
            if new_key in entries:
                raise UserError(f"'{old}' is the old name of '{new}', and the recipe sets both; leave out '{old}'")
            renamed[name] = {new_key if k == key else k: v for k, v in entries.items()}
            used.append(old)
    if warn:
        warn_renamed(used, RECIPE_KEYS)
    return renamed


def rename_key(key: str) -> str:
    """Today's name of a recipe key such as "training.epochs"; an old one warns."""
    warn_renamed([key] if key in RECIPE_KEYS else [], RECIPE_KEYS)
    return RECIPE_KEYS.get(key, key)


def table_for_hashing(table: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved recipe's nested tables with every key under its oldest name, for keys that must not change."""
    old_names = {new: old for old, new in RECIPE_KEYS.items()}
    return {
        name: {old_names.get(f"{name}.{key}", f".{key}").split(".")[1]: v for key, v in entries.items()}
        if isinstance(entries, Mapping)
        else entries
        for name, entries in table.items()
    }


def rename_options(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments with today's options in the place of old ones."""
    renamed = list(arguments)
    words = [argument for argument in arguments if not argument.startswith("-")][:2]
    for command in (" ".join(words[:1]), " ".join(words)):
        options, values = OPTIONS.get(command, {}), OPTION_VALUES.get(command, {})
        for k, argument in enumerate(renamed):
            option, equals, value = argument.partition("=")
            if option in options:
                warn_renamed([option], options)
                option = options[option]
                renamed[k] = f"{option}{equals}{value}"
            if option in values and equals:
                renamed[k] = f"{option}={_renamed_value(value, values[option])}"
            elif option in values and k + 1 < len(renamed):
                renamed[k + 1] = _renamed_value(renamed[k + 1], values[option])
    return renamed


def rename_tensors(tensors: Mapping[str, T]) -> dict[str, T]:
    """A checkpoint's entries under today's names."""
    return {_renamed_tensor(name): tensor for name, tensor in tensors.items()}


def warn_renamed(used: Sequence[str], names: Mapping[str, str]) -> None:
    """Warn that these old names were used, in one sentence."""
    if used:
        pairs = " and ".join(f"'{old}' is now '{names[old]}'" for old in used)
        warnings.warn(f"{pairs}; the old name works for one more version", RenamedWarning, stacklevel=2)


def _renamed_value(value: str, names: Mapping[str, str]) -> str:
    warn_renamed([value] if value in names else [], names)
    return names.get(value, value)


def _renamed_tensor(name: str) -> str:
    for old, new in CHECKPOINT_KEYS.items():
        if name == old or (old.endswith("/") and name.startswith(old)):
            return new + name.removeprefix(old)
    return name

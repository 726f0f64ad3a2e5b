"""Pages that are generated from the code: the command line, settings, backbones, formats, recipes, methods, Python."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from sremkit.cli.main import build_parser
from sremkit.cli.parser import COMMAND_WORDS, all_parsers
from sremkit.cli.requirements import NEEDS, always
from sremkit.config.options import REQUIRED, Option, options_of
from sremkit.config.recipes import load_recipe, recipe_headlines, to_toml
from sremkit.config.settings import ranges_of
from sremkit.data.formats import FORMATS
from sremkit.describe import SETTINGS, describe
from sremkit.methods import METHODS
from sremkit.models import BACKBONES

#: Pages of the Python reference: a title, and modules with the names to show; None for all public ones.
API: dict[str, tuple[str, dict[str, Sequence[str] | None]]] = {
    "objectives": ("Objectives", {
        "sremkit.objectives": None,
        "sremkit.methods.srem_plus_module": ("SREMPlus",),
    }),
    "integrations": ("Integrations", {
        "sremkit.integrations.embedding_loss": ("EmbeddingLoss", "for_averaged_gradients"),
        "sremkit.integrations.open_clip": ("OpenCLIPLoss",),
        "sremkit.integrations.sentence_transformers": ("SentenceTransformersLoss",),
        "sremkit.integrations.metric_learning": ("MetricLearningLoss",),
        "sremkit.integrations.transformers_trainer": ("SREMTrainerMixin", "warmup_callback"),
        "sremkit.integrations.lightning": ("warmup_callback",),
        "sremkit.integrations.warmup": ("WarmupReport", "WarmupSteps"),
    }),
    "audit": ("Audit", {"sremkit.audit.audit": ("Audit",)}),
    "evaluation": ("Evaluation", {"sremkit.evaluation": None}),
    "data": ("Data", {"sremkit.data": None}),
    "models": ("Models", {
        "sremkit.models": None,
        "sremkit.model_files": None,
        "sremkit.features.inference": ("encode_images", "encode_texts"),
    }),
    "methods": ("Methods", {"sremkit.methods": None}),
    "other": ("Registry, recipes, errors", {
        "sremkit.registry": ("Registry",),
        "sremkit.config.recipes": ("Recipe", "load_recipe"),
        "sremkit.experiment": ("prepare", "train", "evaluate_runs"),
        "sremkit.errors": ("UserError", "DataError", "MissingExtraError", "UnknownNameError"),
    }),
}  # fmt: skip


def pages(docs: Path) -> dict[str, str]:
    """Every generated page by its path below docs/."""
    api = {f"reference/api/{name}.md": api_page(*page) for name, page in API.items()}
    methods = {f"methods/{name}.md": method_page(name, docs / "methods") for name in METHODS}
    return {
        **api,
        **methods,
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/backbones.md": components_page("Backbones", "backbone", BACKBONES),
        "reference/formats.md": components_page("Formats", "format", FORMATS),
        "reference/recipes.md": recipes_page(),
        "reference/extras.md": extras_page(),
    }


def api_page(title: str, modules: dict[str, Sequence[str] | None]) -> str:
    parts = [f"# {title}"]
    for module, names in modules.items():
        loaded = importlib.import_module(module)
        parts.append(f"`{module}`: {(loaded.__doc__ or '').strip().splitlines()[0]}")
        parts += [f"::: {module}.{name}" for name in (loaded.__all__ if names is None else names)]
    return "\n\n".join(parts) + "\n"


def cli_page() -> str:
    parts = ["# Command line", "Generated from the parsers of the commands; `srem COMMAND --help` shows the same."]
    for parser in all_parsers(build_parser()):
        level = "##" if parser.prog.count(" ") < 2 else "###"
        parts += [f"{level} `{parser.prog}`", as_markdown(parser.description or "")]
        rows = [
            [_cell(_invocation(action)), _cell(_expanded(parser, action))]
            for group in parser._action_groups
            for action in group._group_actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        ]
        parts += [table(["argument", "meaning"], rows)] if rows else []
        parts += [as_markdown(parser.epilog)] if parser.epilog else []
    return "\n\n".join(parts) + "\n"


def as_markdown(text: str) -> str:
    """A help text: paragraphs of commands, and those whose lines are aligned, as blocks of code."""
    paragraphs = text.strip().split("\n\n")
    is_code = [p.startswith(COMMAND_WORDS) or "  " in p for p in paragraphs]
    return "\n\n".join(f"```\n{p}\n```" if code else p for p, code in zip(paragraphs, is_code, strict=True))


def settings_page() -> str:
    parts = [
        "# Settings",
        "A recipe has five tables. `[data]`, `[noise]` and `[training]` are the same for every recipe; the keys of "
        "`[model]` are those of its [backbone](backbones.md), the keys of `[method]` those of its "
        "[method](../methods/overview.md). Change one with `--set TABLE.KEY=VALUE`.",
    ]
    for name, settings in SETTINGS.items():
        ranges = {key: str(allowed) for key, allowed in ranges_of(settings).items()}
        parts += [f"## `[{name}]`", (settings.__doc__ or "").split("\n")[0], option_table(options_of(settings), ranges)]
    return "\n\n".join(parts) + "\n"


def components_page(title: str, kind: str, registry: object) -> str:
    parts = [f"# {title}", f"Every registered {kind}, with its settings (`srem describe NAME`)."]
    for name in registry:  # type: ignore[attr-defined]
        parts += component(name, kind, heading=f"## `{name}`")
    return "\n\n".join(parts) + "\n"


def method_page(name: str, folder: Path) -> str:
    """The written page of a method, followed by its facts, settings and recipes."""
    written = folder / f"{name}.md"
    text = written.read_text(encoding="utf-8").rstrip() if written.exists() else f"# {name}\n\n{METHODS.describe(name)}"
    recipes = [recipe for recipe in recipe_headlines() if load_recipe(recipe).method["name"] == name]
    linked = ", ".join(f"`{recipe}`" for recipe in recipes) or "none"
    parts = [text, "## Settings", *component(name, "method", heading="")[1:], f"Recipes: {linked}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def component(name: str, kind: str, *, heading: str) -> list[str]:
    (found,) = (entry for entry in describe(name) if entry.kind == kind)
    facts = "\n".join(f"- {fact}" for fact in found.facts)
    options = option_table(found.options) if found.options else "It has no settings."
    return [heading, found.text, *([facts] if facts else []), options]


def recipes_page() -> str:
    rows = []
    for name, headline in recipe_headlines().items():
        recipe = load_recipe(name)
        rows.append([f"`{name}`", headline, f"`{recipe.method['name']}`", f"`{recipe.model['name']}`"])
    text = "Train one with `srem train NAME`; `srem train NAME --print-config` prints all of its settings."
    return f"# Recipes\n\n{text}\n\n{table(['recipe', 'what it is', 'method', 'backbone'], rows)}\n"


def extras_page() -> str:
    rows = []
    for command, needs in NEEDS.items():
        extras = ", ".join(dict.fromkeys(f"`{need.extra}`" for need in needs)) or "core"
        packages = [package + ("" if need.when is always else "\\*") for need in needs for package in need.packages]
        rows.append([f"`srem {command}`", extras, ", ".join(dict.fromkeys(packages))])
    text = (
        "What each command needs beyond the core dependencies. Packages with an asterisk are needed for some arguments "
        "only. A command names everything that is missing before it starts to work; `srem doctor` does so for all."
    )
    return f"# Extras\n\n{text}\n\n{table(['command', 'extra', 'packages'], rows)}\n"


def option_table(options: Sequence[Option], ranges: dict[str, str] | None = None) -> str:
    rows = []
    for option in options:
        if option.default is REQUIRED:
            default = "(required)"
        else:
            default = "(none)" if option.default is None else f"= {to_toml(option.default)}"
        setting = f"`{option.name} {default}`"
        allowed = (ranges or {}).get(option.name)
        meaning = option.meaning + (f" (must be {allowed})" if allowed else "")
        rows.append([f"{setting}<br><small>{_cell(option.type)}</small>", _cell(meaning)])
    return table(["setting and default", "meaning"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    shown = "" if action.nargs == 0 else f" {value}"
    names = [f"{name}{shown}" for name in action.option_strings] or [str(action.metavar or action.dest)]
    return "<br>".join(f"`{name}`" for name in names)


def _expanded(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

"""The field's words: terms that were coined here must not come back, in code, messages, pages or documentation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from sremkit.cli.main import build_parser
from sremkit.cli.parser import all_parsers

#: Rows of the table below that are still to be replaced somewhere.
PENDING: set[str] = set()

REPOSITORY = Path(__file__).parents[1]
FOLDERS = {
    "src": ("*.py", "*.html", "*.js", "*.css"),
    "docs": ("*.md", "*.py", "*.ipynb", "*.html", "*.css"),
    "configs": ("*.toml",),
    "benchmarks": ("*.py", "*.md"),
    "examples": ("*.py", "*.md", "*.ipynb"),
}
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
#: Texts that are data: captions of generated scenes.
DATA = "Template("
#: History, the table of old names, and commands that older versions have to understand as well.
EXEMPT = ("docs/lab.md", "src/sremkit/config/aliases.py", "benchmarks/golden.py")


def word(pattern: str) -> str:
    """Bounded by what is not a letter: `hear_all` contains the word "hear"."""
    return rf"(?<![a-z])(?:{pattern})(?![a-z])"


def name(pattern: str) -> str:
    """An identifier, with its case."""
    return rf"(?-i:(?<![A-Za-z])(?:{pattern})(?![A-Za-z]))"


#: What was said here, as a regular expression without regard to case, and the term to use.
GLOSSARY = {
    "witness": (r"witness", "scorer"),
    "hear": (word(r"hear|hears|heard"), "score"),
    "say": (
        name(r"Standing|Competition|Spoken|class Say"),
        "PairScores, candidate softmax, ensemble_weights",
    ),
    "heap": (word(r"heaps?"), "mixture component, mode"),
    "surely wrong": (r"surely[ _-]wrong", "random negative"),
    "strangers": (word(r"\w*strangers?"), "mismatch probe, random negatives, null distribution"),
    "belief": (r"belie[fv]", "clean probability (clean_prob)"),
    "exact_line": (r"exact_line|draw_the_line", "decision threshold, cutoff"),
    "picture": (word(r"pictures?"), "image"),
    "Given": (
        name(r"class Given|Given\(|Judgeable|OwnRows|look_at"),
        "InputPairs, EmbeddedPairs, SourceRows, inspect_inputs",
    ),
    "recorded": (word(r"recorded|recordings?|recordable"), "CUDA graphs, captured"),
    "average": (r"(training|settings)\.average\b", "EMA (training.ema_decay)"),
    "clip": (r"(training|settings)\.clip\b", "max_grad_norm"),
    "pieces": (word(r"pieces?"), "chunk, micro-batch"),
    "as usual": (r"as[ _]usual", "eager, default"),
    "number format": (r"number[ _]formats?", "dtype, precision, autocast"),
    "processor": (r"(on|of|for|to) (the|a|an|one|this|each|its) processors?(?![a-z])", "CPU"),
    "any_of_all": (
        r"any_of_all|(?<![a-z])add_up(?![a-z])|looking_order",
        "all_reduce_any, all_reduce_sum, scan_order",
    ),
    "brought": (word(r"brought"), "prefetched, read"),
    "Surroundings": (r"surroundings", "TrainingContext"),
    "warmth": (rf"warmth|too_cold|found_out|warmed_up|{word('warming')}", "warmup_status, warmup_monitor"),
    "rematch_among": (r"known_heaps|rematch_among|rematch_turns", "rematch_top_k, rematch_every"),
    "beside": (word(r"beside"), "next to, with, and"),
    "at once": (r"at[ _]once", "together, in one pass, streams"),
    "tells": (word(r"telling|tells"), "node_scores, report, state"),
    "twins": (r"(?<!wrong )(?<!wrong_)(?<![a-z])twins?(?![a-z])", "two_networks, reference"),
    "ask": (
        r"node_asking|global_asking|(words|regions|nodes|texts|images|sides?) asks?(?![a-z])",
        "t2i, i2t, query, self-attention",
    ),
    "retreat": (r"(?<![a-z])(advance|retreat)\(", "gru_forward, gru_backward"),
    "packing.starts": (r"packing\.(starts|longest|places)\b", "cu_seqlens, max_seqlen, indices"),
    "kernels_hold": (r"kernels_hold|kernels_serve", "kernels_support"),
    "survey": (word(r"survey"), "first_pass"),
    "opaque": (r"opaque[_(]|_opaque|class opaque", "custom_op"),
    "Outcome": (name(r"Outcome|class Plan|Plan\("), "FusedResult, SREMConfig"),
    "glance": (word(r"glance|deliver"), "read_rows, write_gradient"),
    "keep_valid": (r"candidates\.low\b|keep_valid", "MASK_VALUE, mask_invalid"),
    "LEAST_": (
        r"(?-i:(?<![A-Za-z])(?<!AT_)(FEWEST|LEAST|MOST)_|(?<![A-Za-z])CLEARLY(?![A-Za-z]))",
        "MIN_, MAX_",
    ),
    "NOBODY": (r"(?-i:(?<![A-Z])(NOBODY|NO_PAIR|NOT_THERE|ALONE)(?![A-Z]))", "MISSING"),
    "LearnedLogit": (r"learned_?logit", "LogitScale"),
    "most_words": (r"most_words", "num_words, max_words"),
    "--what": (r"--(what|which|sample)(?![a-z-])", "--format, --select, --max-train-pairs"),
    "judge": (rf"(?<![`\"]){word(r'judg(e|es|ed|ing|ement|ment|ments)')}", "score, scorer, verdict"),
    "nobody": (word(r"nobody|everybody|whoever"), "none, every, what"),
    "fare": (word(r"fares?|faring"), "score, compare"),
    "own process": (r"own[ _]process(?![a-z])", "subprocess"),
    "side by side": (r"side[ _]by[ _]side", "in parallel, concatenated, compared"),
}


@pytest.mark.parametrize("old", [old for old in GLOSSARY if old not in PENDING])
def test_the_fields_term_is_used(old: str) -> None:
    pattern, term = GLOSSARY[old]
    found = occurrences(pattern)
    assert not found, f"instead of '{old}' write: {term}\n" + "\n".join(found)


def test_the_search_finds_words_in_prose_and_in_identifiers() -> None:
    heard, constant = GLOSSARY["hear"][0], GLOSSARY["NOBODY"][0]
    assert all(re.search(heard, text, re.I) for text in ("Hear all", "hear_all(", "what was heard."))
    assert not any(re.search(heard, text, re.I) for text in ("heart", "shear", "overheard"))
    assert re.search(constant, "x = NO_PAIR", re.I)
    assert not re.search(constant, "no_pair or nobody", re.I)


def occurrences(pattern: str) -> list[str]:
    """Lines with the pattern, as "path:line: text"."""
    search = re.compile(pattern, re.IGNORECASE).search
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if DATA not in line and search(line)
    ]


@cache
def texts() -> dict[str, str]:
    """Every file that readers see, by its path, and the help of every command."""
    found = [file for folder, types in FOLDERS.items() for t in types for file in (REPOSITORY / folder).rglob(t)]
    files = {file.relative_to(REPOSITORY).as_posix(): file for file in [*found, *map(REPOSITORY.joinpath, PAGES)]}
    read = {path: file.read_text(encoding="utf-8") for path, file in files.items() if path not in EXEMPT}
    # Help as it is shown: in the source a term of two words may stand on two lines.
    shown = {parser.prog: " ".join(parser.format_help().split()) for parser in all_parsers(build_parser())}
    assert len(shown) > 20
    return read | shown

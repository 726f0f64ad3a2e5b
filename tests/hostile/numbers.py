"""Numbers on the command line and in settings: too small, too large, no numbers at all."""

from __future__ import annotations

from collections.abc import Iterator

from hostile.harness import AUDIT, Case, good, settings, write_pairs

HUGE, DIGITS = str(10**20), "9" * 5000
SMALL = settings("data.train_options.num_scenes=2", "data.options.num_scenes=2")
SCENES = ("train", "scenes-srem", "-o", "out", *SMALL)


def cases() -> Iterator[Case]:
    yield from _settings()
    yield from _sizes()
    yield from _options()
    yield from _ranges()


def _settings() -> Iterator[Case]:
    """`srem train --set`: refused before any data is read."""
    counts = ("warmup_epochs", "batch_size", "decay_after", "float32_steps", "keep_statistics", "patience",
              "grad_cache_chunk_size")  # fmt: skip
    for name in ("epochs", "seed", "workers", "threads", *counts):
        says = rf"'training\.{name}' must be"
        for value in ("-1", HUGE, DIGITS, "1.5", "nan", '"1"', "true", "[]", "{}", "1e3"):
            yield Case(f"{name} = {value[:25]}", (*SCENES, *settings(f"training.{name}={value}")), says)
    for name in ("learning_rate", "weight_decay", "max_grad_norm", "ema_decay", "decay_factor", "checkpoint_minutes"):
        says = rf"'training\.{name}' must be"
        for value in ("-1", "nan", "-inf", '"1"', "true", DIGITS, "1" + "0" * 400):
            yield Case(f"{name} = {value[:25]}", (*SCENES, *settings(f"training.{name}={value}")), says)
    limits = {"epochs": 1_000_001, "warmup_epochs": 1_000_001, "seed": 2**63, "threads": 1025, "workers": 257,
              "batch_size": 1_000_000_001}  # fmt: skip
    for name, value in limits.items():
        says = rf"'training\.{name}' must be at most {value - 1:,}, got {value}"
        yield Case(f"{name} = {value}", (*SCENES, *settings(f"training.{name}={value}")), says)
    rates = ("-0.1", "1.1", "nan", "inf", HUGE)
    others = {"noise.seed": ("-1", HUGE), "noise.rate": rates, "data.min_count": ("0", HUGE),
              "data.test_folds": ("0", HUGE), "data.trusted_images": ("-1", HUGE)}  # fmt: skip
    for name, values in others.items():
        for value in values:
            yield Case(f"{name} = {value}", (*SCENES, *settings(f"{name}={value}")), rf"'{name}' must be")
    for text in ("", "=", "=3", "training", "training.epochs", "training.epochs.x=3", "x=3", "training.zz=3", "..=3",
                 "a..b=3"):  # fmt: skip
        says = "is not an assignment|goes below|there is no setting"
        yield Case(f"--set {text!r}", (*SCENES, *settings(text)), says)


def _sizes() -> Iterator[Case]:
    """Sizes of models and methods: refused by their limit, or because the machine has less memory."""
    for name in ("embed_size", "word_dim"):
        for value in ("0", "-1", "1000000001", HUGE, DIGITS, "1.5", "nan", '"8"'):
            says = rf"'model\.{name}' must be|a setting in \[model\]|{name} must be"
            yield Case(f"model.{name} = {value[:25]}", (*SCENES, *settings(f"model.{name}={value}")), says)
    memory = "the model has .* parameters, whose training takes at least .* choose smaller sizes"
    for name in ("vse-infty", "sgr", "saf", "scan-t2i", "vsrn"):
        command = (*SCENES, *settings(f"model.name={name}", "model.embed_size=1000000"))
        yield Case(f"{name} with embed_size = 10^6", command, memory)
    dual = ("train", "features-dual-srem", "-o", "out", *settings("data.source=features"))
    for name in ("embed_size", "hidden_size"):
        for value in ("0", "-1", "1000001", HUGE):
            says = rf"'model\.{name}' must be|a setting in \[model\]"
            yield Case(f"dual, {name} = {value}", (*dual, *settings(f"model.{name}={value}")), says, good("run"))
    both = settings("model.embed_size=1000000", "model.hidden_size=1000000")
    yield Case("dual, 10^6 wide and deep", (*dual, *both), memory, good("run"))
    for name in ("dropout", "scale"):
        for value in ("-1", "nan", '"1"', HUGE * 20):
            says = rf"'model\.{name}' must be|a setting in \[model\]|{name} must"
            yield Case(f"dual, {name} = {value[:25]}", (*dual, *settings(f"model.{name}={value}")), says, good("run"))
    for value in ("0", "-1", "1.5", HUGE, '"x"'):
        command = (*SCENES, *settings(f"data.train_options.num_scenes={value}"))
        yield Case(f"num_scenes = {value}", command, "num_scenes")
    for name in ("zz", "", "../x", "dual\x00"):
        command = (*SCENES, *settings(f"model.name={name!r}".replace("\\x00", "\\u0000")))
        yield Case(f"model.name = {name!r}", command, "there is no|not known|unknown|is not|needs")


def _options() -> Iterator[Case]:
    """Options that are whole numbers, of every command: refused by the command line with the range."""
    commands = {
        AUDIT: ("--seed", "--max-train-pairs", "--task", "--of"),
        ("features", "pairs.csv", "-o", "out"): ("--batch-size", "--workers"),
        ("noise", "make", "-o", "n.npy"): ("--images",),
        ("noise", "make", "--images", "5", "-o", "n.npy"): ("--captions-per-image", "--seed"),
        ("noise", "inspect", "n.npy"): ("--captions-per-image",),
        ("data", "make", "-o", "out"): ("--images", "--regions", "--dim", "--concepts", "--seed"),
        ("eval", "run"): ("--folds",),
        ("bench", "methods"): ("--seeds", "--jobs"),
        ("bench", "ablation"): ("--seeds", "--jobs"),
        ("bench", "efficiency"): ("--epochs",),
    }
    for command, options in commands.items():
        for option in options:
            for value in (HUGE, DIGITS, "1.5", "nan", "x", "", "1e3", "0x10", "١٢x"):
                says = f"argument .*{option}: must be a whole number"
                yield Case(f"{option} {value[:25]}", (*command, option, value), says)


def _ranges() -> Iterator[Case]:
    """Numbers that are whole, but out of range."""
    for value in ("-1", str(-(10**20))):
        yield Case(f"--seed {value}", (*AUDIT, "--seed", value), "seed must|--seed", write_pairs)
        yield Case(f"--workers {value}", (*AUDIT, "--workers", value), "--workers must be 0 or more", write_pairs)
    make = ("noise", "make", "-o", "n.npy")
    yield Case("--images 10^11", (*make, "--images", str(10**11)), "--images: must be a whole number of at most")
    for images, captions in ((10**9, 1), (10**8, 5), (10**6, 1000), (1, 10**9)):
        command = (*make, "--images", str(images), "--captions-per-image", str(captions))
        yield Case(f"{images} times {captions}", command, "times --captions-per-image must be at most 100,000,000")
    for rate in ("-0.1", "1.1", "nan", "inf", "-inf"):
        yield Case(f"--rate {rate}", (*make, "--images", "5", f"--rate={rate}"), "rate is a fraction between 0 and 1")
    for option in ("--precision", "--fraction", "--threshold"):
        for value in ("-1", "2", "nan", "inf", "1e400"):
            yield Case(f"{option} {value}", (*AUDIT, option, value), option.strip("-"), write_pairs)
            command = ("export", "audit", "-o", "keep.txt", option, value)
            yield Case(f"{option} {value}", command, option.strip("-"), good("audit"))
    for task, of in (("-1", "4"), ("4", "4"), ("0", "0"), ("0", "-1"), ("5", "4")):
        command = ("audit", "*.csv", "--sharded", "--task", task, "--of", of)
        yield Case(f"--task {task} --of {of}", command, "task", write_pairs)
    for zipf in ("-1", "nan", "inf", "11"):
        yield Case(f"--zipf {zipf}", ("data", "make", "-o", "out", "--zipf", zipf), "--zipf must lie between 0 and 10")
    for folds in ("0", "-1", "1000000"):
        yield Case(f"--folds {folds}", ("eval", "run", "--split", "val", "--folds", folds), "folds", good("run"))
    for pattern in ("s-{0..99999999999}.tar", "s-{0..9999}{0..9999}{0..9999}.tar", "s-{0..9}" + "{0..9}" * 30 + ".tar",
                    "s-{000..1000001}.tar"):  # fmt: skip
        audit = ("audit", pattern, "-o", "a")
        for command in (audit, (*audit, "--sharded"), ("features", pattern, "-o", "f")):
            yield Case(f"the pattern {pattern[:40]}", command, "more than 1,000,000 files")
    for pattern in ("s-{9..1}.tar", "s-{0..2.tar", "s-{..}.tar", "s-{a..z}.tar"):
        yield Case(
            f"the pattern {pattern}", ("audit", pattern, "-o", "a"), "does not exist|holds no pairs; check the path"
        )

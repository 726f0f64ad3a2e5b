"""Write the best model of a run, or a published checkpoint, as a folder that others can load without running code.

srem export-model runs/mine -o models/mine
srem export-model runs/mine --onnx -o models/mine
srem export-model model_best.pth.tar --vocabulary f30k_precomp_vocab.json -o models/sgr

The folder holds the weights (safetensors), the configuration, the vocabulary and a model card. Published checkpoints
are those of SGRAF, NCR and the methods built on their code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a model as safetensors with a model card, or as ONNX"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="RUN", help="folder of a run, or a published .pth.tar file")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--onnx", action="store_true", help="write image.onnx and text.onnx too (dual encoders)")
    parser.add_argument(
        "--vocabulary", type=Path, metavar="JSON", help="vocabulary of a published checkpoint; a run has its own"
    )


def run(args: argparse.Namespace) -> None:
    from sremkit.data import Vocabulary
    from sremkit.errors import UserError
    from sremkit.experiment import load_best
    from sremkit.model_files.card import card_of_published, card_of_run
    from sremkit.model_files.folder import save_model
    from sremkit.model_files.onnx import check_onnx, export_onnx
    from sremkit.model_files.published import load_published
    from sremkit.training.run_folder import RunFolder

    name = args.out.resolve().name
    if args.source.is_dir():
        if args.vocabulary is not None:
            raise UserError("a run has its own vocabulary; leave --vocabulary out")
        folder = RunFolder.open(args.source)
        matcher, vocabulary = load_best(folder)
        card = card_of_run(folder, matcher, vocabulary, name=name)
    else:
        matcher = load_published(args.source)
        vocabulary = None if args.vocabulary is None else Vocabulary.load(args.vocabulary)
        _check_size(matcher.options, vocabulary)
        card = card_of_published(args.source, matcher, vocabulary, name=name)
    if args.onnx:
        check_onnx(matcher)
    save_model(args.out, matcher, vocabulary, card=card)
    count = sum(parameter.numel() for parameter in matcher.parameters())
    print(f"{args.out}: {matcher.name}, {count:,} parameters; README.md is the model card")
    if args.onnx:
        print(f"image.onnx and text.onnx equal the model to {export_onnx(args.out, matcher):.0e} in ONNX Runtime")
    print(f'load it:  sremkit.model_files.load_model("{args.out}")')
    if vocabulary is None and matcher.text_input == "words":
        print("it reads words, and has no vocabulary; give the one it was trained with by --vocabulary")


def _check_size(options: dict, vocabulary) -> None:
    from sremkit.errors import UserError

    expected = options.get("member", {"options": options})["options"]["vocab_size"]
    if vocabulary is not None and len(vocabulary) != expected:
        raise UserError(
            f"the checkpoint has {expected:,} words, but this vocabulary has {len(vocabulary):,}; give the one that it "
            "was trained with"
        )

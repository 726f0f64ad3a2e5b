"""The index of a run or of an audit on disk: built once, opened by `srem search` and `srem serve`."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sremkit.audit.inputs import join_splits
from sremkit.audit.result_table import PAIRS
from sremkit.audit.stages import from_zero
from sremkit.config.recipes import DataSettings
from sremkit.data.formats import read_collection
from sremkit.data.formats.features import extracted_images
from sremkit.data.images import FileImages
from sremkit.data.pairs import Pairs
from sremkit.data.training_pairs import read_split, read_training_pairs, resolve_source
from sremkit.errors import DataError, UserError
from sremkit.io import digest, read_json_or_empty, refuse_links_out, sole_writer, write_json
from sremkit.models.matcher import Encoded
from sremkit.search.audit_model import open_audit
from sremkit.search.models import RunModel, SearchModel, batches_of
from sremkit.search.searcher import CANDIDATES, Searcher
from sremkit.search.vector_index import RECALL_AT, SAMPLE_QUERIES, Kind, VectorIndex, faiss_module, recall_of
from sremkit.training.checkpoint import DamagedCheckpointError
from sremkit.training.run_folder import RunFolder
from sremkit.version import __version__

INDEX, FACTS, MODEL = "index", "index.json", "model"
MAX_COMPARED = 200_000  # pairs that a cross-attention model scores to measure the recall of its candidates

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SearchedData:
    """Which collection is indexed; what is not given is the run's or the audit's own."""

    split: str = "train"  # of a run's data: train, val or test
    source: str | None = None  # another collection, in any format, with features
    format: str | None = None  # of that
    image_root: str | None = None  # folder of the image files, where the collection has features alone
    encoder: str | None = None  # CLIP or SigLIP folder, of an audit that was made with one


def build_index(
    folder: Path,
    data: SearchedData | None = None,
    *,
    kind: Kind | None = None,
    candidates: int = CANDIDATES,
    progress: Progress | None = None,
) -> Searcher:
    """Encode the collection, and write the index into `folder`, a run or an audit.

    Args:
        kind: "flat" or "ivf"; by default what the number of vectors suggests.
        candidates: that a cross-attention model scores for each query.
    """
    faiss_module()  # a missing package is reported now
    if candidates < 1:
        raise UserError(f"--candidates must be 1 or more, got {candidates}")
    data, started, progress = data or SearchedData(), time.monotonic(), from_zero(progress)
    model, pairs = _open_model(folder, data, progress)
    model.fit(pairs)
    image_vectors = _encode_all(model.collection_images, model.image_vectors, pairs.num_images, "images", progress)
    text_vectors = _encode_all(model.collection_texts, model.text_vectors, len(pairs), "captions", progress)
    image_index = VectorIndex.build(image_vectors, _sample(text_vectors), kind=kind)
    text_index = VectorIndex.build(text_vectors, _sample(image_vectors), kind=kind)
    searcher = Searcher(model, pairs, image_index, text_index, candidates=candidates if model.needs_reranking else None)
    out = folder / INDEX
    refuse_links_out(folder)
    out.mkdir(exist_ok=True)
    refusal = f"another process builds the index in {out}; wait for it, and try again"
    with sole_writer(out / ".lock", refusal):
        searcher.facts = _write(searcher, out, data, seconds=time.monotonic() - started)
    return searcher


def _write(searcher: Searcher, out: Path, data: SearchedData, *, seconds: float) -> dict[str, Any]:
    """Write an index and return its facts."""
    model, pairs = searcher.model, searcher.pairs
    (out / FACTS).unlink(missing_ok=True)  # while it is rewritten, the index is not complete
    model.save(out / MODEL)
    facts = {
        "key": _key(model, pairs),
        "model": model.name,
        "collection": pairs.name,
        "data": asdict(data),
        "images": searcher.images.save(out, "images"),
        "texts": searcher.texts.save(out, "texts"),
        "candidates": searcher.candidates,
        "candidate_recall@10": measure_candidates(searcher) if model.needs_reranking else None,
        "seconds": round(seconds, 1),
        "version": __version__,
    }
    facts["checksum"] = _checksum(facts)
    write_json(out / FACTS, facts)
    return facts


def has_index(folder: Path) -> bool:
    """Whether the folder of a run or an audit has a complete index."""
    return (folder / INDEX / FACTS).is_file()


def open_index(folder: Path) -> Searcher:
    """Open the index in `folder`; one that does not belong to the model and the data is refused."""
    faiss_module()
    out = folder / INDEX
    if not has_index(folder):
        _check_folder(folder)
        raise UserError(f"{folder} has no index; build it with `srem index {folder}`")
    facts = read_json_or_empty(out / FACTS)
    if facts.get("checksum") != _checksum(facts):
        raise DataError(f"{out / FACTS} is damaged; build the index again with `srem index {folder}`")
    if facts["version"] != __version__:
        raise UserError(
            f"the index in {out} was built by version {facts['version']} of sremkit; build it again with "
            f"`srem index {folder}`"
        )
    model, pairs = _open_model(folder, SearchedData(**facts["data"]))
    if _key(model, pairs) != facts["key"]:
        raise UserError(
            f"the model or the pairs have changed since the index in {out} was built; build it again with "
            f"`srem index {folder}`"
        )
    try:
        model.load(out / MODEL)
    except DamagedCheckpointError as cause:
        raise DataError(
            f"{out / MODEL} is damaged ({cause.reason}); build the index again with `srem index {folder}`"
        ) from cause
    indexes = [VectorIndex.load(out, name, facts[name]) for name in ("images", "texts")]
    return Searcher(model, pairs, *indexes, candidates=facts["candidates"], facts=facts)


def _checksum(facts: dict[str, Any]) -> str:
    """Of `index.json`; an index that was changed by hand or cut off is built again."""
    return digest({name: value for name, value in facts.items() if name != "checksum"})


def measure_candidates(searcher: Searcher) -> float:
    """Of the model's own ten best images for a caption, the fraction that is among the candidates.

    Over captions of the collection, as many as keep the number of comparisons bounded.
    """
    pairs, model = searcher.pairs, searcher.model
    count = int(np.clip(MAX_COMPARED // pairs.num_images, 8, SAMPLE_QUERIES))
    rows = np.random.default_rng(0).permutation(len(pairs))[:count]
    texts = model.collection_texts(np.sort(rows))
    exact = torch.cat([model.compare(model.collection_images(r), texts) for r in batches_of(pairs.num_images)])  # (n,q)
    best = exact.topk(min(RECALL_AT, len(exact)), dim=0).indices.T.numpy()
    found, _ = searcher.images.search(model.text_vectors(texts).numpy(), searcher.candidates)
    return recall_of(found, best)


def _open_model(folder: Path, data: SearchedData, progress: Progress | None = None) -> tuple[SearchModel, Pairs]:
    _check_folder(folder)
    if not (folder / "config.toml").is_file():
        if data.source is not None:
            raise UserError("an audit is searched in its own pairs; leave --source out, or give a run")
        model, pairs = open_audit(folder, encoder=data.encoder, progress=progress)
        return model, _with_image_root(pairs, data.image_root)
    run = RunFolder.open(folder)
    pairs = _with_image_root(_read_pairs(run.recipe().data, data), data.image_root)
    opened = RunModel.open(run, pairs)
    return opened, opened.pairs


def _check_folder(folder: Path) -> None:
    if not (folder / "config.toml").is_file() and not (folder / PAIRS).is_file():
        raise UserError(
            f"{folder} is neither a run (with config.toml) nor a finished audit (with {PAIRS}); "
            "train a model with `srem train`, or audit pairs with `srem audit`"
        )


def _read_pairs(settings: DataSettings, data: SearchedData) -> Pairs:
    source = data.source or resolve_source(settings.source)
    if data.source is not None:
        options = {} if settings.source == "scenes" or data.format not in (None, settings.format) else settings.options
        pairs = join_splits(read_collection(source, format=data.format, **options))[0]
    elif data.split == "train":
        pairs = read_training_pairs(settings)
    else:
        pairs = read_split(settings, settings.test_split if data.split == "test" else settings.val_split)
    return pairs if pairs.images is not None else replace(pairs, images=extracted_images(Path(source), pairs))


def _with_image_root(pairs: Pairs, image_root: str | None) -> Pairs:
    """Pairs with the image files below a folder, named by the ids of the images."""
    if image_root is None:
        return pairs
    paths = [os.path.join(image_root, image_id) for image_id in pairs.image_ids]
    if not os.path.isfile(paths[0]):
        raise UserError(f"{paths[0]} does not exist; give the folder that the ids of the images start from")
    return replace(pairs, images=FileImages(paths))


def _encode_all(
    encode: Callable[[np.ndarray], Encoded],
    vectors: Callable[[Encoded], torch.Tensor],
    count: int,
    noun: str,
    progress: Progress | None,
) -> np.ndarray:
    parts = []
    for rows in batches_of(count):
        parts.append(vectors(encode(rows)).float().numpy())
        if progress is not None:
            progress(noun, int(rows[-1]) + 1, count)
    return np.concatenate(parts)


def _sample(vectors: np.ndarray) -> np.ndarray:
    """Vectors of one modality as sample queries for the other."""
    return vectors[np.sort(np.random.default_rng(0).permutation(len(vectors))[:SAMPLE_QUERIES])]


def _key(model: SearchModel, pairs: Pairs) -> str:
    """Changes with the weights, the ids, the texts and the pairing."""
    content = hashlib.sha256(pairs.image_of_text.tobytes())
    for texts in (pairs.image_ids, pairs.pair_ids, pairs.texts):
        content.update("\0".join(texts).encode("utf-8", "surrogatepass"))
    return digest([model.key, content.hexdigest(), __version__])

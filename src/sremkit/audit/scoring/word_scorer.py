"""The word scorer: predicts each word of a caption from the image and the other words.

    context_t = the words before word t and after it, without the word itself
    P_t(v) = softmax over word t and its alternatives, from context_t and attention over the image's regions

A caption with one wrong word has one word of low probability. Its other words are right, so that such captions do
little harm in training and need no weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sremkit.audit.scoring.dual_encoder import OnStep, seeded, step_function
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.audit.scoring.word_alternatives import WordAlternatives, find_alternatives
from sremkit.data.batches import batch_order
from sremkit.data.pairs import FeatureSource
from sremkit.data.vocabulary import PAD
from sremkit.errors import DataError

WIDTH = 128
HEADS = 4
DROPOUT = 0.2
BATCH_SIZE = 128
LEARNING_RATE = 2e-3
MASK_VALUE = -1e9
MIN_PROB = 1e-6  # probabilities are clamped to [MIN_PROB, 1 - MIN_PROB]
MAX_IMAGES_FOR_MEAN = 1000  # of which the mean and standard deviation of regions are computed
PAIRS_PER_CHUNK = 512


@dataclass(frozen=True, eq=False)
class WordInputs:
    """What a word scorer reads: regions of images, words of texts, and the pairing."""

    regions: FeatureSource  # (r, d) of each image, or one vector
    words: WordAlternatives
    image_of_text: np.ndarray  # (m,)

    def regions_of(self, images: np.ndarray) -> tuple[Tensor, Tensor]:
        """Regions (k, r, d) and which of them are absent, (k, r)."""
        values, mask = self.regions.rows(images)
        regions = torch.from_numpy(values if values.ndim == 3 else values[:, None])
        absent = torch.zeros(regions.shape[:2], dtype=torch.bool)
        return regions.float(), absent if mask is None else ~torch.from_numpy(mask)

    def fingerprint(self, images: np.ndarray) -> str:
        """Changes when a word or a region of these images changes."""
        digest = hashlib.sha256(self.words.tokens.numpy().tobytes())
        for start in range(0, len(images), PAIRS_PER_CHUNK):
            digest.update(self.regions.rows(images[start : start + PAIRS_PER_CHUNK]).values.tobytes())
        return digest.hexdigest()


def word_inputs(
    vectors: PairVectors, texts: Sequence[str] | None, regions: FeatureSource | None
) -> tuple[WordInputs | None, str]:
    """The inputs of a word scorer; None and a sentence where words cannot be scored."""
    num_images = len(vectors.images)
    if regions is None or len(regions) != num_images or texts is None:
        raise DataError(
            f"single words are compared with the regions of {num_images} images, but there are those of "
            f"{0 if regions is None else len(regions)}; give features of every image"
        )
    words = find_alternatives(texts)
    if words is None:
        return None, "no two words of these texts could stand in each other's place, so words were not scored"
    return WordInputs(regions, words, vectors.image_of_text.numpy()), ""


class WordPredictor(nn.Module):
    """Logits of every word of the vocabulary at every position of a text."""

    region_mean: Tensor
    region_std: Tensor

    def __init__(self, vocab_size: int, region_mean: Tensor, region_std: Tensor) -> None:
        super().__init__()
        self.register_buffer("region_mean", region_mean)
        self.register_buffer("region_std", region_std)
        self.embedding = nn.Embedding(vocab_size, WIDTH)
        self.forward_gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.backward_gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.context = nn.Linear(2 * WIDTH, WIDTH)
        self.region_mlp = nn.Sequential(*_mlp(len(region_mean), WIDTH), nn.LayerNorm(WIDTH))
        self.query_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), *_mlp(WIDTH, WIDTH))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(DROPOUT), nn.Linear(WIDTH, vocab_size))

    def forward(self, regions: Tensor, absent: Tensor, tokens: Tensor) -> Tensor:
        """Regions (b, r, d), absent (b, r) and tokens (b, w) to logits (b, w, v)."""
        keys = self.region_mlp((regions - self.region_mean) / self.region_std)  # (b, r, d)
        context = self._context(tokens)  # (b, w, d)
        attended, _ = self.attention(self.query_norm(context), keys, keys, key_padding_mask=absent, need_weights=False)
        context = context + attended
        return self.head(context + self.mlp(context))

    def _context(self, tokens: Tensor) -> Tensor:
        words = self.embedding(tokens)
        lengths = (tokens != PAD).sum(dim=1, keepdim=True)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        reversal = (lengths - 1 - positions).clamp_min(0)  # (b, w): reads a text from its end, without the padding
        reversal = reversal.unsqueeze(-1).expand_as(words)
        before = self.forward_gru(words)[0]
        after = self.backward_gru(words.gather(1, reversal))[0].gather(1, reversal)
        after = after.masked_fill((positions >= lengths).unsqueeze(-1), 0.0)  # nothing follows the end
        zeros = torch.zeros_like(before[:, :1])
        # Shifted by one, so that no position sees its own word.
        around = [torch.cat([zeros, before[:, :-1]], 1), torch.cat([after[:, 1:], zeros], 1)]
        return self.context(torch.cat(around, dim=2))


def _mlp(width_in: int, width_out: int) -> list[nn.Module]:
    return [nn.Linear(width_in, 2 * WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(2 * WIDTH, width_out)]


@dataclass(frozen=True, eq=False)
class WordScorer:
    """A trained word predictor."""

    predictor: WordPredictor
    inputs: WordInputs

    @torch.no_grad()
    def score(self, images: np.ndarray, tokens: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Score image `images[k]` with text `tokens[k]`, for every k.

        Returns:
            log_likelihood: (p,) sum over the slots of log P(word): low for a text of another image; NaN without a slot.
            worst_word: (p,) -log sum over the slots of (1 - P) / P: low where a single word does not fit.
        """
        if len(images) == 0:
            return np.zeros(0), np.zeros(0)
        likelihoods, worst = [], []
        for chunk in torch.arange(len(images)).split(PAIRS_PER_CHUNK):
            log_p, is_slot, _ = word_log_probs(self.predictor, self.inputs, images[chunk.numpy()], tokens[chunk])
            p = log_p.exp().clamp(MIN_PROB, 1 - MIN_PROB)
            no_slot = ~is_slot.any(dim=1)
            likelihoods.append((log_p * is_slot).sum(dim=1).masked_fill(no_slot, math.nan))
            worst.append(-torch.log(((1 - p) / p * is_slot).sum(dim=1) + MIN_PROB))
        return torch.cat(likelihoods).double().numpy(), torch.cat(worst).double().numpy()


def word_log_probs(
    predictor: WordPredictor, inputs: WordInputs, images: np.ndarray, tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax of every word among itself and its alternatives: log-probabilities of the words (b, w), which of them
    have alternatives (b, w), and the logits of the alternatives (b, w, v), masked elsewhere."""
    tokens = tokens[:, : int((tokens != PAD).sum(dim=1).max())]
    logits = predictor(*inputs.regions_of(images), tokens)
    own = logits.gather(2, tokens.unsqueeze(-1)).squeeze(-1)
    others = logits.masked_fill(~inputs.words.alternatives[tokens], MASK_VALUE)
    return own - torch.logaddexp(own, others.logsumexp(dim=2)), inputs.words.is_slot[tokens], others


def train_word_scorer(
    inputs: WordInputs, rows: np.ndarray, settings: ScoringSettings, *, seed: int, on_step: OnStep | None = None
) -> WordScorer:
    """Train on the pairs `rows` with cross-entropy over the slots."""
    batch_size = min(BATCH_SIZE, len(rows))
    regions, absent = inputs.regions_of(np.unique(inputs.image_of_text[rows])[:MAX_IMAGES_FOR_MEAN])
    present = regions[~absent]  # (k, d)
    mean, std = present.mean(dim=0), present.std(dim=0, correction=0).clamp_min(1e-6)  # the units of encoders differ
    with seeded(seed):
        predictor = WordPredictor(inputs.words.vocab_size, mean, std).train()
        optimizer = torch.optim.AdamW(predictor.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        step = step_function(optimizer, settings.word_epochs * (len(rows) // batch_size), on_step)
        for epoch in range(settings.word_epochs):
            order = batch_order(len(rows), batch_size, seed=seed, epoch=epoch, shuffle=True, drop_last=True)
            for numbers in order:
                batch = rows[numbers]
                tokens = inputs.words.tokens[torch.from_numpy(batch)]
                log_p, is_slot, _ = word_log_probs(predictor, inputs, inputs.image_of_text[batch], tokens)
                step(-(log_p * is_slot).sum() / is_slot.sum().clamp_min(1))
    return WordScorer(predictor.eval(), inputs)


@torch.no_grad()
def replace_words(scorer: WordScorer, rows: np.ndarray, *, seed: int) -> tuple[np.ndarray, Tensor]:
    """Hard negatives: replace one word of each text by the word that the model predicts there for another image.

        P(position t, word v) ∝ P_t(v | the other words, another image),   v an alternative of word t, not itself

    So words are replaced where a sentence leaves a choice, and the result is a sentence, as people's mistakes are.
    Where the other words leave one choice, as "background" after "on a white", hardly any is replaced. Uniform
    replacements would be easier to find than people's mistakes, and the calibration too optimistic.

    Returns:
        the rows (e,) of the texts in which a word was replaced, and the new texts (e, w).
    """
    tokens, image_of_text = scorer.inputs.words.tokens, scorer.inputs.image_of_text
    other_image = image_of_text[np.random.default_rng(seed).permutation(rows)]  # (f,)
    differs = other_image != image_of_text[rows]
    rows, other_image = rows[differs], other_image[differs]
    generator = torch.Generator().manual_seed(seed)
    kept_rows, texts = [np.zeros(0, dtype=np.int64)], [tokens[:0]]
    for start in range(0, len(rows), PAIRS_PER_CHUNK):
        chunk = slice(start, start + PAIRS_PER_CHUNK)
        text = tokens[torch.from_numpy(rows[chunk])]  # (b, w), a copy
        is_replaced = _replace(scorer, other_image[chunk], text, generator)
        kept_rows.append(rows[chunk][is_replaced.numpy()])
        texts.append(text[is_replaced])
    return np.concatenate(kept_rows), torch.cat(texts)


def _replace(scorer: WordScorer, images: np.ndarray, text: Tensor, generator: torch.Generator) -> Tensor:
    """Replace a word of each text in place; returns in which of them there was one to replace, (b,)."""
    log_own, is_slot, others = word_log_probs(scorer.predictor, scorer.inputs, images, text)
    open_prob = -torch.expm1(log_own.double()) * is_slot  # (b, w): 1 - P of the word itself
    has_open = open_prob.sum(dim=1) > MIN_PROB
    position = torch.multinomial(open_prob[has_open].clamp_min(0), 1, generator=generator)  # (e, 1)
    probs = others[has_open, position.squeeze(1)].softmax(dim=1)  # (e, v)
    word = torch.multinomial(probs, 1, generator=generator)  # (e, 1)
    text[has_open] = text[has_open].scatter(1, position, word)
    return has_open

"""The witness for single words: from the picture and the rest of the text it guesses each word.

    context_t = what stands before word t and after it, not the word itself
    P_t(v) = softmax over the alternatives of word t, from context_t and the regions that it attends to

A caption that is wrong in one word has one word that the picture would have said otherwise, and all others teach
rightly. So such captions do little harm in learning, and no pair has to be believed or doubted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.trained_witness import rise_and_fall
from sremkit.audit.word_slots import WordSlots, find_slots
from sremkit.data.order import batch_order
from sremkit.data.pairs import FeatureSource, Pairs
from sremkit.data.vocabulary import PAD
from sremkit.errors import DataError

WIDTH = 128
HEADS = 4
DROPOUT = 0.2
BATCH = 128
LEARNING_RATE = 2e-3
CLIP = 2.0
LOW = -1e9
SURE = 1e-6  # no word is guessed with more certainty than 1 - SURE
IMAGES_MEASURED = 1000  # for the mean and the spread of regions
AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class LocalView:
    """What a word witness looks at: regions of pictures, words of texts, and which text came with which picture."""

    regions: FeatureSource  # (r, d) of each image, or one vector
    slots: WordSlots
    image_of_text: np.ndarray  # (m,)

    def regions_of(self, images: np.ndarray) -> tuple[Tensor, Tensor]:
        """Regions (k, r, d) and which of them are absent, (k, r)."""
        values, mask = self.regions.rows(images)
        regions = torch.from_numpy(values if values.ndim == 3 else values[:, None])
        absent = torch.zeros(regions.shape[:2], dtype=torch.bool)
        return regions.float(), absent if mask is None else ~torch.from_numpy(mask)

    def fingerprint(self, images: np.ndarray) -> str:
        """Changes when a word or a region of these images changes."""
        digest = hashlib.sha256(self.slots.numbers.numpy().tobytes())
        for start in range(0, len(images), AT_ONCE):
            digest.update(self.regions.rows(images[start : start + AT_ONCE]).values.tobytes())
        return digest.hexdigest()


def look_at_words(
    pairs: Pairs, settings: JudgingSettings, regions: FeatureSource | None
) -> tuple[LocalView | None, str]:
    """What a word witness will look at, or None; and a sentence where it was asked for in vain."""
    if settings.word_epochs == 0:
        return None, ""
    seen = pairs.image_features if regions is None else regions
    if seen is None or len(seen) != pairs.num_images:
        raise DataError(
            f"single words are compared with the regions of {pairs.num_images} images, but there are those of "
            f"{0 if seen is None else len(seen)}; give features of every image"
        )
    slots = find_slots(pairs.texts)
    if slots is None:
        return None, "no two words of these texts could stand in each other's place, so words were not judged"
    return LocalView(seen, slots, np.asarray(pairs.image_of_text, dtype=np.int64)), ""


class WordGuesser(nn.Module):
    """Logits of every word of the vocabulary at every place of a text."""

    region_mean: Tensor
    region_spread: Tensor

    def __init__(self, vocab_size: int, region_mean: Tensor, region_spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("region_mean", region_mean)
        self.register_buffer("region_spread", region_spread)
        self.embed = nn.Embedding(vocab_size, WIDTH)
        self.before = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.after = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.context = nn.Linear(2 * WIDTH, WIDTH)
        self.see = nn.Sequential(*_two_layers(len(region_mean), WIDTH), nn.LayerNorm(WIDTH))
        self.ask = nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.think = nn.Sequential(nn.LayerNorm(WIDTH), *_two_layers(WIDTH, WIDTH))
        self.say = nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(DROPOUT), nn.Linear(WIDTH, vocab_size))

    def forward(self, regions: Tensor, absent: Tensor, numbers: Tensor) -> Tensor:
        seen = self.see((regions - self.region_mean) / self.region_spread)  # (b, r, d)
        context = self._context(numbers)  # (b, w, d)
        answer, _ = self.attend(self.ask(context), seen, seen, key_padding_mask=absent, need_weights=False)
        context = context + answer
        return self.say(context + self.think(context))  # (b, w, v)

    def _context(self, numbers: Tensor) -> Tensor:
        words = self.embed(numbers)
        lengths = (numbers != PAD).sum(dim=1, keepdim=True)
        places = torch.arange(numbers.shape[1], device=numbers.device)
        mirrored = (lengths - 1 - places).clamp_min(0)  # (b, w): a text from its end, without the padding
        mirrored = mirrored.unsqueeze(-1).expand_as(words)
        before = self.before(words)[0]
        after = self.after(words.gather(1, mirrored))[0].gather(1, mirrored)
        after = after.masked_fill((places >= lengths).unsqueeze(-1), 0.0)  # nothing comes after the end
        nothing = torch.zeros_like(before[:, :1])
        # Shifted by one, so that no place sees its own word.
        around = [torch.cat([nothing, before[:, :-1]], 1), torch.cat([after[:, 1:], nothing], 1)]
        return self.context(torch.cat(around, dim=2))


def _two_layers(width_in: int, width_out: int) -> list[nn.Module]:
    return [nn.Linear(width_in, 2 * WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(2 * WIDTH, width_out)]


@dataclass(frozen=True, eq=False)
class Spoken:
    """What the witness says of some pairs."""

    fit: (
        np.ndarray
    )  # (p,) sum over the slots of log P(word): low where they have nothing in common; NaN without a slot
    worst: np.ndarray  # (p,) -log sum over the slots of (1 - P) / P: low where a single word does not fit


@dataclass(frozen=True, eq=False)
class WordWitness:
    """A trained guesser of words."""

    guesser: WordGuesser
    view: LocalView

    @torch.no_grad()
    def hear(self, images: np.ndarray, numbers: Tensor) -> Spoken:
        """Of image `images[k]` with text `numbers[k]`, for every k."""
        if len(images) == 0:
            return Spoken(np.zeros(0), np.zeros(0))
        fits, worst = [], []
        for some in torch.arange(len(images)).split(AT_ONCE):
            log_p, is_slot = guessed(self.guesser, self.view, images[some.numpy()], numbers[some])
            p = log_p.exp().clamp(SURE, 1 - SURE)
            says_nothing = ~is_slot.any(dim=1)
            fits.append((log_p * is_slot).sum(dim=1).masked_fill(says_nothing, math.nan))
            worst.append(-torch.log(((1 - p) / p * is_slot).sum(dim=1) + SURE))
        return Spoken(torch.cat(fits).double().numpy(), torch.cat(worst).double().numpy())


def guessed(
    guesser: WordGuesser, view: LocalView, images: np.ndarray, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-probability of every word among its alternatives, and which words have any: (b, w) both."""
    log_own, _, is_slot = among_alternatives(guesser, view, images, numbers)
    return log_own, is_slot


def among_alternatives(
    guesser: WordGuesser, view: LocalView, images: np.ndarray, numbers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `guessed`, and between its two results the logits (b, w, v) of the alternatives, LOW for other words."""
    numbers = numbers[:, : int((numbers != PAD).sum(dim=1).max())]
    logits = guesser(*view.regions_of(images), numbers)
    own = logits.gather(2, numbers.unsqueeze(-1)).squeeze(-1)
    others = logits.masked_fill(~view.slots.alternatives[numbers], LOW)
    return own - torch.logaddexp(own, others.logsumexp(dim=2)), others, view.slots.is_slot[numbers]


def train_word_witness(
    view: LocalView,
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    on_step: Callable[[int, int], None] | None = None,
) -> WordWitness:
    """Learn from these pairs. The global generator is left as it was found."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # weights and dropout
        return _train(view, rows, settings.word_epochs, seed, on_step)


def _train(
    view: LocalView,
    rows: np.ndarray,
    epochs: int,
    seed: int,
    on_step: Callable[[int, int], None] | None,
) -> WordWitness:
    guesser = WordGuesser(view.slots.vocab_size, *_mean_and_spread(view, rows)).train()
    optimizer = torch.optim.AdamW(guesser.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    batch = min(BATCH, len(rows))
    steps, step = epochs * (len(rows) // batch), 0
    for epoch in range(epochs):
        for chosen in batch_order(len(rows), batch, seed=seed, epoch=epoch, shuffle=True, drop_last=True):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * rise_and_fall(step / steps)
            some = rows[chosen]
            numbers = view.slots.numbers[torch.from_numpy(some)]
            log_p, is_slot = guessed(guesser, view, view.image_of_text[some], numbers)
            loss = -(log_p * is_slot).sum() / is_slot.sum().clamp_min(1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(guesser.parameters(), CLIP)
            optimizer.step()
            step += 1
            if on_step is not None:
                on_step(step, steps)
    return WordWitness(guesser.eval(), view)


def _mean_and_spread(view: LocalView, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Of each number of a region; encoders give them in any units."""
    regions, absent = view.regions_of(np.unique(view.image_of_text[rows])[:IMAGES_MEASURED])
    present = regions[~absent]  # (k, d)
    return present.mean(dim=0), present.std(dim=0, correction=0).clamp_min(1e-6)

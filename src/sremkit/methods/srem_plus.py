"""SREM-plus: SREM's idea with a filter that remembers. Ours, not the paper's.

One batch is a noisy witness: whether a pair wins its row depends on whom it happens to meet. Many epochs are a
good one. So each pair's in-batch probability is remembered over the epochs, and a mixture of two normals over
all memories says how far each pair is believed:

    m_i <- decay m_i + (1 - decay) logit(p_i),  p_i the mean of P_ii over both directions
    belief_i = (probability that m_i belongs to the upper of the two heaps) ^ belief_power
    L = mean_i belief_i (CE_i i2t + CE_i t2i) / 2 + complementary_weight (L_c i2t + L_c t2i)

The warm-up is SREM's, complementary learning alone; or generalised cross-entropy, which is faster from scratch. At
its end the lower heap is compared with strangers (strangers.py): where its pairs fare better than those, nothing is
wrong with them, and every pair is believed from then on.

With `rematch_among` > 0, texts that are not believed look for their image before each epoch (rematching.py): where
one is found, the text comes with that image in this epoch, believed with `rematch_weight`. Only such texts take part:
an image that has its believed texts already may be found by more, and what is believed need not be scored again.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Pairing, Scorer, Surroundings
from sremkit.methods.mixture import fit_two_normals
from sremkit.methods.rematching import find_partners
from sremkit.methods.strangers import resemblance, strangers_of
from sremkit.methods.warming import Warming
from sremkit.objectives import Loss, complementary
from sremkit.objectives.candidates import distinct_images, keep_valid
from sremkit.objectives.generalized import check_power, generalized_cross_entropy


@METHODS.register("srem-plus")
class SREMPlus(Method):
    """SREM with a memory: pairs are believed by what many epochs saw of them, not by one batch.

    Args:
        decay: how much of a pair's memory stays when it is met again.
        temperature: divides the logits in every term.
        complementary_weight: of the complementary losses beside the believed pairs.
        sharpness: how strongly complementary labels prefer hard negatives.
        least_separation: below it the memories are one heap, and every pair is believed.
        least_resemblance: of the lower heap to strangers at the end of the warm-up; below it there are no wrong pairs,
            and every pair is believed ever after. 0 does not ask.
        belief_power: the mixture's probabilities are raised to it; above 1, who may be wrong is believed less.
        rematch_among: a text that is not believed is given the image that fits it best, if it is among so
            many of that image's best texts that are not believed; 0 leaves such texts alone. Where fewer texts
            than that are not believed, each of them takes its image.
        rematch_turns: texts look for their image every so many epochs, in turns, and keep what they found till then.
        rematch_weight: how far such a new pair is believed.
        warmup_power: warm up by generalised cross-entropy with this power, in the place of complementary learning.
        mask_repeated_images: two captions of one image in a batch are nobody's negatives.
    """

    def __init__(
        self,
        *,
        decay: float = 0.7,
        temperature: float = 1.0,
        complementary_weight: float = 0.3,
        sharpness: float = 0.0,
        least_separation: float = 1.5,
        least_resemblance: float = 0.2,
        belief_power: float = 1.0,
        rematch_among: int = 0,
        rematch_turns: int = 1,
        rematch_weight: float = 1.0,
        warmup_power: float | None = None,
        mask_repeated_images: bool = True,
    ) -> None:
        if warmup_power is not None:
            check_power(warmup_power)
        if rematch_turns < 1:
            raise ValueError(f"rematch_turns must be at least 1, every epoch; got {rematch_turns}")
        if least_resemblance < 0:
            raise ValueError(
                f"least_resemblance must be 0, which does not ask, or more; got {least_resemblance}"
            )
        if belief_power <= 0:
            raise ValueError(
                f"belief_power must be above 0, 1 for the mixture's own probability; got {belief_power}"
            )
        self.decay = decay
        self.temperature = temperature
        self.complementary_weight = complementary_weight
        self.sharpness = sharpness
        self.least_separation = least_separation
        self.least_resemblance = least_resemblance
        self.belief_power = belief_power
        self.rematch_among = rematch_among
        self.rematch_turns = rematch_turns
        self.rematch_weight = rematch_weight
        self.warmup_power = warmup_power
        self.mask_repeated_images = mask_repeated_images
        self.memory = torch.zeros(0)
        self.strangers = torch.zeros(0)  # remembered like pairs, during the warm-up
        self.resemblance = math.nan  # of the lower heap to strangers, as of the last epoch of the warm-up
        self.believes_all = False  # what the end of the warm-up said
        self.belief = torch.zeros(0)
        self.rematched = torch.zeros(0, dtype=torch.bool)
        self.image_of_text = torch.zeros(0, dtype=torch.int64)  # with which the texts come now
        self.pairing: Pairing | None = None
        self.warming = Warming()

    def start(self, surroundings: Surroundings) -> None:
        num_pairs, device = surroundings.num_pairs, surroundings.device
        self.memory = torch.full((num_pairs,), float("nan"), device=device)
        self.strangers = self.memory.clone()
        self.belief = torch.ones(num_pairs, device=device)
        self.rematched = torch.zeros(num_pairs, dtype=torch.bool, device=device)
        self.pairing = surroundings.pairing
        if self.pairing is not None:
            self.image_of_text = self.pairing.image_of_text

    def begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Let the texts that are not believed find their images."""
        if warmup:
            return
        self.warming.forget()
        self.strangers.fill_(float("nan"))
        if self.rematch_among == 0:
            return
        given, encode, give_images = self._pairing()
        lost = (self.belief < 0.5).cpu()
        self.image_of_text = torch.where(lost, self.image_of_text, given)
        has_its_turn = torch.arange(len(lost)) % self.rematch_turns == epoch % self.rematch_turns
        seeking = (lost & has_its_turn).nonzero().squeeze(1)
        if len(seeking):
            matcher, (images, texts) = encode(seeking)
            among = math.ceil(self.rematch_among / self.rematch_turns)  # of the texts that have their turn
            partners = find_partners(matcher, images, texts, among=among)
            self.image_of_text[seeking] = torch.where(partners.is_mutual, partners.image, given[seeking])
        self.rematched = (self.image_of_text != given).to(self.belief.device)
        give_images(self.image_of_text)

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        logits = matcher(batch).float() / self.temperature
        valid = distinct_images(batch.image_id) if self.mask_repeated_images else None
        rematched = self.rematched[batch.pair_id]
        seen = keep_valid(logits.detach(), valid)
        probability = (seen.softmax(1).diagonal() + seen.softmax(0).diagonal()) / 2
        self._remember(self.memory, probability, batch.pair_id, where=~rematched)
        nobody = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        directions = ((logits, valid), (logits.T, None if valid is None else valid.T))
        lc_i2t, lc_t2i = (
            complementary(f, nobody, sharpness=self.sharpness, offset=0.5, valid=v) for f, v in directions
        )
        if warmup:
            if self.least_resemblance > 0:
                probability, are_strangers = strangers_of(logits.detach(), valid)
                self._remember(self.strangers, probability, batch.pair_id, where=are_strangers)
            self.warming.see(logits, batch.image_id if self.mask_repeated_images else None)
            total = lc_i2t + lc_t2i
            if self.warmup_power is not None:
                i2t, t2i = (
                    generalized_cross_entropy(f, power=self.warmup_power, valid=v) for f, v in directions
                )
                total = (i2t + t2i).mean()
            return Loss(total, {"complementary_i2t": lc_i2t.detach(), "complementary_t2i": lc_t2i.detach()})
        given = torch.arange(len(logits), device=logits.device)
        ce = sum(F.cross_entropy(keep_valid(f, v), given, reduction="none") for f, v in directions) / 2
        belief = self.belief[batch.pair_id].masked_fill(rematched, self.rematch_weight)
        believed = (belief * ce).mean()
        total = believed + self.complementary_weight * (lc_i2t + lc_t2i)
        return Loss(
            total,
            {
                "believed": believed.detach(),
                "complementary_i2t": lc_i2t.detach(),
                "complementary_t2i": lc_t2i.detach(),
                "belief": belief.mean(),
            },
        )

    def finish_epoch(self) -> None:
        """Fit the mixture to what is remembered, and believe accordingly."""
        self.warming.finish_epoch()
        known = ~self.memory.isnan()
        memory = self.memory[known]
        if len(memory) < 100:
            return  # too few to tell two heaps apart
        mixture = fit_two_normals(memory.cpu())
        strangers = self.strangers[~self.strangers.isnan()].cpu()
        if len(strangers):  # there are some during the warm-up alone
            self.resemblance = resemblance(memory.cpu(), strangers, float(mixture.weight[0]))
            self.believes_all = self.resemblance < self.least_resemblance
        belief = torch.ones_like(self.belief)
        if not self.believes_all and mixture.separation >= self.least_separation:
            belief[known] = mixture.upper_probability(memory.cpu()).to(belief) ** self.belief_power
        self.belief = belief

    def warmed_up(self) -> bool:
        return self.warming.is_enough()

    def warmth(self) -> str:
        return self.warming.in_words()

    def found_out(self) -> str:
        if not self.believes_all:
            return ""
        return (
            "no wrong pairs found, so every pair is believed from now on: those that fare worst are to "
            f"{self.resemblance:.2f} like strangers, and {self.least_resemblance:g} (method.least_resemblance) is the "
            "least that counts"
        )

    def state_dict(self) -> dict[str, Tensor]:
        state = {"memory": self.memory, "belief": self.belief, **self.warming.state_dict()}
        state["believes_all"] = torch.tensor(self.believes_all)
        if not self.strangers.isnan().all():
            state["strangers"] = self.strangers
        if self.rematch_among > 0:
            state |= {"rematched": self.rematched, "image_of_text": self.image_of_text}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.memory = state["memory"].to(self.memory.device)
        self.belief = state["belief"].to(self.belief.device)
        self.strangers = state.get("strangers", torch.full_like(self.memory, float("nan"))).to(
            self.memory.device
        )
        self.believes_all = bool(state.get("believes_all", False))
        self.warming.load_state_dict(state)
        if self.rematch_among > 0:
            self.rematched = state["rematched"].to(self.rematched.device)
            self.image_of_text = state["image_of_text"].cpu()
            self._pairing().give_images(self.image_of_text)

    def _pairing(self) -> Pairing:
        if self.pairing is None:
            raise ValueError("re-matching gives texts other images; start the method with the pairing")
        return self.pairing

    def _remember(self, memory: Tensor, probability: Tensor, pair_id: Tensor, *, where: Tensor) -> None:
        """Remember what this batch says, where it says something."""
        seen = torch.logit(probability, eps=1e-6)
        before = memory[pair_id]
        now = torch.where(before.isnan(), seen, self.decay * before + (1 - self.decay) * seen)
        memory[pair_id] = torch.where(where, now, before)

"""The captions of one image are scored together: P(match) of each given all of them.

Matched captions of an image resemble each other. A caption that resembles none of the others probably mismatches, one
that resembles matched ones probably matches. For an image with c captions, let m_k be 1 where caption k matches:

    log P(m) = log(1 - gamma) + sum_k [m_k (a_k + log(1 - pi)) + (1 - m_k) log pi] + R(m)
    R(m)     = 2 / |m| sum over k < l with m_k = m_l = 1 of s_kl
    log P(w) = log gamma + (1 - c^(-4/5)) min(sum_k a_k, 0) + R(1)

a_k is the log-ratio of matched and mismatched pairs at the statistic of pair k (calibration.py), s_kl that of captions
of one image and of two images at the cosine of their vectors, fitted by logistic regression. R takes |m| captions as
|m| - 1 independent similarities. w: all captions are those of one other image, so they resemble each other and none
matches; how captions fit an image is not independent, so c of them count as c^(1/5). P(match) is the sum over all 2^c
states. pi and gamma are fitted by expectation maximization.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

MIN_IMAGES = 100  # with several captions; with fewer, captions are scored one by one
MIN_SHARE = 0.5  # of the pairs, in images with several captions; elsewhere a second caption may well be the mistake
MAX_TOGETHER = 8  # captions of an image; more are scored in groups
IMAGES_PER_CHUNK = 4096
BOUND = 1e-4  # P(match) is used between this and 1 - this
# Of s_kl. An unusual caption fits its image badly and resembles no other, which is one fact and not two.
MIN_RESEMBLANCE, MAX_RESEMBLANCE = -0.6, 4.0
WHOLE_IMAGE_POWER = 0.8
EM_STEPS = 12
RANDOM_PAIRS = 40_000  # of captions of two images
NEWTON_STEPS = 30
RIDGE = 1e-6
FIRST_WHOLE_IMAGE_RATE = 0.02
MIN_RATE, MAX_RATE = 1e-4, 0.95  # of pi and gamma


@dataclass(frozen=True, eq=False)
class JointPosterior:
    """P(match) of the captions of an image, given all of them."""

    text_mean: np.ndarray  # (e,) subtracted from text vectors
    slope: float  # s = slope cosine + intercept
    intercept: float
    base_rate: float  # with which the P(match) of single pairs was computed
    mismatch_rate: float  # pi, of single captions
    whole_image_rate: float  # gamma

    def match_prob(
        self, own: np.ndarray, texts: np.ndarray, image_of_text: np.ndarray, group_of_text: np.ndarray
    ) -> np.ndarray:
        """P(match) of m pairs.

        Args:
            own: (m,) P(match) of each pair alone.
            texts: (m, e); image_of_text: (m,).
            group_of_text: (m,) equal for equal texts, whose resemblance is no evidence.
        """
        return self._posterior(own, texts, image_of_text, group_of_text)[0]

    def _posterior(
        self, own: np.ndarray, texts: np.ndarray, image_of_text: np.ndarray, group_of_text: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """P(match), and the probability that all captions of the image are those of another one, both (m,)."""
        ratio = logit(own) - logit(np.array(1 - self.base_rate))  # a
        log_pi, log_match = np.log(self.mismatch_rate), np.log1p(-self.mismatch_rate)
        match, whole = 1 / (1 + np.exp(-(ratio + log_match - log_pi))), np.zeros(len(own))
        for rows in images_of_equal_size(image_of_text):  # (n, c)
            captions = rows.shape[1]
            a, s = ratio[rows], self.resemblance(texts, rows, group_of_text)
            states = np.array(list(product((0.0, 1.0), repeat=captions)))  # (2^c, c)
            matched = states.sum(axis=1)
            of_states = _pair_sums(s, states) * (2 / np.maximum(matched, 1))  # R
            prior = np.log1p(-self.whole_image_rate) + matched * log_match + (captions - matched) * log_pi
            log_states = a @ states.T + prior + of_states
            of_all = of_states[:, -1]  # the last state: all match
            log_whole = (
                np.log(self.whole_image_rate)
                + (1 - captions**-WHOLE_IMAGE_POWER) * np.minimum(a.sum(axis=1), 0)
                + of_all
            )
            highest = np.maximum(log_states.max(axis=1), log_whole)
            p_states, p_whole = np.exp(log_states - highest[:, None]), np.exp(log_whole - highest)
            total = p_states.sum(axis=1) + p_whole
            match[rows] = (p_states @ states) / total[:, None]
            whole[rows] = (p_whole / total)[:, None]
        return match, whole

    def resemblance(self, texts: np.ndarray, rows: np.ndarray, group_of_text: np.ndarray) -> np.ndarray:
        """s_kl among the captions of each image, (n, c, c); 0 on the diagonal and for equal texts."""
        unit = _unit(texts[rows] - self.text_mean)
        s = (unit @ unit.transpose(0, 2, 1) * self.slope + self.intercept).clip(MIN_RESEMBLANCE, MAX_RESEMBLANCE)
        group = group_of_text[rows]
        return np.where(group[:, :, None] == group[:, None, :], 0.0, s)


def fit_joint_posterior(
    own: np.ndarray,
    rate: float,
    texts: np.ndarray,
    image_of_text: np.ndarray,
    group_of_text: np.ndarray,
    *,
    seed: int,
) -> JointPosterior | None:
    """Fit to m pairs, arguments as for `JointPosterior.match_prob`; None where several captions an image are rare.

    Args:
        rate: of mismatches, with which `own` was computed.
    """
    blocks = list(images_of_equal_size(image_of_text))
    together = sum(rows.size for rows in blocks)
    if sum(len(rows) for rows in blocks) < MIN_IMAGES or together < MIN_SHARE * len(own):
        return None
    mean = texts.mean(axis=0, dtype=np.float64).astype(texts.dtype)
    cosines, weights = [], []
    for rows in blocks:
        unit = _unit(texts[rows] - mean)
        cosine = unit @ unit.transpose(0, 2, 1)
        group = group_of_text[rows]
        distinct = group[:, :, None] != group[:, None, :]
        both = own[rows][:, :, None] * own[rows][:, None, :]
        cosines.append(cosine[distinct])
        weights.append(both[distinct])
    of_one, weight = np.concatenate(cosines), np.concatenate(weights)
    rng = np.random.default_rng([seed, 5])
    first, second = rng.integers(len(texts), size=(2, RANDOM_PAIRS))
    other = image_of_text[first] != image_of_text[second]
    first, second = first[other], second[other]
    of_two = (_unit(texts[first] - mean) * _unit(texts[second] - mean)).sum(axis=1)
    if len(of_two) == 0 or weight.sum() < 1:
        return None
    slope, intercept = fit_log_ratio(of_one, weight, of_two)
    rate = float(np.clip(rate, 1e-3, 1 - 1e-3))
    fitted = JointPosterior(mean, max(slope, 0.0), intercept, rate, rate, FIRST_WHOLE_IMAGE_RATE)
    for _ in range(EM_STEPS):
        match, whole = fitted._posterior(own, texts, image_of_text, group_of_text)
        single = np.maximum((1 - whole).sum(), 1e-9)
        pi, gamma = ((1 - match - whole).sum() / single, whole.mean())
        pi, gamma = (float(np.clip(value, MIN_RATE, MAX_RATE)) for value in (pi, gamma))
        fitted = JointPosterior(fitted.text_mean, fitted.slope, fitted.intercept, rate, pi, gamma)
    return fitted


def fit_log_ratio(of_one: np.ndarray, weight: np.ndarray, of_two: np.ndarray) -> tuple[float, float]:
    """Logistic regression of "captions of one image?" on the cosine, both classes of equal weight: slope, intercept."""
    x = np.concatenate([of_one, of_two]).astype(np.float64)
    y = np.concatenate([np.ones(len(of_one)), np.zeros(len(of_two))])
    w = np.concatenate([weight / weight.sum(), np.full(len(of_two), 1 / len(of_two))])
    features, coefficients = np.stack([x, np.ones(len(x))], axis=1), np.zeros(2)
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-features @ coefficients))
        gradient = features.T @ (w * (y - p)) - RIDGE * coefficients
        hessian = (features * (w * p * (1 - p))[:, None]).T @ features + RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        coefficients += step * min(1.0, 10.0 / max(np.abs(step).max(), 1e-12))
    return float(coefficients[0]), float(coefficients[1])


def images_of_equal_size(image_of_text: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of the captions of images, (n, c), in chunks of images with equally many; those with one are left out.

    The captions of an image that has more than `MAX_TOGETHER` come in groups.
    """
    order = np.argsort(image_of_text, kind="stable")
    first = np.flatnonzero(np.diff(image_of_text[order], prepend=-1))
    count = np.diff(np.append(first, len(order)))
    groups = -(-count // MAX_TOGETHER)
    start = np.repeat(first, groups) + MAX_TOGETHER * _places(groups)
    size = np.minimum(MAX_TOGETHER, np.repeat(first + count, groups) - start)
    for captions in range(2, MAX_TOGETHER + 1):
        of_size = start[size == captions]
        for chunk in range(0, len(of_size), IMAGES_PER_CHUNK):
            yield order[of_size[chunk : chunk + IMAGES_PER_CHUNK, None] + np.arange(captions)]


def logit(probability: np.ndarray) -> np.ndarray:
    bounded = np.clip(probability, BOUND, 1 - BOUND)
    return np.log(bounded) - np.log1p(-bounded)


def _pair_sums(s: np.ndarray, states: np.ndarray) -> np.ndarray:
    """For each image the sum of s_kl over the pairs k < l that match in each state: (n, states)."""
    first, second = np.triu_indices(states.shape[1], 1)
    return s[:, first, second] @ (states[:, first] * states[:, second]).T


def _places(groups: np.ndarray) -> np.ndarray:
    """0, 1, ... within each run of this length."""
    return np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

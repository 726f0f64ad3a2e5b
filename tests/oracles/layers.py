"""Layers one vector at a time, from their formulas. `w` is a dictionary of named weights, nothing is padded.

An image is a tensor (regions, width) with its own number of regions, a caption a list of word numbers.
"""

from __future__ import annotations

import torch

EPS = 1e-8


def linear(w, name, x):
    y = w[f"{name}.weight"] @ x
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def l2(x):
    return x / (torch.sqrt((x * x).sum()) + EPS)


def cosine(x, y):
    product = torch.sqrt((x * x).sum()) * torch.sqrt((y * y).sum())
    return (x * y).sum() / torch.clamp(product, min=EPS)


def softmax(x):
    e = torch.exp(x - x.max())
    return e / e.sum()


def gru(w, name, xs, *, reverse=False):
    """States after each input, in the order of the inputs."""
    end = "_l0_reverse" if reverse else "_l0"
    w_ih, w_hh = w[f"{name}.weight_ih{end}"], w[f"{name}.weight_hh{end}"]
    b_ih, b_hh = w[f"{name}.bias_ih{end}"], w[f"{name}.bias_hh{end}"]
    return gru_with(w_ih, w_hh, b_ih, b_hh, xs, reverse=reverse)


def gru_with(w_ih, w_hh, b_ih, b_hh, xs, *, reverse=False, h=None):
    size = w_hh.shape[1]
    h = torch.zeros(size, dtype=w_hh.dtype) if h is None else h
    states = [None] * len(xs)
    for t in reversed(range(len(xs))) if reverse else range(len(xs)):
        i_r, i_z, i_n = (w_ih @ xs[t] + b_ih).split(size)
        h_r, h_z, h_n = (w_hh @ h + b_hh).split(size)
        r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
        n = torch.tanh(i_n + r * h_n)
        h = (1 - z) * n + z * h
        states[t] = h
    return states


def bidirectional_gru(w, name, xs):
    forward, backward = gru(w, name, xs), gru(w, name, xs, reverse=True)
    return [(f + b) / 2 for f, b in zip(forward, backward, strict=True)]


def region_vectors(w, image, name="regions"):
    return torch.stack([l2(linear(w, f"{name}.project", x)) for x in image])


def word_vectors(w, caption, name="words", *, unit=True):
    states = bidirectional_gru(w, f"{name}.gru", [w[f"{name}.embed.weight"][k] for k in caption])
    return torch.stack([l2(h) if unit else h for h in states])


def statistics(values):
    """Mean, biased and unbiased variance of a flat tensor."""
    mean = values.sum() / len(values)
    squares = ((values - mean) ** 2).sum()
    return mean, squares / len(values), squares / (len(values) - 1)


class BatchNorm:
    """Batch normalisation of one channel at a time; in training, running estimates move with momentum 0.1."""

    def __init__(self, w, name, *, training):
        self.weight, self.bias = w[f"{name}.weight"], w[f"{name}.bias"]
        self.running_mean = w[f"{name}.running_mean"].clone()
        self.running_var = w[f"{name}.running_var"].clone()
        self.training = training

    def __call__(self, channel, values):
        """Normalise all values (flat) of one channel together."""
        mean, var = self.running_mean[channel].clone(), self.running_var[channel].clone()
        if self.training:
            mean, var, unbiased = statistics(values)
            self.running_mean[channel] = 0.9 * self.running_mean[channel] + 0.1 * mean.detach()
            self.running_var[channel] = 0.9 * self.running_var[channel] + 0.1 * unbiased.detach()
        return (values - mean) / torch.sqrt(var + 1e-5) * self.weight[channel] + self.bias[channel]


def normed_vectors(norm, vectors):
    """Normalise each component over all vectors of a list of tensors (k_i, c)."""
    flat = torch.cat(vectors)
    columns = [norm(c, flat[:, c]) for c in range(flat.shape[1])]
    return list(torch.stack(columns, dim=1).split([len(v) for v in vectors]))


def logit_scale(w, similarity):
    return torch.exp(w["to_logit.log_scale"]) * similarity + w["to_logit.bias"]


def all_pairs(images, captions, compare):
    """Matrix of `compare(image, caption)` over all encoded images (rows) and captions (columns)."""
    return torch.stack([torch.stack([compare(v, t) for t in captions]) for v in images])

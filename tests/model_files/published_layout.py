"""Files of the layout of SGRAF's checkpoints, with random weights, and the similarity they stand for.

The similarity is computed from the published names, one image and one caption at a time.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WORD, IMAGE, EMBED, SIM, REGIONS = 40, 6, 10, 8, 5, 7
Encoders = list[dict[str, Tensor]]


def attention(norms: list[int]) -> nn.Module:
    """Layers under the published names; a batch normalisation follows each linear layer of images."""
    module = nn.Module()
    for name, size in zip(("embedding_local", "embedding_global"), norms or (0, 0), strict=True):
        layers = [nn.Linear(EMBED, EMBED), *([nn.BatchNorm1d(size)] if size else []), nn.Tanh(), nn.Dropout(0.4)]
        module.add_module(name, nn.Sequential(*layers))
    module.add_module("embedding_common", nn.Sequential(nn.Linear(EMBED, 1)))
    return module


def encoders(kind: str, *, seed: int = 0, num_steps: int = 3) -> Encoders:
    """Three state dicts, as the published `state_dict` returns them; nothing is left at zero or one."""
    images, texts, similarity = nn.Module(), nn.Module(), nn.Module()
    images.fc = nn.Linear(IMAGE, EMBED)
    texts.embed = nn.Embedding(VOCAB, WORD)
    texts.cap_rnn = nn.GRU(WORD, EMBED, 1, batch_first=True, bidirectional=True)
    similarity.v_global_w = attention([REGIONS, EMBED])
    similarity.t_global_w = attention([])
    similarity.sim_tranloc_w, similarity.sim_tranglo_w = nn.Linear(EMBED, SIM), nn.Linear(EMBED, SIM)
    similarity.sim_eval_w = nn.Linear(SIM, 1)
    if kind == "SGR":
        names = ("graph_query_w", "graph_key_w", "sim_graph_w")
        steps = [nn.ModuleDict({name: nn.Linear(SIM, SIM) for name in names}) for _ in range(num_steps)]
        similarity.SGR_module = nn.ModuleList(steps)
    else:
        similarity.SAF_module = nn.ModuleDict({"attn_sim_w": nn.Linear(SIM, 1), "bn": nn.BatchNorm1d(1)})
    g = torch.Generator().manual_seed(seed)
    state = [OrderedDict(part.state_dict()) for part in (images, texts, similarity)]
    for part in state:
        for name, tensor in part.items():
            if tensor.is_floating_point():
                drawn = 0.4 * torch.randn(tensor.shape, generator=g)
                part[name] = drawn.abs() + 0.5 if name.endswith("running_var") else drawn
    return state


@torch.no_grad()
def similarity_of(w: Encoders, kind: str, regions: Tensor, words: list[int]) -> float:
    """The similarity in (0, 1) of one image with `REGIONS` regions and one caption."""
    image, text, sim = w

    def linear(part: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        return x @ part[f"{name}.weight"].T + part[f"{name}.bias"]

    def normed(name: str, x: Tensor, dim: int) -> Tensor:
        shape = [1, 1]
        shape[dim] = -1
        mean, var, weight, bias = (
            sim[f"{name}.{k}"].view(shape) for k in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    def unit(x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    v = unit(linear(image, "fc", regions))  # (r, d)
    gru = nn.GRU(WORD, EMBED, batch_first=True, bidirectional=True)
    gru.load_state_dict({name.removeprefix("cap_rnn."): t for name, t in text.items() if name.startswith("cap_rnn")})
    states = gru(text["embed.weight"][words].unsqueeze(0))[0][0]
    t = unit((states[:, :EMBED] + states[:, EMBED:]) / 2)  # (w, d)

    local = torch.tanh(normed("v_global_w.embedding_local.1", linear(sim, "v_global_w.embedding_local.0", v), 0))
    mean = linear(sim, "v_global_w.embedding_global.0", v.mean(0, keepdim=True))
    mean = torch.tanh(normed("v_global_w.embedding_global.1", mean, 1))
    weights = linear(sim, "v_global_w.embedding_common.0", local * mean).softmax(0)
    v_global = unit((weights * v).sum(0))
    local = torch.tanh(linear(sim, "t_global_w.embedding_local.0", t))
    mean = torch.tanh(linear(sim, "t_global_w.embedding_global.0", t.mean(0)))
    weights = linear(sim, "t_global_w.embedding_common.0", local * mean).softmax(0)
    t_global = unit((weights * t).sum(0))

    scores = F.leaky_relu(v @ t.T, 0.1)  # (r, w)
    attended = unit((9.0 * unit(scores)).softmax(0).T @ v)  # (w, d)
    nodes = unit(linear(sim, "sim_tranloc_w", (attended - t) ** 2))
    nodes = torch.cat([unit(linear(sim, "sim_tranglo_w", (v_global - t_global) ** 2)).unsqueeze(0), nodes])
    if kind == "SGR":
        for step in range(sum(name.endswith("graph_key_w.bias") for name in sim)):
            q, k = (linear(sim, f"SGR_module.{step}.graph_{x}_w", nodes) for x in ("query", "key"))
            nodes = linear(sim, f"SGR_module.{step}.sim_graph_w", (q @ k.T).softmax(-1) @ nodes).relu()
        vector = nodes[0]
    else:
        gate = normed("SAF_module.bn", linear(sim, "SAF_module.attn_sim_w", nodes), 1).sigmoid()
        vector = unit((gate / gate.sum() * nodes).sum(0))
    return float(linear(sim, "sim_eval_w", vector).sigmoid())

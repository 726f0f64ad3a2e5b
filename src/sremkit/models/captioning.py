"""A captioner that must tell the text from the regions: VSRN's second loss.

A GRU reads the regions; a second one writes the caption, at each word attending to what the first one read.
The loss is the negative log-likelihood of the given words, summed over the caption, mean over the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.models.dropout import Dropout
from sremkit.models.gru import run_gru
from sremkit.models.similarity import full_precision, without_autocast

_NOBODY_ASKS = -100  # in the place of a word


class Captioner(nn.Module):
    """Writes captions from region vectors.

    Args:
        region_dim: width of a region vector.
        max_words: later words of a caption are not asked for.
    """

    def __init__(
        self,
        vocab_size: int,
        region_dim: int,
        *,
        hidden_size: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        max_words: int = 60,
    ) -> None:
        super().__init__()
        self.max_words = max_words
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(region_dim, hidden_size)
        nn.init.xavier_normal_(self.project.weight)
        self.reader = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.attend = nn.Linear(2 * hidden_size, hidden_size)
        self.attend_score = nn.Linear(hidden_size, 1, bias=False)
        self.writer = nn.GRUCell(hidden_size + word_dim, hidden_size)
        self.output = nn.Linear(hidden_size, vocab_size)
        nn.init.xavier_normal_(self.output.weight)

    def forward(self, regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor) -> Tensor:
        """Loss of writing each caption, from its second word on, given the words before.

        Args:
            regions: (b, r, d)
            words: (b, w), first word the start mark, last the end mark.
        """
        words, word_mask = words[:, : self.max_words], word_mask[:, : self.max_words]
        with without_autocast(regions):
            hidden = self._write(full_precision(regions), region_mask, words[:, :-1])  # (b, w - 1, h)
            # Absent words too, and then not counted: for the number of present ones the host would have to wait.
            right = words[:, 1:].masked_fill(~word_mask[:, 1:], _NOBODY_ASKS)
            scores = self.output(hidden).flatten(0, 1)  # (b · (w - 1), vocab)
            total = F.cross_entropy(scores, right.flatten(), reduction="sum", ignore_index=_NOBODY_ASKS)
            return total / len(words)

    def _write(self, regions: Tensor, region_mask: Tensor, given: Tensor) -> Tensor:
        """Hidden states after each given word: (b, w - 1, h)."""
        read, state = run_gru(
            self.reader, self.dropout(self.project(regions)), region_mask
        )  # (b, r, h), (b, h)
        h = state.shape[1]
        from_read = F.linear(read, self.attend.weight[:, :h], self.attend.bias)  # (b, r, h)
        given_vectors = self.embed(given)  # (b, w - 1, e)
        states = []
        for word in given_vectors.unbind(dim=1):
            from_state = F.linear(state, self.attend.weight[:, h:]).unsqueeze(1)  # (b, 1, h)
            scores = self.attend_score(torch.tanh(from_read + from_state)).squeeze(-1)  # (b, r)
            weights = scores.masked_fill(~region_mask, torch.finfo(scores.dtype).min).softmax(dim=1)
            seen = (weights.unsqueeze(1) @ read).squeeze(1)  # (b, h)
            state = self.writer(self.dropout(torch.cat([word, seen], dim=1)), state)
            states.append(state)
        return torch.stack(states, dim=1) if states else read.new_zeros(len(read), 0, h)

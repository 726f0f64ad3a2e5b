"""Captions one after the other, and back."""

from __future__ import annotations

import torch

from sremkit.kernels.packing import pack, packed, padded

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


def test_the_rows_of_a_small_packing_by_hand() -> None:
    packing = pack(MASK)
    # Captions of 2, 1 and 3 words: words 0-1, 2 and 3-5; as nodes they come after the 3 global ones.
    assert packing.starts.tolist() == [0, 2, 3, 6]
    assert packing.places.tolist() == [0, 1, 3, 6, 7, 8]
    assert packing.text_of_word.tolist() == [0, 0, 1, 2, 2, 2]
    assert (packing.num_texts, packing.num_words, packing.longest) == (3, 6, 3)
    assert packing.node_mask().sum(dim=1).tolist() == [3, 2, 4]
    assert packing.node_rows().tolist() == [[0, 3, 4, 0], [1, 5, 1, 1], [2, 6, 7, 8]]


def test_padding_and_packing_undo_each_other() -> None:
    packing = pack(MASK)
    nodes = torch.arange(2.0 * 9 * 2).view(2, 9, 2)
    wide = padded(nodes, packing)
    assert wide.shape == (2, 3, 4, 2)
    assert (wide[:, ~packing.node_mask()] == 0).all()
    assert torch.equal(packed(wide, packing), nodes)


def test_a_caption_without_words_keeps_its_global_node() -> None:
    packing = pack(torch.tensor([[False, False], [True, True]]))
    nodes = torch.arange(1.0, 5.0).view(1, 4, 1)  # global nodes 1 and 2, words 3 and 4
    assert padded(nodes, packing).squeeze(-1).tolist() == [[[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]]]

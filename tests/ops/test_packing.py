"""Packed captions, and their inverse."""

from __future__ import annotations

import torch

from sremkit.ops.packing import pack, pack_nodes, pack_words, pad_nodes, pad_words

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


def test_the_rows_of_a_small_packing_by_hand() -> None:
    packing = pack(MASK)
    # Captions of 2, 1 and 3 words: words 0-1, 2 and 3-5; as nodes they come after the 3 global ones.
    assert packing.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert packing.indices.tolist() == [0, 1, 3, 6, 7, 8]
    positions, present = packing.padded_positions()
    assert positions.tolist() == [0, 1, 3, 6, 7, 8]
    assert present.all()
    assert (packing.num_texts, packing.num_words, packing.max_seqlen) == (3, 6, 3)
    assert packing.node_mask().sum(dim=1).tolist() == [3, 2, 4]
    assert packing.node_rows().tolist() == [[0, 3, 4, 0], [1, 5, 1, 1], [2, 6, 7, 8]]


def test_padding_and_packing_undo_each_other() -> None:
    packing = pack(MASK)
    nodes = torch.arange(2.0 * 9 * 2).view(2, 9, 2)
    wide = pad_nodes(nodes, packing)
    assert wide.shape == (2, 3, 4, 2)
    assert (wide[:, ~packing.node_mask()] == 0).all()
    assert torch.equal(pack_nodes(wide, packing), nodes)


def test_a_caption_without_words_keeps_its_global_node() -> None:
    packing = pack(torch.tensor([[False, False], [True, True]]))
    nodes = torch.arange(1.0, 5.0).view(1, 4, 1)  # global nodes 1 and 2, words 3 and 4
    assert pad_nodes(nodes, packing).squeeze(-1).tolist() == [[[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]]]


def test_packed_words_are_padded_by_caption() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    for max_total in (None, 6, 8):  # words 0 1 | 2 | 3 4 5, and spare rows
        packing = pack(mask, max_total=max_total)
        found, present = pad_words(torch.arange(8.0).unsqueeze(0), packing), packing.word_mask()
        assert torch.equal(present, mask)
        assert found.masked_fill(~mask, -1).tolist() == [[[0, 1, -1], [2, -1, -1], [3, 4, 5]]]


def test_words_with_gaps_between_them_are_packed_and_found_again() -> None:
    mask = torch.tensor([[False, True, True], [True, False, True]])
    for max_total in (None, 4, 6):
        packing = pack(mask, max_total=max_total)
        assert packing.indices[:4].tolist() == [1, 2, 3, 5]
        found, present = pad_words(torch.arange(8.0).unsqueeze(0), packing), packing.word_mask()
        assert [row[:2] for row in found[0].tolist()] == [[0, 1], [2, 3]]
        assert present.sum(dim=1).tolist() == [2, 2]


def test_packed_words_with_spare_rows_are_padded_and_packed_again() -> None:
    packing = pack(MASK, max_total=8)  # six words and two spare rows
    words = torch.arange(1.0, 9.0).view(1, 8)
    again = pack_words(pad_words(words, packing), packing)
    assert again.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]]

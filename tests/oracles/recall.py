"""Recall by loops: sort every query's candidates by hand, wrong ones first where scores tie."""

from __future__ import annotations


def ranks_i2t(scores: list[list[float]], image_of_text: list[int]) -> list[int]:
    ranks = []
    for i, row in enumerate(scores):
        own = [j for j, image in enumerate(image_of_text) if image == i]
        if not own:
            continue
        # Sorted by falling score; at equal scores the wrong text (False) comes before the right one (True).
        order = sorted(range(len(row)), key=lambda j: (-row[j], j in own))
        wrong_before = 0
        for j in order:
            if j in own:
                break
            wrong_before += 1
        ranks.append(wrong_before)
    return ranks


def ranks_t2i(scores: list[list[float]], image_of_text: list[int]) -> list[int]:
    ranks = []
    for j, image in enumerate(image_of_text):
        order = sorted(range(len(scores)), key=lambda i: (-scores[i][j], i == image))
        ranks.append(order.index(image))
    return ranks


def recall(scores: list[list[float]], image_of_text: list[int], ks: tuple[int, ...] = (1, 5, 10)) -> dict:
    result = {}
    for direction, ranks in (
        ("i2t", ranks_i2t(scores, image_of_text)),
        ("t2i", ranks_t2i(scores, image_of_text)),
    ):
        for k in ks:
            hits = 0
            for rank in ranks:
                if rank + 1 <= k:
                    hits += 1
            result[f"{direction}/R@{k}"] = hits * 100.0 / len(ranks)
        ordered = sorted(ranks)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        result[f"{direction}/median_rank"] = int(middle) + 1
    result["rsum"] = 0.0
    for direction in ("i2t", "t2i"):
        for k in ks:
            result["rsum"] += result[f"{direction}/R@{k}"]
    return result

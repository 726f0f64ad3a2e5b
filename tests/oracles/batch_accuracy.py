"""In-batch accuracy by loops: the share of queries whose given candidate scores higher than every other one."""

from __future__ import annotations


def batch_accuracy(scores: list[list[float]], image_ids: list[int] | None = None) -> tuple[float, float]:
    """The accuracy with images and texts as queries, and that of random scores.

    Pairs of the same image are not each other's candidates.
    """
    size = len(scores)
    first = 0
    by_chance = 0.0
    for transposed in (False, True):
        for query in range(size):
            others = []
            for other in range(size):
                same_image = image_ids is not None and image_ids[other] == image_ids[query]
                if other != query and not same_image:
                    others.append(scores[other][query] if transposed else scores[query][other])
            if all(scores[query][query] > other for other in others):
                first += 1
            by_chance += 1 / (1 + len(others))
    return first / (2 * size), by_chance / (2 * size)

"""Who wins a batch, by loops: the share of queries whose given candidate beats every other one."""

from __future__ import annotations


def winning(scores: list[list[float]], image_ids: list[int] | None = None) -> tuple[float, float]:
    """The share that wins, images and texts as queries, and the share that guessing would win.

    Another pair of the same image is nobody's candidate.
    """
    size = len(scores)
    wins = 0
    guessed = 0.0
    for turned in (False, True):
        for query in range(size):
            others = []
            for other in range(size):
                same_image = image_ids is not None and image_ids[other] == image_ids[query]
                if other != query and not same_image:
                    others.append(scores[other][query] if turned else scores[query][other])
            if all(scores[query][query] > other for other in others):
                wins += 1
            guessed += 1 / (1 + len(others))
    return wins / (2 * size), guessed / (2 * size)

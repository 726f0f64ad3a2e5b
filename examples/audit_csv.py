"""Find the wrong pairs of a CSV file in three lines.

Writes 150 generated images with a CSV file of captions, of which 30 % are shuffled, and audits it. The column
`shuffled` is the truth; the audit returns it with all other columns, but does not use it.

    python examples/audit_csv.py
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

import sremkit
from sremkit.data.generated.scenes.collection import SceneImages

NUM_IMAGES, SHUFFLED = 150, 0.3


def write_pairs(folder: Path) -> Path:
    """Write two captions per image; those of some rows are exchanged."""
    scenes, rng = SceneImages(NUM_IMAGES), random.Random(0)
    rows = []
    for k in range(NUM_IMAGES):
        scenes.open(k).save(folder / f"{k}.png")
        rows += [[f"{k}.png", caption.text, "no"] for caption in scenes.captions(k)[:2]]
    chosen = rng.sample(range(len(rows)), round(SHUFFLED * len(rows)))
    captions = [rows[k][1] for k in chosen]
    for k, caption in zip(chosen, [*captions[1:], captions[0]], strict=True):
        rows[k][1:] = [caption, "yes"]
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["image", "caption", "shuffled"], *rows])
    return folder / "pairs.csv"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pairs = write_pairs(Path(folder))

        audit = sremkit.Audit.from_csv(pairs)
        audit.find(Path(folder) / "audit", fraction=0.15)
        report = audit.report()

        found = audit.get_issues(mismatches_only=True)
        right = found["shuffled"].to_pylist().count("yes")
        rate = audit.summary["noise_rate"]
        print(f"{report.name} has {report.stat().st_size / 1e6:.1f} MB")
        print(f"estimated {100 * rate['estimate']:.0f}% wrong; true {100 * SHUFFLED:.0f}%")
        print(f"of the {len(found)} worst pairs, {100 * right / len(found):.0f}% are wrong")
        print(f"worst: {found['image'][0]} with '{found['text'][0]}', better: '{found['better_text'][0]}'")


if __name__ == "__main__":
    main()

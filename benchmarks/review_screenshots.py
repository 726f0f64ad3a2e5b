"""Screenshots of `srem review` in README and docs: generated scenes, audited, and reviewed in Chromium by keyboard.

    python -m benchmarks.review_screenshots          # writes docs/images/review.png and review.gif

Needs the packages playwright and Pillow, and Chromium.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.commands import make_parser, run_command
from sremkit.data.generated.scenes import mismatched_scenes
from sremkit.data.generated.scenes.collection import SceneImages
from sremkit.data.generated.scenes.scene import draw_scene
from sremkit.errors import UserError

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIDE = 480  # pixels of a scene
WIDTH, HEIGHT = 1180, 760  # of the page
GIF_WIDTH = 720
COLORS = 128  # of the animation
KEYS = ("", "d", "d", "a", "k", "u", "d", "g")  # a screenshot after each
MILLISECONDS = [1500, 1000, 1000, 1000, 1000, 1200, 800, 2500]  # that it is shown


def draw(arguments: Any) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise UserError("no chromium on this machine; install the package 'chromium'")
    with tempfile.TemporaryDirectory() as folder:
        audit = make_audit(Path(folder), arguments.scenes)
        with review(audit) as address:
            frames = photograph(chromium, address)
    frames[3].save(IMAGES / "review.png", optimize=True)
    height = round(GIF_WIDTH * HEIGHT / WIDTH)
    small = [frame.resize((GIF_WIDTH, height), Image.Resampling.LANCZOS) for frame in frames]
    together = Image.new("RGB", (GIF_WIDTH, height * len(small)))  # for one palette of all frames
    for number, frame in enumerate(small):
        together.paste(frame, (0, number * height))
    palette = together.quantize(COLORS)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small)
    first.save(IMAGES / "review.gif", save_all=True, append_images=others, duration=MILLISECONDS, loop=0, optimize=True)


def make_audit(folder: Path, num_scenes: int) -> Path:
    """Audit one caption of each scene, of which 30 % are exchanged."""
    pairs, _ = mismatched_scenes(num_scenes, rate=0.3)
    scenes = SceneImages(num_scenes)
    (folder / "images").mkdir()
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "caption"])
        for k, image in enumerate(pairs.image_of_text.tolist()):
            path = folder / "images" / f"{image}.png"
            if not path.exists():
                draw_scene(scenes.scene(image), SIDE).save(path)
            writer.writerow([f"images/{image}.png", pairs.texts[k]])
    columns = ["--image", "path", "--text", "caption"]
    command = [sys.executable, "-m", "sremkit", "audit", "pairs.csv", *columns, "-o", "mine"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "mine"


@contextmanager
def review(audit: Path) -> Iterator[str]:
    """The address of `srem review`."""
    command = [sys.executable, "-m", "sremkit", "review", str(audit), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
        finally:
            server.terminate()


def photograph(chromium: str, address: str) -> list[Image.Image]:
    """The page before and after each key of `KEYS`."""
    from playwright.sync_api import sync_playwright

    frames = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        for key in KEYS:
            if key:
                page.keyboard.press(key)
            page.wait_for_timeout(1500)  # for the images
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        browser.close()
    return frames


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("review_screenshots", __doc__)
    parser.add_argument("--scenes", type=int, default=500, help="with five captions each")
    return run_command(parser, draw, arguments)


if __name__ == "__main__":
    raise SystemExit(main())

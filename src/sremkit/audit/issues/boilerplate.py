"""Captions that were not written for their image: file names, web addresses, error messages, templates.

Rules look at one caption. A template is found by its frequency: a caption that is equal, but for digits, on many
images; or a text of several words that begins or ends many captions.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from sremkit.audit.scoring.near_duplicates import plain_caption

FILE_NAME, ADDRESS, NO_WORDS, PLACEHOLDER = "file name", "web address", "no words", "placeholder or error message"
REPEATED, TEMPLATE = "repeated caption", "template"

MIN_REPEATS = 20  # images with an equal caption, at least, ...
MIN_REPEATED_FRACTION = 0.005  # ... and this fraction of all images
MIN_TEMPLATE_WORDS = 5  # that begin or end a caption
MIN_TEMPLATE_FRACTION = 0.02  # of all images
MIN_TEMPLATE_SHARE = 0.6  # of the words of the captions that have the template, on average

_FILE = re.compile(r"\S*\.(jpe?g|png|gif|webp|avif|bmp|tiff?|heic|raw|cr2|nef|svg|pdf|psd|mp4)", re.I)
_CAMERA = re.compile(r"(img|dsc[fn]?|dcim|p|pict|image|photo|screenshot|scan|untitled)[ _-]*\(?\d[\d _()-]*", re.I)
_ADDRESS = re.compile(r"(https?://|www\.)\S+", re.I)
_IMAGE = r"(image|photo|photograph|pict(ure)?|thumbnail|logo|icon|banner)"
_TEXT = r"(caption|description|title|text|name|alt|alt text)"
_PLACEHOLDERS = re.compile(
    rf"(error )?(40[0134]|50[0-4])( error| forbidden| (page )?not found)?|(page|file|item|product|{_IMAGE}) not found|"
    rf"(no|missing) ({_IMAGE}|{_TEXT})( available| found| provided)?|"
    rf"({_IMAGE}|{_TEXT})( is)? (not |un|no longer )available|{_IMAGE} (coming soon|placeholder)|placeholder|"
    r"access denied|forbidden|internal server error|n a|none|null|nan|undefined|unknown|untitled|test|todo|tbd|"
    rf"{_IMAGE}|{_TEXT}|click here|read more|loading|lorem ipsum.*"
)


def find_boilerplate(texts: Sequence[str], image_of_text: np.ndarray) -> list[str | None]:
    """For each caption the kind of boilerplate that it is, or None."""
    plain = [plain_caption(text) for text in texts]
    found = [_single(text, words) for text, words in zip(texts, plain, strict=True)]
    # Digits aside: "order 1234" and "order 99" are one template.
    skeletons = [re.sub(r"\d+", "0", words) for words in plain]
    num_images = len(np.unique(image_of_text))
    images = _images_of(skeletons, image_of_text)
    min_images = max(MIN_REPEATS, MIN_REPEATED_FRACTION * num_images)
    repeated = {skeleton for skeleton, of in images.items() if len(of) >= min_images}
    template = _templates(skeletons, image_of_text, max(MIN_REPEATS, MIN_TEMPLATE_FRACTION * num_images), repeated)
    for k, skeleton in enumerate(skeletons):
        if found[k] is None and skeleton in repeated:
            found[k] = REPEATED
        elif found[k] is None and skeleton in template:
            found[k] = TEMPLATE
    return found


def _single(text: str, plain: str) -> str | None:
    """The kind of boilerplate that a caption is whatever the others are."""
    stripped = text.strip()
    if _ADDRESS.fullmatch(stripped):
        return ADDRESS
    if _FILE.fullmatch(stripped) or _CAMERA.fullmatch(stripped):
        return FILE_NAME
    if _PLACEHOLDERS.fullmatch(plain):
        return PLACEHOLDER
    return None if any(character.isalpha() for character in text) else NO_WORDS


def _images_of(keys: Sequence[str], image_of_text: np.ndarray) -> dict[str, set[int]]:
    images: dict[str, set[int]] = defaultdict(set)
    for key, image in zip(keys, image_of_text.tolist(), strict=True):
        images[key].add(image)
    return images


def _templates(skeletons: Sequence[str], image_of_text: np.ndarray, min_images: float, repeated: set[str]) -> set[str]:
    """Captions that consist mostly of words which begin or end the captions of many images."""
    distinct = [skeleton for skeleton in dict.fromkeys(skeletons) if skeleton not in repeated]
    words = {skeleton: skeleton.split() for skeleton in distinct}
    images = _images_of(skeletons, image_of_text)
    fixed: Counter[str] = Counter()  # words of each caption that belong to a template
    for end in (slice(None, None, 1), slice(None, None, -1)):
        for skeleton, count in _shared_beginnings({s: w[end] for s, w in words.items()}, images, min_images).items():
            fixed[skeleton] += count
    return {skeleton for skeleton, count in fixed.items() if count >= MIN_TEMPLATE_SHARE * len(words[skeleton])}


def _shared_beginnings(words: dict[str, list[str]], images: dict[str, set[int]], min_images: float) -> dict[str, int]:
    """The number of words at the beginning of each caption that as many images' captions share; 0 are left out."""
    shared: dict[str, int] = {}
    active, length = list(words), MIN_TEMPLATE_WORDS
    while active:
        members: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for skeleton in active:
            if len(words[skeleton]) >= length:
                members[tuple(words[skeleton][:length])].append(skeleton)
        active = []
        for group in members.values():
            if sum(len(images[skeleton]) for skeleton in group) >= min_images:
                active += group
                shared.update(dict.fromkeys(group, length))
        length += 1
    return shared

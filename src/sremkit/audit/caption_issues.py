"""Issues of captions: boilerplate, other languages, one caption on many images, conflicts, repeated rows.

Boilerplate was not written for its image: file names, web addresses, error messages, templates. Rules look at one
caption. A template is found by its frequency: a caption that is equal, but for digits, on many images; or a text of
several words that begins or ends many captions.

The script of a caption is that of most of its letters. Among captions in Latin letters the language is decided by
function words; a caption with few of them is left alone, because names and single nouns exist in every language.

Images of one caption may resemble each other, as those of "a dog runs through the grass" do. They are unrelated if
their mean cosine, from the mean of all images, is about that of random images.

Of near-duplicate images with conflicting captions at least one caption is wrong. Two captions conflict if the cosine of
their vectors is that of captions of different images. A pair is reported if its caption conflicts with every caption of
the other images in its group of near-duplicates.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np

from sremkit.audit.scoring.near_duplicates import plain_caption
from sremkit.data.pairs import MISSING

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

MIN_MAIN_FRACTION = 0.7  # of the captions with a script, or a language, that have the same: else there is no "rest"
MIN_FUNCTION_WORDS = 2  # of the other language, with none of the main one

#: Words that occur in most sentences of a language and in no other of this list.
FUNCTION_WORDS = {
    "English": "the is are and with of on an his her their from which while that this its near through over",
    "German": "der die das und ist ein eine einen einem einer mit auf dem den im zum zur vor von für sich nicht auch",
    "French": "le les des une est dans avec sur pour qui et du aux ses sont devant très cette dans",
    "Spanish": "el los las una con por y es está están del sobre su unos unas muy hacia junto mientras",
    "Italian": "il gli di che è sono con della del nella sul sulla una uno mentre vicino accanto",
    "Portuguese": "os uma com um em não do da no na são está ao às pela pelo dois enquanto",
    "Dutch": "het een en op van met voor zijn naar bij aan zich niet ook deze terwijl naast",
    "Polish": "jest na w z się i do przez przy obok który nie są po",
    "Swedish": "och en ett på med av är som till för sig inte bredvid det",
    "Turkish": "ve bir ile için olan bu da yanında üzerinde",
}

MIN_UNRELATED = 5  # images; near-duplicates count once
MAX_MEAN_COSINE = 0.06  # of unrelated images; 0 for random ones
CONFLICT_QUANTILE = 0.9  # of the cosines of random captions, below which two captions conflict
NUM_RANDOM_PAIRS = 20_000


def find_boilerplate(texts: Sequence[str], image_of_text: np.ndarray) -> list[str | None]:
    """For each caption the kind of boilerplate that it is, or None."""
    plain = [plain_caption(text) for text in texts]
    found = [_kind_of_one(text, words) for text, words in zip(texts, plain, strict=True)]
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


def _kind_of_one(text: str, plain: str) -> str | None:
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


def find_other_language(texts: Sequence[str]) -> list[str | None]:
    """For each caption its script or language if most of the others have another one, else None."""
    scripts = [script_of(text) for text in texts]
    main_script = _main_kind(scripts)
    found: list[str | None] = [
        script if main_script is not None and script not in (None, main_script) else None for script in scripts
    ]
    latin = [k for k, script in enumerate(scripts) if script == "Latin"]
    counts = {k: count_function_words(texts[k]) for k in latin}
    main = _main_kind([counts[k].most_common(1)[0][0] if counts[k] else None for k in latin])
    for k, count in counts.items():
        if main is None or found[k] is not None or not count or count[main]:
            continue
        language, times = count.most_common(1)[0]
        if times >= MIN_FUNCTION_WORDS:
            found[k] = language
    return found


def script_of(text: str) -> str | None:
    """The script of most letters, such as "Latin" or "Cyrillic"; None without letters."""
    scripts = Counter(_script_of_letter(character) for character in text if character.isalpha())
    return scripts.most_common(1)[0][0] if scripts else None


def count_function_words(text: str) -> Counter[str]:
    """How many distinct function words of each language a caption has."""
    words = set(plain_caption(text).split())
    counts = Counter({language: len(words & known) for language, known in _function_words().items()})
    return +counts  # without zeros


@cache
def _function_words() -> dict[str, frozenset[str]]:
    """The function words of each language that no other one has."""
    lists = {language: set(words.split()) for language, words in FUNCTION_WORDS.items()}
    times = Counter(word for words in lists.values() for word in words)
    return {language: frozenset(word for word in words if times[word] == 1) for language, words in lists.items()}


@cache
def _script_of_letter(character: str) -> str:
    name = unicodedata.name(character, "UNKNOWN").split()[0]
    return {"CJK": "Han", "HIRAGANA": "Japanese", "KATAKANA": "Japanese"}.get(name, name.capitalize())


def _main_kind(kinds: Sequence[str | None]) -> str | None:
    """The kind of most captions that have one, if they are clearly most."""
    counts = Counter(kind for kind in kinds if kind is not None)
    if not counts:
        return None
    kind, times = counts.most_common(1)[0]
    return kind if times >= MIN_MAIN_FRACTION * counts.total() else None


def count_unrelated_images(
    caption_group: np.ndarray, image_group: np.ndarray, image_of_text: np.ndarray, vectors: np.ndarray
) -> np.ndarray:
    """For each pair the number of unrelated images with its caption, (m,) int64; MISSING where they are few or alike.

    Args:
        caption_group: (m,) int64, equal for equal captions, or MISSING.
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
        vectors: (n, d) of the images.
    """
    found = np.full(len(caption_group), MISSING, dtype=np.int64)
    rows = np.flatnonzero(caption_group != MISSING)
    if len(rows) == 0:
        return found
    center = np.asarray(vectors, dtype=np.float32).mean(axis=0)
    rows = rows[np.argsort(caption_group[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(caption_group[rows])) + 1):
        # A near-duplicate has the number of its group, another image a negative one.
        image = image_of_text[members]
        group = np.where(image_group[members] == MISSING, -1 - image, image_group[members])
        _, first = np.unique(group, return_index=True)
        if len(first) >= MIN_UNRELATED and _mean_cosine(vectors[image[first]] - center) <= MAX_MEAN_COSINE:
            found[members] = len(first)
    return found


def _mean_cosine(vectors: np.ndarray) -> float:
    """The mean cosine of all pairs of different rows, in time linear in their number."""
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(norm, 1e-12)
    k = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (k * (k - 1)))


def find_conflicts(image_group: np.ndarray, image_of_text: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Which pairs have a caption that conflicts with those of near-duplicate images, (m,) bool.

    Args:
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
        vectors: (m, e) of the captions.
    """
    conflicts = np.zeros(len(image_group), dtype=bool)
    rows = np.flatnonzero(image_group != MISSING)
    if len(rows) == 0:
        return conflicts
    unit = np.asarray(vectors, dtype=np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    least = _random_cosine(unit, image_of_text)
    rows = rows[np.argsort(image_group[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(image_group[rows])) + 1):
        cosine = unit[members] @ unit[members].T
        other = image_of_text[members][:, None] != image_of_text[members]
        nearest = np.where(other, cosine, -np.inf).max(axis=1)
        conflicts[members] = other.any(axis=1) & (nearest < least)
    return conflicts


def _random_cosine(unit: np.ndarray, image_of_text: np.ndarray) -> float:
    """The quantile of the cosines of random captions of different images."""
    a, b = np.random.default_rng(0).integers(len(unit), size=(2, NUM_RANDOM_PAIRS))
    different = image_of_text[a] != image_of_text[b]
    cosine = np.einsum("ke,ke->k", unit[a[different]], unit[b[different]])
    return float(np.quantile(cosine, CONFLICT_QUANTILE)) if len(cosine) else -np.inf


def find_duplicate_rows(
    pair_ids: Sequence[str], caption_group: np.ndarray, image_group: np.ndarray, image_of_text: np.ndarray
) -> list[str | None]:
    """For each pair the id of the first equal one, or None.

    Args:
        caption_group: (m,) int64, equal for equal captions, or MISSING.
        image_group: (m,) int64, equal for near-duplicate images, or MISSING.
    """
    image = np.where(image_group == MISSING, -1 - image_of_text, image_group)
    first: dict[tuple[int, int], int] = {}
    found: list[str | None] = [None] * len(pair_ids)
    for k in np.flatnonzero(caption_group != MISSING).tolist():
        earliest = first.setdefault((int(caption_group[k]), int(image[k])), k)
        if earliest != k:
            found[k] = pair_ids[earliest]
    return found

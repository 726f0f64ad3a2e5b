"""Tokenizer and vocabulary, in the JSON format of the published implementations.

Tokens follow the Penn Treebank where the published vocabularies do: lower case, hyphens inside words, clitics ('s, n't)
and punctuation separate, a double quotation mark as `` or ''. The rules are for English; a script without spaces
becomes one long token.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sremkit.errors import DataError
from sremkit.io import atomic_write, read_json

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")

_ALNUM = r"[^\W_]"
_CLITIC = rf"'(?:s|m|d|n|ll|re|ve)(?!{_ALNUM}|-{_ALNUM})"
_ATTACHED = re.compile(rf"(?<={_ALNUM})({_CLITIC}|n't(?!{_ALNUM}))")
_TOKEN = re.compile(
    rf"""
      \d+ (?:[.,:]\d+)+ {_ALNUM}* (?:-{_ALNUM}+)*     # 2.5, 3,000, 10:30, 2.5-mile
    | [^\W\d_] (?:\.[^\W\d_])+ \.? (?!{_ALNUM})       # u.s., a.m.
    | (?:dr|mr|mrs|ms|st|jr|sr)\. (?=\s+{_ALNUM})     # a title, not the end of a sentence
    | can (?= not (?!{_ALNUM}) )                      # cannot is two words
    | {_ALNUM}+ (?:(?:-|'-?) {_ALNUM}+)*              # t-shirt, o'clock, jack-o'-lantern
    | {_CLITIC}
    | \.{{2,}} | -{{2,}} | `` | ''                     # an ellipsis, a dash, quotation marks
    | \S
    """,
    re.VERBOSE,
)
_OPENING_QUOTE = re.compile(r'(^|[\s(\[{<])"')
_PLAIN_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": " `` ", "”": " '' "})


def tokenize(text: str) -> list[str]:
    """Split a text into lower-case words, numbers and punctuation.

    >>> tokenize("A dog's t-shirt isn't 2.5 feet long.")
    ['a', 'dog', "'s", 't-shirt', 'is', "n't", '2.5', 'feet', 'long', '.']
    """
    text = unicodedata.normalize("NFC", text.lower()).translate(_PLAIN_QUOTES)
    text = _OPENING_QUOTE.sub(r"\1 `` ", text).replace('"', " '' ")
    return _TOKEN.findall(_ATTACHED.sub(r" \1", text))


class Vocabulary:
    """Words with ids from 0; the first four are `<pad>`, `<start>`, `<end>` and `<unk>`."""

    def __init__(self, words: Sequence[str], *, name: str = "vocabulary") -> None:
        self.words = tuple(words)
        self._id_of_word = {word: number for number, word in enumerate(self.words)}
        if self.words[: len(SPECIAL_WORDS)] != SPECIAL_WORDS:
            raise DataError(
                f"{name}: the first words must be {', '.join(SPECIAL_WORDS)} in this order, "
                f"found {', '.join(map(str, self.words[: len(SPECIAL_WORDS)])) or 'none'}"
            )
        if len(self._id_of_word) != len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise DataError(f"{name}: the word '{twice}' appears twice; each word must appear once")

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 4) -> Vocabulary:
        """Words that appear at least `min_count` times, by descending frequency, then alphabetically."""
        counts = Counter(token for text in texts for token in tokenize(text))
        frequent = [word for word, count in counts.items() if count >= min_count]
        if not frequent:
            raise DataError(
                f"no word appears {min_count} times in these texts ({counts.total()} words, "
                f"{len(counts)} different); give more texts or lower min_count"
            )
        return cls([*SPECIAL_WORDS, *sorted(frequent, key=lambda word: (-counts[word], word))])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """Word ids between `<start>` and `<end>`; unknown words become `<unk>`."""
        return [START, *(self._id_of_word.get(token, UNKNOWN) for token in tokenize(text)), END]

    def to_dict(self) -> dict[str, Any]:
        """The published JSON layout: id of each word, word of each id, number of words."""
        return {
            "word2idx": dict(self._id_of_word),
            "idx2word": {str(number): word for number, word in enumerate(self.words)},
            "idx": len(self),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], *, name: str = "vocabulary") -> Vocabulary:
        """Read the published layout; `name` is used in messages."""
        missing = [key for key in ("word2idx", "idx2word", "idx") if key not in stored]
        if missing:
            raise DataError(f"{name} lacks {', '.join(missing)}; a vocabulary holds word2idx, idx2word and idx")
        id_of_word, word_of_id = stored["word2idx"], stored["idx2word"]
        if not isinstance(id_of_word, Mapping) or not isinstance(word_of_id, Mapping):
            raise DataError(f"{name}: word2idx and idx2word must be tables from word to number and back")
        for word, number in id_of_word.items():
            if not isinstance(number, int):
                raise DataError(f"{name}: the number of '{word}' in word2idx is {number!r}, not a whole number")
        words = sorted(id_of_word, key=id_of_word.__getitem__)
        for number, word in enumerate(words):
            if id_of_word[word] != number:
                raise DataError(
                    f"{name}: word2idx must number its words 0 to {len(words) - 1} without gaps, "
                    f"but '{word}' has {id_of_word[word]} where {number} is due"
                )
            if word_of_id.get(str(number)) != word:
                raise DataError(
                    f"{name}: word2idx gives '{word}' the number {number}, but idx2word has "
                    f"{word_of_id.get(str(number))!r} there"
                )
        if len(word_of_id) != len(words) or stored["idx"] != len(words):
            raise DataError(
                f"{name}: word2idx has {len(words)} words, idx2word {len(word_of_id)} and idx is "
                f"{stored['idx']}; the three must agree"
            )
        return cls(words, name=name)

    def save(self, path: str | Path) -> None:
        """Write the published JSON format."""
        atomic_write(Path(path), json.dumps(self.to_dict(), ensure_ascii=False))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary in the published JSON format, and check that it is consistent."""
        stored = read_json(Path(path))
        if not isinstance(stored, dict):
            raise DataError(f"{path} must hold a table with word2idx, idx2word and idx")
        return cls.from_dict(stored, name=str(path))

"""Captions in another script or language than the rest of the collection.

The script of a caption is that of most of its letters. Among captions in Latin letters the language is decided by
function words; a caption with few of them is left alone, because names and single nouns exist in every language.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

from sremkit.audit.scoring.near_duplicates import plain_caption

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


def find_other_language(texts: Sequence[str]) -> list[str | None]:
    """For each caption its script or language if most of the others have another one, else None."""
    scripts = [script_of(text) for text in texts]
    main_script = _main(scripts)
    found: list[str | None] = [
        script if main_script is not None and script not in (None, main_script) else None for script in scripts
    ]
    latin = [k for k, script in enumerate(scripts) if script == "Latin"]
    counts = {k: count_function_words(texts[k]) for k in latin}
    main = _main([counts[k].most_common(1)[0][0] if counts[k] else None for k in latin])
    for k, count in counts.items():
        if main is None or found[k] is not None or not count or count[main]:
            continue
        language, times = count.most_common(1)[0]
        if times >= MIN_FUNCTION_WORDS:
            found[k] = language
    return found


def script_of(text: str) -> str | None:
    """The script of most letters, such as "Latin" or "Cyrillic"; None without letters."""
    scripts = Counter(_script(character) for character in text if character.isalpha())
    return scripts.most_common(1)[0][0] if scripts else None


def count_function_words(text: str) -> Counter[str]:
    """How many distinct function words of each language a caption has."""
    words = set(plain_caption(text).split())
    counts = Counter({language: len(words & known) for language, known in _words().items()})
    return +counts  # without zeros


@cache
def _words() -> dict[str, frozenset[str]]:
    """The function words of each language that no other one has."""
    lists = {language: set(words.split()) for language, words in FUNCTION_WORDS.items()}
    times = Counter(word for words in lists.values() for word in words)
    return {language: frozenset(word for word in words if times[word] == 1) for language, words in lists.items()}


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "UNKNOWN").split()[0]
    return {"CJK": "Han", "HIRAGANA": "Japanese", "KATAKANA": "Japanese"}.get(name, name.capitalize())


def _main(kinds: Sequence[str | None]) -> str | None:
    """The kind of most captions that have one, if they are clearly most."""
    counts = Counter(kind for kind in kinds if kind is not None)
    if not counts:
        return None
    kind, times = counts.most_common(1)[0]
    return kind if times >= MIN_MAIN_FRACTION * counts.total() else None

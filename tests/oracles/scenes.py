"""Reads a caption of a scene as a person would, word by word, and looks whether it is true.

Scenes are plain dictionaries: {"background": str, "shapes": [{"kind", "color", "size", "texture", "row",
"column"}]} with rows and columns 0, 1, 2 from the top left. Nothing here knows how captions are made.
"""

from __future__ import annotations

import re

SIZE = {"large": "large", "big": "large", "small": "small", "little": "small"}
TEXTURE = {"plain": "plain", "striped": "striped", "dotted": "dotted", "spotted": "dotted"}
COLOR = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
KIND = ("circle", "square", "triangle", "diamond", "star", "cross", "heart")

SHAPE = rf"\ban? (?:(?:{'|'.join([*SIZE, *TEXTURE, *COLOR])}) )*(?:{'|'.join(KIND)})"
CORNER = r"in the (?:top|upper|bottom|lower) (?:left|right) corner"
PLACE = rf"{CORNER}|in the (?:centre|middle)|(?:at|on) the (?:top|bottom|left|right)"
RELATION = r"(?:to the )?(?:left|right) of|above|below|beneath"
BACKGROUND = r"(white|grey|beige|mint) (?:background|paper)"


def read_caption(text: str) -> dict:
    """The claims: {"shapes": [{...}], "relations": [(first, name, second)], "background": str or None}."""
    text = text.lower()
    shapes: list[dict] = []
    relations: list[list] = []
    waiting_place, waiting_relation = None, None
    for found in re.finditer(f"(?P<shape>{SHAPE})|(?P<place>{PLACE})|(?P<relation>{RELATION})", text):
        if found["shape"]:
            words = found["shape"].split()[1:]
            shape = {"kind": words[-1]}
            for word in words[:-1]:
                if word in SIZE:
                    shape["size"] = SIZE[word]
                elif word in TEXTURE:
                    shape["texture"] = TEXTURE[word]
                else:
                    shape["color"] = word
            shapes.append(shape)
            if waiting_place:  # the sentence began with it
                shape["place"], waiting_place = waiting_place, None
            if waiting_relation is not None:
                relations[waiting_relation][2] = len(shapes) - 1
                waiting_relation = None
        elif found["place"]:
            place = place_name(found["place"])
            if shapes:
                shapes[-1]["place"] = place
            else:
                waiting_place = place
        else:
            name = found["relation"].replace("to the ", "").replace("beneath", "below")
            relations.append([len(shapes) - 1, name, None])
            waiting_relation = len(relations) - 1
    for relation in relations:
        if relation[0] == -1:  # "above B there is A": the first shape is named last
            relation[0] = 1
    background = re.search(BACKGROUND, text)
    return {
        "shapes": shapes,
        "relations": [tuple(relation) for relation in relations],
        "background": background[1] if background else None,
    }


def place_name(words: str) -> str:
    words = words.replace("upper", "top").replace("lower", "bottom").replace("middle", "centre")
    return " ".join(word for word in words.split() if word in ("top", "bottom", "left", "right", "centre"))


def is_at(shape: dict, place: str) -> bool:
    if place == "centre":
        return shape["row"] == 1 and shape["column"] == 1
    true = {
        "top": shape["row"] == 0,
        "bottom": shape["row"] == 2,
        "left": shape["column"] == 0,
        "right": shape["column"] == 2,
    }
    return all(true[word] for word in place.split())


def is_related(first: dict, name: str, second: dict) -> bool:
    if name == "left of":
        return first["column"] < second["column"]
    if name == "right of":
        return first["column"] > second["column"]
    if name == "above":
        return first["row"] < second["row"]
    return first["row"] > second["row"]


def is_true(claims: dict, scene: dict) -> bool:
    """Tries every way to find the mentioned shapes in the scene, one scene shape for each."""
    if claims["background"] is not None and claims["background"] != scene["background"]:
        return False

    def try_from(found: list[int]) -> bool:
        if len(found) == len(claims["shapes"]):
            chosen = [scene["shapes"][k] for k in found]
            return all(is_related(chosen[i], name, chosen[j]) for i, name, j in claims["relations"])
        mention = claims["shapes"][len(found)]
        for k, shape in enumerate(scene["shapes"]):
            if k in found:
                continue
            if any(shape[name] != mention[name] for name in mention if name != "place"):
                continue
            if "place" in mention and not is_at(shape, mention["place"]):
                continue
            if try_from([*found, k]):
                return True
        return False

    return try_from([])

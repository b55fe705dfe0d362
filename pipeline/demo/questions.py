"""The demo's benchmark: small questions that no other page asks, and no two of which share 13 words in a
row."""

from __future__ import annotations

import random

_NAMES = (
    "Amal",
    "Bruno",
    "Chiara",
    "Dilek",
    "Emil",
    "Farida",
    "Goran",
    "Hana",
    "Ines",
    "Jonas",
    "Kira",
    "Luca",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_THINGS = (
    "pear",
    "plum",
    "almond",
    "walnut",
    "cherry",
    "quince",
    "olive",
    "hazel",
    "mulberry",
    "apricot",
    "chestnut",
)
_KINDS = (
    "{one} plants {a} {x} trees in each of {b} rows, and {two} cuts down {c} of them on {day}. How many {x}"
    " trees does {one} count in {d} rows a week later?",
    "A ferry with {a} seats crosses {b} times a day and brings {c} baskets of {x} to {one}. If {two} takes"
    " {d} of them each {day}, how long do they last?",
    "{one} stirs {a} grams of {x} sugar into {b} litres, {two} adds {c} litres more on {day}. How many grams"
    " are in {d} litres of what {one} drinks?",
    "The clock of {one} loses {a} seconds an hour, that of {two} gains {b}. Set on {day} at {d} minutes past"
    " noon under the {x} tree, when do they differ by {c} minutes?",
    "On {day} {one} reads {a} pages about {x} trees, then {b} more; {two} reads {c} pages a day. After {d}"
    " days, by how many pages is {two} ahead of {one}?",
)


def question(number: int, rng: random.Random) -> str:
    """Question `number`: of one of five kinds, with names, things and numbers drawn by `rng`."""
    one, two = rng.sample(_NAMES, 2)
    numbers = {letter: rng.randint(11, 997) for letter in "abcd"}
    kind = _KINDS[number % len(_KINDS)]
    return f"Question {number + 1}: " + kind.format(
        one=one, two=two, day=rng.choice(_DAYS), x=rng.choice(_THINGS), **numbers
    )

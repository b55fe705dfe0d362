"""The demo's benchmark: small questions that no other page asks."""

from __future__ import annotations

import random

_NAMES = ("Amal", "Bruno", "Chiara", "Dilek", "Emil", "Farida", "Goran", "Hana", "Ines", "Jonas")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_KINDS = (
    "{one} plants {a} pear trees in each of {b} rows and loses {c} of them in the storm. How many pear trees are left"
    " when {two} counts them on {day}, and how many rows of {a} could be filled again?",
    "A ferry with {a} seats crosses the strait {b} times a day. If {c} seats stay empty on every crossing, how many"
    " travellers reach the island by {day} evening when {one} and {two} sell the tickets?",
    "{one} mixes {a} grams of salt into {b} litres of water, and {two} adds {c} litres more on {day}. What is the"
    " concentration in grams per litre, and who of {one} and {two} made it weaker?",
    "The clock of {one} loses {a} seconds every hour, that of {two} gains {b}. Both are set right on {day} at noon."
    " After how many hours do they differ by {c} minutes, and which of them is ahead?",
    "On {day} {one} reads {a} pages before noon and {b} after it; {two} reads {c} pages a day. In how many days has"
    " {two} read as many pages as {one} did on {day}, and how many more did {one} read?",
)


def question(number: int, rng: random.Random) -> str:
    """Question `number`: of one of five kinds, with names and numbers drawn by `rng`."""
    one, two = rng.sample(_NAMES, 2)
    asked = _KINDS[number % len(_KINDS)].format(
        one=one, two=two, day=rng.choice(_DAYS), a=rng.randint(11, 99), b=rng.randint(11, 99), c=rng.randint(3, 97)
    )
    return f"Question {number + 1}: {asked}"

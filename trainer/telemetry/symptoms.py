"""What is wrong with the machine of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """`text` says it in a sentence that names rank and host. `kind`: it computes wrongly, so nothing that it
    does counts; it is slow; little room is left; an alert announces a failure; its weights differed from its
    replicas'."""

    rank: int
    kind: Literal["corrupt", "slow", "full", "sign", "odd"]
    text: str

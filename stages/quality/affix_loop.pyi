from collections.abc import Callable, Sequence
from typing import Any

from stages.quality.affixes import Affixes

class AffixLoop:
    """What a substring between white space becomes, by the algorithm of spaCy's `Tokenizer` (3.8: `_split_affixes`,
    `_attach_tokens`, `_apply_special_cases`)."""

    def __init__(
        self,
        tokenizer: Any,
        affixes: Affixes,
        rules: dict[str, list[str]],
        patterns: dict[str, list[str]],
        max_chars: int,
        url_needs: str,
    ) -> None:
        """`tokenizer` is spaCy's, `affixes` what is known of its expressions, which are searched where that does not
        answer. `rules` are its special cases with their tokens, `patterns` those that its matcher looks for, with the
        tokens that it looks for. `url_needs`: characters that each match of its `url_match` holds."""

    @property
    def num_windows(self) -> int:
        """How many answers are remembered."""

    def learn(
        self,
        substrings: list[str],
        add: Callable[[str, Sequence[str], int, int], None],
        first: Callable[[str, str], int],
        last: Callable[[str, str], int],
    ) -> list[str]:
        """Call `add` with each substring, its tokens, and the numbers that `first` and `last` give to the special cases
        that it may begin in the middle of, or end in; they are told the substring and its first or last token. Given
        back are the substrings of which spaCy must be asked: of over `max_chars` with more than letters, or with a
        space in them."""

"""The tokenizer of a folder of weights beside the data's: does each id stand for the same token, and does a
text become the same ids?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.report.tokens import tokenizer_of
from stages.tokens.end_of_text import KNOWN_ENDS, OtherEndError
from stages.tokens.tokenizer import Tokenizer, load_tokenizer
from trainer.data.corpus import Corpus
from trainer.huggingface.same_tokenizer import another_tokenizer
from trainer.options import TrainTable

PROBES: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "It's what they'd've said: we'll see, I'm sure, you're RIGHT, DON'T.",
    "Straße, naïve, Ærøskøbing, żółć, İstanbul, čeština",
    "Die Donaudampfschifffahrtsgesellschaft fährt seit 1829.",
    "Où est l'école? À côté de la forêt, d'aujourd'hui.",
    "Быстрая лиса прыгает через ленивую собаку.",
    "Η γρήγορη αλεπού πηδά πάνω από το σκυλί.",
    "السلام عليكم ورحمة الله وبركاته",
    "שלום עולם, מה שלומך היום?",
    "नमस्ते दुनिया, आप कैसे हैं? १२३४",
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি।",
    "สวัสดีชาวโลก วันนี้อากาศดีมาก",
    "Tiếng Việt có nhiều dấu thanh.",
    "敏捷的棕色狐狸跳过了懒狗。",
    "吾輩は猫である。名前はまだ無い。カタカナ",
    "다람쥐 헌 쳇바퀴에 타고파",
    "ქართული ენა, Հայերեն, አማርኛ, தமிழ்",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ☕ é ﬁ ½ ² Ⅷ",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2026-11-28 0xFF 1e-9",
    "١٢٣ 一二三 ４５６",
    "a b  c   d    e\tf\t\tg\n\nh\r\n\r\ni \n j  ",
    "   leading, trailing   ",
    "\n\n\n",
    "a\u00a0b\u2003c\u3000d\u200be",
    "def f(x: int) -> str:\n    return f'{x:>10}'  # comment\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\n",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "<html><body class='x'>&amp; &lt;</body></html>",
    "https://example.org/path?query=1&x=%20#top me@example.org",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "!!! ??? ... --- *** ### $$$ @@ ~~ ^^ (([[{{}}]]))",
    "$\\frac{\\partial u}{\\partial t} = \\nabla^2 u$",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
"""Texts that splits and normalizers tell apart: scripts, digits, white space, contractions and code."""


def compare_file(train: TrainTable, file: str, corpus: Corpus) -> list[str]:
    """The tokenizer in this file of the folder `train.init_from`, beside that of the data. A line where the
    data's is not at hand; RecipeError where the folder's is another or cannot be read."""
    assert train.init_from is not None, "the folder has the file"
    folder, recorded = Folder(train.init_from), corpus.tokenizer
    has_ranks_only = file.endswith(".tiktoken")
    try:
        theirs = load_tokenizer(folder.at(file), None if has_ranks_only else recorded.eot_id)
    except OtherEndError:
        reason = (
            f"{file} has no special token with id {recorded.eot_id}, which ends the documents of the data"
        )
        raise another_tokenizer(folder, reason) from None
    except RecipeError as error:
        raise another_tokenizer(folder, f"{file} cannot be read: {error}") from error
    if theirs.hash == recorded.hash:
        return []
    out = Folder(corpus.outputs[0].url)
    try:
        ours = tokenizer_of(out, read_index(out))
    except RecipeError as error:
        if theirs.vocab_size < recorded.vocab_size and not (has_ranks_only or train.extend_vocabulary):
            fewer = f"{file} has {theirs.vocab_size:,} ids, the data's has {recorded.vocab_size:,}"
            raise another_tokenizer(folder, fewer) from error
        return [
            f"train.init_from: {folder.at(file)} ({theirs.vocab_size:,} ids) could not be compared with the tokenizer"
            f" of the data ({recorded.vocab_size:,} ids): {error}"
        ]
    differences = _ids(theirs, ours, has_ranks_only=has_ranks_only, extends=train.extend_vocabulary)
    difference = next(differences, None)
    if difference is None and not has_ranks_only:
        difference = next(_texts(theirs, ours), None)
    if difference is not None:
        raise another_tokenizer(folder, f"{difference} ({file} beside {ours.name})")
    return []


def _ids(theirs: Tokenizer, ours: Tokenizer, *, has_ranks_only: bool, extends: bool) -> Iterator[str]:
    """Each id that stands for another token, or that text makes with one of them alone. A file of ranks says
    nothing of special and added tokens, nor of the split."""
    folder, data = theirs.tokens(), ours.tokens()
    if has_ranks_only:
        unmade = ours.special_ids | ours.added_ids
        folder = {id_: token for id_, token in folder.items() if id_ not in theirs.special_ids}
    else:
        unmade = ours.special_ids | theirs.special_ids
    for id_ in sorted(folder.keys() | data.keys()):
        one, other = folder.get(id_), data.get(id_)
        if one is None or other is None:
            if id_ not in unmade and not (one is None and extends):
                yield f"id {id_} is {_token(one)} in the folder and {_token(other)} in the data"
        elif one != other and not (id_ == ours.eot_id and {one.decode(), other.decode()} <= {*KNOWN_ENDS}):
            yield f"id {id_} is {_token(one)} in the folder and {_token(other)} in the data"


def _texts(theirs: Tokenizer, ours: Tokenizer) -> Iterator[str]:
    for text in PROBES:
        one, other = theirs.encode(text).tolist(), ours.encode(text).tolist()
        if one != other:
            at = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            shown = f"{one[at : at + 4]} with the folder's and {other[at : at + 4]} with the data's"
            yield f"the text {text!r} becomes, from its token {at} on, {shown}"


def _token(token: bytes | None) -> str:
    return "no token" if token is None else repr(token.decode("utf-8", "backslashreplace"))

"""Texts near the thresholds of quality rules, made of sentences in a language: the same in every run.

A text is a few hundred words of the sentences, cut into lines so that what rules measure of it (line feeds for
each word, punctuation, repeated lines and n-grams, marks, words) falls a little below their thresholds or a
little above."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Final

SENTENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "vie_Latn": (
        "Chúng tôi là những người học sinh của thành phố và đang nghiên cứu môi trường xung quanh trường học.",
        "Công nghệ thông tin đã thay đổi cuộc sống của nhân dân trong nhiều năm qua.",
        "Các nhà khoa học đã phát triển một phương pháp mới để bảo vệ động vật hoang dã.",
        "Kinh tế Việt Nam tăng trưởng trong năm này và xuất khẩu được cải thiện.",
        "Thời tiết được dự báo là có mưa vào cuối tuần.",
        "Du lịch phát triển.",
    ),
    "hin_Deva": (
        "नगर के लोग सुबह बाजार में फल और सब्जी खरीदने के लिए आते हैं।",
        "विद्यालय में बच्चों को गणित और विज्ञान की पुस्तकें दी गई हैं",
        "यह नदी पहाड़ से निकलती है और 12 , 5 किलोमीटर तक बहती है।",
        "किसान ने खेत में गेहूँ बोया",
        "वर्षा के बाद मौसम ठंडा हो गया था।",
    ),
    "urd_Arab": (
        "شہر کے لوگ صبح بازار میں پھل اور سبزی خریدنے کے لیے آتے ہیں۔",
        "اس کتاب میں دریا اور پہاڑ کے بارے میں لکھا گیا ہے",
        "بارش کے بعد موسم ٹھنڈا ہو گیا تھا۔",
        "کسان نے کھیت میں گندم بوئی",
    ),
    "tha_Thai": (
        "นักเรียนไปโรงเรียนในเมืองทุกวันและอ่านหนังสือ",
        "ตลาดเปิดตอนเช้า มีผักและผลไม้มากมาย",
        "เมื่อวานนี้ฝนตกหนัก แม่น้ำจึงมีน้ำมากขึ้น",
        "เขาเป็นครูที่ดี.",
    ),
    "kor_Hang": (
        "학생들은 매일 도시의 학교에 가서 책을 읽는다.",
        "시장은 아침에 열리고 채소와 과일이 많다.",
        "어제 비가 많이 와서 강물이 불었다",
        "그는 2024년에 12,345,678,901,234,567,890 원을 모았다.",
    ),
    "jpn_Jpan": (
        "学生は毎日町の学校へ行き、本を読みます。",
        "市場は朝に開き、野菜と果物がたくさんあります。",
        "昨日は雨が降ったので、川の水が増えた",
        "New York の会社は東京にある。",
    ),
    "cmn_Hani": (
        "学生每天去城市的学校读书，也在图书馆里学习。",
        "市场在早上开门，有很多蔬菜和水果。",
        "昨天下了大雨，所以河水上涨了",
        "这家公司在北京和 New York 都有办公室。",
    ),
    "spa_Latn": (
        "Los alumnos van cada día a la escuela de la ciudad y leen los libros de la biblioteca.",
        "El mercado abre por la mañana en EE. UU. y vende verduras y frutas.",
        "Ayer llovió mucho y por eso el río lleva más agua",
        "Según EE. UU. y Ee. Uu., no es así.",
    ),
    "rus_Cyrl": (
        "Ученики каждый день ходят в школу и читают книги из библиотеки.",
        "Рынок открывается утром, в т.ч. по субботам, и там много овощей.",
        "Вчера шёл сильный дождь, и поэтому в реке стало больше воды",
        "Об этом писал д-р биол. наук и его вед. науч. сотр. из института.",
    ),
    "arb_Arab": (
        "يذهب الطلاب كل يوم إلى المدرسة في المدينة ويقرؤون الكتب من المكتبة.",
        "يفتح السوق في الصباح وفيه الكثير من الخضار والفواكه",
        "كان ذلك في سنة 320 ب. م بعد أن جاء من الشرق إلى هذه المدينة.",
    ),
    "deu_Latn": (
        "Die Schüler gehen jeden Tag in die Schule der Stadt und lesen die Bücher aus der Bibliothek.",
        "Der Markt öffnet am Morgen, z. B. um 8 Uhr, und hat viel Gemüse und Obst.",
        "Gestern hat es stark geregnet, und der Fluss führt mehr Wasser",
        "Das gilt u.a. für die Stadt.",
    ),
    "eng_Latn": (
        "The pupils go to the school of the town every day and read the books that the library has.",
        "The market opens in the morning at 8 a.m. and there are many fruits and vegetables.",
        "It rained hard yesterday, and the river has risen with it",
        "That isn't what they have said.",
    ),
}  # fmt: skip
"""Own sentences, some with what a splitter joins across white space."""

_WITHOUT_SPACES: Final = frozenset({"tha_Thai", "jpn_Jpan", "cmn_Hani"})


def near_thresholds(language: str, limits: Mapping[str, float], num: int, seed: int = 0) -> Iterator[str]:
    """`num` texts in one of the languages; `limits` are the thresholds by their keys in [quality]."""
    rng = random.Random(f"{language} {seed}")
    for _ in range(num):
        yield _near(rng, language, limits)


def _near(rng: random.Random, language: str, limits: Mapping[str, float]) -> str:
    least_words = int(limits.get("min_words", 50))
    num_words = rng.choice((rng.randint(least_words // 2, 2 * least_words), rng.randint(60, 400)))
    words = _words(rng, language, num_words)
    newlines = limits.get("fineweb_max_newlines_per_word", 0.3) * rng.choice((0.1, rng.uniform(0.4, 1.6)))
    lines = _cut(rng, words, max(1.0, 1 / max(newlines, 0.001)), "" if language in _WITHOUT_SPACES else " ")
    _set_ends(rng, lines, limits.get("fineweb_min_line_punctuation", 0.12))
    kinds = (_repeat_lines, _repeat_words, _mark_lines, _add_marks, _blank_lines)
    for kind in rng.sample(kinds, rng.choice((0, 1, 1, 2))):
        kind(rng, lines, limits)
    return "\n".join(lines)


def _words(rng: random.Random, language: str, num: int) -> list[str]:
    words: list[str] = []
    while len(words) < num:
        sentence = rng.choice(SENTENCES[language]).split()
        if language in _WITHOUT_SPACES:
            start = rng.randrange(len(clause := rng.choice(sentence)))
            words.append(clause[start : start + rng.randint(1, 6)])
            continue
        # A word changed here and there keeps n-grams from repeating in every text.
        change = rng.choice((0.0, 0.1, 0.4, 0.8))
        words += [word + rng.choice(word) if rng.random() < change else word for word in sentence]
    return words[:num]


def _cut(rng: random.Random, words: list[str], mean: float, join: str) -> list[str]:
    lines, start = [], 0
    while start < len(words):
        end = start + max(1, round(rng.uniform(0.5, 1.5) * mean))
        lines.append(join.join(words[start:end]))
        start = end
    return lines


def _set_ends(rng: random.Random, lines: list[str], least: float) -> None:
    share = rng.choice((0.9, least + rng.uniform(-0.05, 0.1)))
    for place, line in enumerate(lines):
        lines[place] = line.rstrip(".。।۔") + ("." if rng.random() < share else "")


def _repeat_lines(rng: random.Random, lines: list[str], limits: Mapping[str, float]) -> None:
    share = limits.get("max_duplicate_lines", 0.3) * rng.uniform(0, 1.5)
    lines += rng.choices(lines, k=min(200, round(len(lines) * share)))


def _repeat_words(rng: random.Random, lines: list[str], limits: Mapping[str, float]) -> None:
    share = limits.get("max_duplicate_5_grams", 0.15) * rng.uniform(0.2, 1.5)
    phrase = " ".join(rng.choice(lines).split()[: rng.randint(2, 12)])
    lines += [phrase] * min(200, round(share * sum(map(len, lines)) / max(len(phrase), 1)))


def _mark_lines(rng: random.Random, lines: list[str], limits: Mapping[str, float]) -> None:
    bullets, ellipses = rng.uniform(0.7, 1.1), limits.get("max_ellipsis_lines", 0.3) * rng.uniform(0.5, 1.5)
    for place, line in enumerate(lines):
        bullet = rng.choice(("- ", "• ")) if rng.random() < bullets else ""
        lines[place] = bullet + line + ("..." if rng.random() < ellipses else "")


def _add_marks(rng: random.Random, lines: list[str], limits: Mapping[str, float]) -> None:
    share = rng.choice((limits.get("max_hashes_per_word", 0.1), 1 - limits.get("min_alphabetic_words", 0.8)))
    num = round(share * rng.uniform(0.5, 1.8) * sum(len(line.split()) for line in lines))
    mark = rng.choice(("#", "…", "12", "|", "3 , 4", "{", "[1]", "javascript"))
    for _ in range(num):
        place = rng.randrange(len(lines))
        lines[place] += f" {mark}"


def _blank_lines(rng: random.Random, lines: list[str], limits: Mapping[str, float]) -> None:
    for _ in range(rng.randint(1, 2 + len(lines) // 3)):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(("", " ", "\u3000", "\u2028")))

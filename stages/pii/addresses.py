"""IP addresses, told from versions, sections and other numbers of four parts by what stands around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stages.pii.linear import linear
from stages.pii.numbers import is_public_ip
from stages.pii.surroundings import FILE_ENDING, stands_alone, text_before, text_behind

_IPV4 = linear(rb"(?:\d{1,3}\.){3}\d{1,3}")
_IPV6 = linear(rb"[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?")
_COLON: Final = ord(":")

_NEAR: Final = 64
"""Bytes on each side that may tell what a number is."""

# Words before a number of four parts that make it a version or a part of a text, in the larger languages of the web.
_NUMBERED: Final = (
    r"api|bios|builds?|driver|firmware|hotfix|kernel|patch(?:ed|es)?|rel|releases?|rev|revisions?|sdk|upgraded?|updated?"
    r"|updates|upgrades|v|ver|vers|version[se]?|versionen|fassung|ausgabe|treiber|versie|versioni|versión|versiones|versão"
    r"|versões|wersj[aieęą]+|verz[eií]|versjon|udgave|utgave|utgåva|sürüm\w*|verzi[óoj][ae]?|versiune\w*|верси[яиюей]+"
    r"|версі[яїюєй]+|έκδοση\w*|バージョン|版本|버전"
    r"|algorithms?|annex|appendix|articles?|art|chap|chapters?|clauses?|definitions?|eqs?|equations?|examples?|exercises?"
    r"|figs?|figures?|items?|lemmas?|listings?|nos?|numbers?|oids?|paragraphs?|paras?|requirements?|reqs?|rules?|sec|sect"
    r"|sections?|steps?|subsections?|tab|tables?|theorems?"
    r"|abb|abbildung(?:en)?|abs|absatz|abschn|abschnitte?s?|anhang|artikeln?|kap|kapiteln?|nr|punkte?|tabellen?|teil|ziff"
    r"|ziffern?|alinéas?|annexes?|chapitres?|paragraphes?|tableaux?|anexos?|apartados?|artículos?|cap[ií]tulos?|cláusulas?"
    r"|figuras?|secci(?:ón|ones)|tablas?|allegat[oi]|articol[oi]|capitol[oi]|clausol[ae]|figur[ae]|paragraf[oi]|sezion[ei]"
    r"|tabell[ae]|artigos?|sec(?:ção|ções)|seç(?:ão|ões)|tabelas?|afbeelding(?:en)?|bijlagen?|hoofdstuk(?:ken)?"
    r"|paragra(?:af|fen)|secties?|punkt\w*|rozdzia[łl]\w*|rysun\w+|sekcj\w+|tabel[ai]|afsnit\w*|avsnitt\w*|figur\w*"
    r"|kapit[et]l\w*|tabell\w*|kapitol\w+|obráz\w+|oddíl\w*|bölüm\w*|şekil\w*|глав\w+|пункт\w*|раздел\w*|рис|рисун\w+"
    r"|таблиц\w*|розділ\w*|ενότητα|κεφάλαιο|章节|章|节|節|図|表"
)
_PRODUCTS: Final = (
    r"acrobat|add-?ons?|android|apache|chrome|chromium|debian|drupal|edge|excel|explorer|extension|firefox|flash|framework"
    r"|illustrator|installer|ios|itunes|java|jdk|joomla|jre|library|linux|logiciel|macos|magento|mariadb|module|msie|mysql|nginx"
    r"|npm|office|openssl|opera|oracle|os x|outlook|package|perl|photoshop|php|player|plug-?ins?|postgres(?:ql)?|powerpoint"
    r"|programma?|python|quicktime|reader|ruby|safari|seamonkey|skype|software|sql server|sqlite|thunderbird|tomcat|toolkit|tools?"
    r"|typo3|ubuntu|vlc|windows|word|wordpress"
)
_LINK: Final = r"(?:\s(?:number|no|nr|nummer|numéro|número))?\.?(?:\s(?:is|was|are|of|to|ist|auf|bis|est|es|à|a))?"
_CALLED_OTHERWISE = re.compile(
    rf"(?:(?<!\w)(?:{_NUMBERED})\.?{_LINK}[\s:#(\[='\"„“«*-]{{0,4}}|(?<!\w)(?:{_PRODUCTS})[\s/]|§\s?|(?:[<>~!]=|[~^]>?)\s?)$",
    re.IGNORECASE,
)
_CALLED_ADDRESS = re.compile(
    r"(?<!\w)(?:ips?|ipv4|address(?:es)?|adressen?|adresse|dirección|direcciones|indirizz[oi]|endereços?|адрес\w*|地址|アドレス)"
    r"(?:[\W_]{0,3}(?:no|nr|numbers?|nummern?))?[\W_]{0,4}$",
    re.IGNORECASE,
)
# Between the numbers of one list ("versions 5.2.1.4, 5.2.1.5 and 5.3.0.1"): what goes for the first goes for all.
_BETWEEN = re.compile(
    r"\s*(?:[,;/&+–—、-]\s*)?(?:and|or|to|through|und|oder|bis|et|ou|à|y|o|e|a|en|of|i|lub|и|или|до|和)?\s*", re.IGNORECASE
)
_BEHIND = re.compile(
    rf"\.{FILE_ENDING}|[-~+]\d*[A-Za-z]|\s(?:alpha|beta|builds?|driver|firmware|hotfix|patch|rc|releases?|updates?|versions?)\b",
    re.IGNORECASE,
)
# What only an address has: a port or the length of a prefix behind it, a scheme or a user before it.
_HAS_PORT = re.compile(r":\d|/\d{1,2}(?![\w.])")
_HAS_SCHEME = re.compile(r"(?:[A-Za-z]://|@)$")
# A word joined to it names a program or a file (Chrome/70.0.35.77, libfoo-1.2.3.4), unless it is a word for an address.
_JOINED_NAME = re.compile(r"(?:^|[\s(\[{\"'<>,;=|])([^\W_][\w+.]*(?:-[\w+.]+)*)[-_/]$")
_NETWORK_NAME = re.compile(
    r"(?:^|[-_.])(?:addr|address|client|dns|gateway|hosts?|ip|ipv4|net|proxy|route|server|via|whois)$", re.IGNORECASE
)
# What alone does not tell, but does of numbers as small as those of versions and sections: a heading's place, a name
# in capitals before it, "see".
_SMALL: Final = 30
_LINE_BEGINS = re.compile(r"(?:^|\n)\s*$")
_HEADING_BEHIND = re.compile(r"\.?[ \t]+[A-ZÀ-ÞΑ-ΩА-Я]\w*[a-zß-ÿα-ωа-я ]")
_NAME_BEFORE = re.compile(r"(?<![\w.@/-])(?!(?:At|By|Client|DNS|From|Gateway|Host|On|PING|Ping|Proxy|Router|Server|To|User|Via)\b)[A-Z][\w+-]*\s$")
_SEE_BEFORE = re.compile(r"(?<!\w)(?:cf\.?|in|per|see|siehe|since|under|vgl\.?|voir|véase)\s(?:also\s)?$", re.IGNORECASE)


def find_ips(data: bytes) -> Iterator[tuple[int, int]]:
    """Byte spans of public IPv4 and IPv6 addresses; a longer dotted number (an OID), and one that its surroundings call
    a version, a section or a file, is none."""
    yield from _find_ipv4(data)
    for match in _IPV6.finditer(data):
        start, end = match.span()
        # IPv6 may end in two colons, and a sentence may put one or two behind it: "at 2606:4700::1111: it answers"
        while data[end - 1] == _COLON and not is_public_ip(data[start:end].decode("ascii")):
            end -= 1
        if stands_alone(data, start, end, b":.") and is_public_ip(data[start:end].decode("ascii")):
            yield start, end


def _find_ipv4(data: bytes) -> Iterator[tuple[int, int]]:
    last: tuple[int, int] | None = None  # the number of four parts before this one, where it was no address
    for match in _IPV4.finditer(data):
        start, end = match.span()
        if not stands_alone(data, start, end, b"."):
            continue
        if _is_other_number(data, start, end, last):
            last = start, end
            continue
        last = None
        if is_public_ip(match[0].decode("ascii")):
            yield start, end


def _is_other_number(data: bytes, start: int, end: int, last: tuple[int, int] | None) -> bool:
    """Whether what stands around four numbers calls them something else than an address. `last`: the four numbers
    before them, where those were none."""
    before, behind = text_before(data, start, _NEAR), text_behind(data, end, _NEAR // 2)
    if _HAS_PORT.match(behind) or _HAS_SCHEME.search(before) or _CALLED_ADDRESS.search(before):
        return False
    if _CALLED_OTHERWISE.search(before) or _BEHIND.match(behind):
        return True
    joined = _JOINED_NAME.search(before)
    if joined:
        return not _NETWORK_NAME.search(joined[1])
    if any(int(part) > _SMALL for part in data[start:end].split(b".")):
        return False
    if last is not None and start - last[1] <= _NEAR and _BETWEEN.fullmatch(data[last[1] : start].decode("utf-8")):
        return True
    is_heading = _LINE_BEGINS.search(before) and _HEADING_BEHIND.match(behind)
    return bool(is_heading or _NAME_BEFORE.search(before) or _SEE_BEFORE.search(before))

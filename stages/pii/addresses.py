"""IP addresses, told from versions, sections and other numbers of four parts by what stands around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stages.linear import linear
from stages.pii.numbers import is_public_ip
from stages.pii.surroundings import FILE_ENDING, stands_alone, text_before, text_behind

_IPV4 = linear(rb"(?:\d{1,3}\.){3}\d{1,3}")
_IPV6 = linear(rb"[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?")
_COLON: Final = ord(":")

_NEAR: Final = 64
"""Bytes on each side that may tell what a number is."""

# Words before a number of four parts that make it a version, in the larger languages of the web; the German
# ones end compounds (Softwareversion).
_VERSIONS: Final = (
    r"api|bios|\w*builds?|driver|\w*firmware|hotfix|kernel|patch(?:ed|es)?(?: ?level)?|rel|\w*releases?|rev|revisions?"
    r"|sdk|\w*software|upgraded?|updated?|\w*updates?|upgrades|v|ver|vers|\w*version(?:e|en|es|i|s)?|\w*fassung|\w*ausgabe"
    r"|\w*treiber|versie|versión|versão|versões|wersj[aieęą]+|verz[eií]|versjon|udgave|utgave|utgåva|sürüm\w*"
    r"|verzi[óoj][ae]?|versiune\w*|верси[яиюей]+|версі[яїюєй]+|έκδοση\w*|\w*バージョン|\w*版本|\w*버전"
)
# The same for parts of a text. No section has a number as large as those of most addresses.
_PARTS: Final = (
    r"(?:updat|upgrad)(?:e|ed|ing) from|(?:change ?log|notes) (?:for|of)"
    r"|algorithms?|annex|appendix|articles?|art|chap|chapters?|clauses?|definitions?|eqs?|equations?|examples?|exercises?"
    r"|figs?|figures?|items?|lemmas?|listings?|nos?|numbers?|oids?|paragraphs?|paras?|requirements?|reqs?|rules?|sec|sect"
    r"|sections?|steps?|subsections?|tab|tables?|theorems?"
    r"|abb|abbildung(?:en)?|abs|absatz|abschn|abschnitte?s?|anhang|artikeln?|kap|kapiteln?|nr|punkte?|tabellen?|teil|ziff"
    r"|ziffern?|alinéas?|annexes?|chapitres?|paragraphes?|tableaux?|anexos?|apartados?|artículos?|cap[ií]tulos?|cláusulas?"
    r"|figuras?|secci(?:ón|ones)|tablas?|allegat[oi]|articol[oi]|capitol[oi]|clausol[ae]|figur[ae]|paragraf[oi]|sezion[ei]"
    r"|tabell[ae]|artigos?|sec(?:ção|ções)|seç(?:ão|ões)|tabelas?|afbeelding(?:en)?|bijlagen?|hoofdstuk(?:ken)?"
    r"|paragra(?:af|fen)|secties?|points?|punt[oi]|ponto|numeral(?:es)?|punkt\w*|rozdzia[łl]\w*|rysun\w+|sekcj\w+|tabel[ai]"
    r"|afsnit\w*|avsnitt\w*|figur\w*|kapit[et]l\w*|tabell\w*|kapitol\w+|obráz\w+|oddíl\w*|bölüm\w*|şekil\w*|глав\w+|пункт\w*|раздел\w*|рис|рисун\w+"
    r"|таблиц\w*|розділ\w*|ενότητα|κεφάλαιο|\w*[章节節図表]"
)
_LARGEST_PART: Final = 99
_PRODUCTS: Final = (
    r"acrobat|add-?ons?|android|apache|chrome|chromium|debian|drupal|edge|excel|explorer|extension|firefox|flash"
    r"|framework|illustrator|installer|ios|itunes|java|jdk|joomla|jre|library|linux|logiciel|macos|magento|mariadb"
    r"|module|msie|mysql|nginx|npm|office|openssl|opera|oracle|os x|outlook|package|perl|photoshop|php|player"
    r"|plug-?ins?|postgres(?:ql)?|powerpoint|programma?|python|quicktime|reader|ruby|safari|seamonkey|skype"
    r"|sql server|sqlite|thunderbird|tomcat|toolkit|tools?|typo3|ubuntu|vlc|windows|word|wordpress"
)
_LINK: Final = (
    r"\.?(?:\s(?:number|no|nr|nummer|numéro|número))?\.?(?:\s(?:is|was|are|of|to|ist|auf|bis|est|es|à|a))?"
    r"[\s:#(\[='\"„“«*-]{0,4}$"
)
_CALLED_VERSION = re.compile(
    rf"(?<!\w)(?:{_VERSIONS}){_LINK}|(?<!\w)(?:{_PRODUCTS})[\s/]$|§\s?$|(?:[<>~!]=|[~^]>?)\s?$", re.IGNORECASE
)
_CALLED_PART = re.compile(rf"(?<!\w)(?:{_PARTS}){_LINK}", re.IGNORECASE)
_CALLED_ADDRESS = re.compile(
    r"(?<!\w)(?:ips?|ipv4|address(?:es)?|adressen?|dirección|direcciones|indirizz[oi]|endereços?|адрес\w*|\w*地址"
    r"|\w*アドレス)(?:[\W_]{0,3}(?:no|nr|numbers?|nummern?))?[\W_]{0,4}$",
    re.IGNORECASE,
)
# Between the numbers of one list ("versions 5.2.1.4, 5.2.1.5 and 5.3.0.1"): what goes for the first goes for
# all.
_BETWEEN = re.compile(
    r"\s*(?:[,;/&+–—、-]\s*)?(?:and|or|to|through|und|oder|bis|et|ou|à|y|o|e|a|en|of|i|lub|и|или|до|和)?\s*",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    rf"\.{FILE_ENDING}|[-~+]\d*[A-Za-z]"
    r"|\s(?:alpha|beta|builds?|driver|firmware|hotfix|patch|rc|releases?|updates?|versions?)\b",
    re.IGNORECASE,
)
# What only an address has: a port or the length of a prefix behind it, a scheme or a user before it.
_HAS_PORT = re.compile(r":\d|/\d{1,2}(?![\w.])")
_HAS_SCHEME = re.compile(r"(?:[A-Za-z]://|@)$")
# A word joined to it names a program or a file (Chrome/70.0.35.77, libfoo-1.2.3.4), unless it is a word for
# an address.
_JOINED_NAME = re.compile(r"(?:^|[\s(\[{\"'<>,;=|])([^\W_][\w+.]*(?:-[\w+.]+)*)(?:[-_/]|==)$")
_NETWORK_NAME = re.compile(
    r"(?:^|[-_.])(?:addr|address|client|dns|dst|gateway|hosts?|ip|ipv4|net|proxy|route|server|src|via|whois)$",
    re.IGNORECASE,
)
# What alone does not tell, but does of numbers as small as those of versions and sections: a heading's place,
# a name in capitals before it, "see". Public resolvers are as small, and addresses.
_SMALL: Final = 30
_RESOLVERS: Final = (b"8.8.4.4", b"8.8.8.8", b"9.9.9.9")
_LINE_BEGINS = re.compile(r"(?:^|\n)\s*$")
_HEADING_BEHIND = re.compile(r"\.?[ \t]+[A-ZÀ-ÞΑ-ΩА-Я]\w*[a-zß-ÿα-ωа-я ]")
_NAME_BEFORE = re.compile(
    r"(?<![\w@/-])(?!(?:Allow|At|Banned|Blocked|By|Client|Cloudflare|DNS|Deny|From|Gateway|Google|Host|Nameserver|On|PING"
    r"|Ping|Pinging|Proxy|Resolver|Router|Server|To|User|Via)\b)[A-Z](?:[\w+.-]*[\w+])?\s$"
)
_SEE_BEFORE = re.compile(
    r"(?<!\w)(?:cf\.?|in|per|see|siehe|since|under|vgl\.?|voir|véase)\s(?:also\s)?$", re.IGNORECASE
)


def find_ips(data: bytes) -> Iterator[tuple[int, int]]:
    """Byte spans of public IPv4 and IPv6 addresses; a longer dotted number (an OID), and one that its
    surroundings call a version, a section or a file, is none."""
    yield from _find_ipv4(data)
    for match in _IPV6.finditer(data):
        start, end = match.span()
        # IPv6 may end in two colons, and a sentence may put one or two behind it: "at 2606:4700::1111: it
        # answers"
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
    """Whether what stands around four numbers calls them something else than an address. `last`: the four
    numbers before them, where those were none."""
    before, behind = text_before(data, start, _NEAR), text_behind(data, end, _NEAR // 2)
    if _HAS_PORT.match(behind) or _HAS_SCHEME.search(before) or _CALLED_ADDRESS.search(before):
        return False
    if _CALLED_VERSION.search(before) or _BEHIND.match(behind):
        return True
    joined = _JOINED_NAME.search(before)
    if joined:
        return not _NETWORK_NAME.search(joined[1])
    largest = max(map(int, data[start:end].split(b".")))
    if largest > _LARGEST_PART:
        return False
    if _CALLED_PART.search(before):
        return True
    if largest > _SMALL or data[start:end] in _RESOLVERS:
        return False
    if (
        last is not None
        and start - last[1] <= _NEAR
        and _BETWEEN.fullmatch(data[last[1] : start].decode("utf-8"))
    ):
        return True
    is_heading = _LINE_BEGINS.search(before) and _HEADING_BEHIND.match(behind)
    return bool(is_heading or _NAME_BEFORE.search(before) or _SEE_BEFORE.search(before))

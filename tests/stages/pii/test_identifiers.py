"""Digits that are part of an identifier, an ISBN or a company's number stay; brackets around a number stay
too."""

from __future__ import annotations

import pytest

from stages.pii.scrub import scrub

# (text, country): valid numbers of that country, were it not for what stands around them.
LEFT = [
    ("Deployed hosted-eu-20260812-09 today.", "US"),
    ("Deployed hosted-eu-20260812-09 today.", "DE"),
    ("host eu-west-1-4155552671 is down", "US"),
    ("case JIRA-20260812-01", "US"),
    ("abc.415-555-2671 and x_415-555-2671", "US"),
    ("assets/415-555-2671 415-555-2671-b 415-555-2671.pdf 415-555-2671_b", "US"),
    ("Teil AB-030-901820", "DE"),
    ("серия АБ-495-123-45-67", "RU"),
    ("20260812-0430", "DE"),
    ("ISBN 978-3-16-148410-0, ISBN-13: 978-0-306-40615-7", "DE"),
    ("ISBN 84-376-0494-X", "ES"),
    ("SIREN 552 100 554, TVA FR 40 552 100 554", "FR"),
    ("NIP 525-10-08-028", "PL"),
    ("order no. 415-555-2671, Tracking 650-253-0000", "US"),
    ("id (2127365000), [4155552671], “6502530000”, {6502530000}, «6502530000», （6502530000）", "US"),
    ("(2125550187)", "US"),
    ("tx-4012888888881881-a ref_5555555555554444 img/4012888888881881.jpg", "US"),
    ("PO-536-22-8145-B part_219-09-9998 A/401-55-2034", "US"),
]


@pytest.mark.parametrize(("text", "region"), LEFT)
def test_digits_of_an_identifier_stay(text, region):
    assert scrub(text, region=region).text == text


FOUND = [
    ("call (2125550187)", "call (<PHONE>)"),
    ("tel: [2127365000]", "tel: [<PHONE>]"),
    ("phone ((2127365000))", "phone ((<PHONE>))"),
    ("电话（2127365000）", "电话（<PHONE>）"),
    ("phone='2127365000', fax: “2127365001”", "phone='<PHONE>', fax: “<PHONE>”"),
    ("(call 6502530000)", "(call <PHONE>)"),
    ("call ( 6502530000 )", "call ( <PHONE> )"),
    ("(+49 30 901820) [+49 30 901821]", "(<PHONE>) [<PHONE>]"),
    ("[650-253-0000], (650-253-0001 or 650-253-0002)", "[<PHONE>], (<PHONE> or <PHONE>)"),
    ("((650) 253-0000) and (650) 253-0001", "(<PHONE>) and <PHONE>"),
    ("my phone number is 6502530000; Tel.-Nr.: 6502530001", "my phone number is <PHONE>; Tel.-Nr.: <PHONE>"),
    ("Tel.650-253-0000, Fax-650-253-0001, phone_650-253-0002", "Tel.<PHONE>, Fax-<PHONE>, phone_<PHONE>"),
    ("no.650-253-0000, 650-253-0001. And", "no.<PHONE>, <PHONE>. And"),
    ("ref-+49 30 901820", "ref-<PHONE>"),
    ("card-4012888888881881, Visa/4012888888881881", "card-<CREDIT_CARD>, Visa/<CREDIT_CARD>"),
    ("SSN-536-22-8145, (536-22-8145)", "SSN-<US_SSN>, (<US_SSN>)"),
]


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_a_number_is_found_without_the_brackets_and_names_beside_it(text, expected):
    assert scrub(text).text == expected

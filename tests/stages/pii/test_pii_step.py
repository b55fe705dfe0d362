"""Personal data: what is found, what is left, and that scrubbing twice is scrubbing once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from phonenumbers import SUPPORTED_REGIONS

from lineage.recipe import RecipeError
from stages.document import Document, Edit, Rejection
from stages.linear import linear
from stages.pii import phones
from stages.pii.numbers import IBAN_LENGTHS, is_card, is_iban, luhn_holds
from stages.pii.options import KINDS, PiiTable, check_phone_region
from stages.pii.phones import find_phones
from stages.pii.scrub import ANY_OF_GATES, GATES, ORDER, PLACEHOLDERS, _find, scrub
from stages.pii.step import PiiStep

FOUND = [
    ("email", "write to jane.doe+news@mail.example.co.uk today", "write to <EMAIL> today"),
    ("email", "<jane@example.com>, (bob_1@example.org).", "<<EMAIL>>, (<EMAIL>)."),
    ("email", "mailto:o'neil@example.com?subject=x", "mailto:<EMAIL>?subject=x"),
    ("email", "josé@exemple.fr und jürgen@müller.de", "<EMAIL> und <EMAIL>"),
    ("email", "иван@пример.рф", "<EMAIL>"),
    ("email", "联系abc@qq.com或电话", "联系<EMAIL>或电话"),
    ("email", "UPPER@EXAMPLE.COM", "<EMAIL>"),
    ("phone", "call (650) 253-0000 now", "call <PHONE> now"),
    ("phone", "call 650-253-0000 now", "call <PHONE> now"),
    ("phone", "Tel.: +49 30 901820", "Tel.: <PHONE>"),
    ("phone", "+44 (0)20 7946 0958, London", "<PHONE>, London"),
    ("phone", "+33\xa01\xa042\xa068\xa053\xa000", "<PHONE>"),
    ("phone", "tel 6502530000", "tel <PHONE>"),
    ("ip", "from 8.8.8.8, then 1.1.1.1.", "from <IP>, then <IP>."),
    ("ip", "http://93.184.216.34:8080/", "http://<IP>:8080/"),
    ("ip", "[2607:f8b0:4005:805::200e] answered", "[<IP>] answered"),
    ("ip", "2a00:1450:4001:82a:0:0:0:200e", "<IP>"),
    ("ip", "server at 2606:4700:4700::1111: it answers.", "server at <IP>: it answers."),
    ("ip", "2606:4700:4700::1111::\n\n  x", "<IP>::\n\n  x"),
    ("ip", "net 2606:4700:: and 2606:4700::: more", "net <IP> and <IP>: more"),
    ("credit_card", "paid with 4111111111111111 yesterday", "paid with <CREDIT_CARD> yesterday"),
    ("credit_card", "5500-0000-0000-0004", "<CREDIT_CARD>"),
    ("credit_card", "3782 822463 10005", "<CREDIT_CARD>"),
    ("credit_card", "6011 1111 1111 1117 and more", "<CREDIT_CARD> and more"),
    ("credit_card", "no. 12 4111 1111 1111 1111 123", "no. 12 <CREDIT_CARD> 123"),
    ("credit_card", "4222222222222", "<CREDIT_CARD>"),
    ("credit_card", "Paid 9.99 4111 1111 1111 1111 today.", "Paid 9.99 <CREDIT_CARD> today."),
    ("credit_card", "Card 4111 1111 1111 1111 2nd try.", "Card <CREDIT_CARD> 2nd try."),
    ("credit_card", "Q4 4111 1111 1111 1111", "Q4 <CREDIT_CARD>"),
    ("credit_card", "Q4 4111111111111111 2.50", "Q4 <CREDIT_CARD> 2.50"),
    ("credit_card", "4111\xa01111\xa01111\xa01111", "<CREDIT_CARD>"),
    ("credit_card", "6011\u202f1111\u202f1111\u202f1117", "<CREDIT_CARD>"),
    ("credit_card", "9.99\xa04111 1111 1111 1111\u20092nd", "9.99\xa0<CREDIT_CARD>\u20092nd"),
    ("iban", "IBAN DE89 3704 0044 0532 0130 00", "IBAN <IBAN>"),
    ("iban", "IBAN:\xa0DE89\xa03704\xa00044\xa00532\xa00130\xa000", "IBAN:\xa0<IBAN>"),
    ("iban", "GB82\u2009WEST\u20091234\u20095698\u20097654\u200932", "<IBAN>"),
    ("iban", "GB82WEST12345698765432.", "<IBAN>."),
    ("iban", "DE89370400440532013000 BIC COBADEFFXXX", "<IBAN> BIC COBADEFFXXX"),
    ("iban", "FR14 2004 1010 0505 0001 3M02 606", "<IBAN>"),
    ("iban", "FY24 BUDGET TRANSFER DE89370400440532013000 DONE", "FY24 BUDGET TRANSFER <IBAN> DONE"),
    ("iban", "DE12 3456 TO DE89 3704 0044 0532 0130 00", "DE12 3456 TO <IBAN>"),
    ("us_ssn", "SSN 219-09-9999.", "SSN <US_SSN>."),
    ("secret", "key=AKIAIOSFODNN7EXAMPLE", "key=<SECRET>"),
    ("secret", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "<SECRET>"),
    ("email", "http://site.com/page?email=john@x.com&b=1", "http://site.com/page?email=<EMAIL>&b=1"),
    ("email", "write to 'john@x.com', o'brien@x.com", "write to '<EMAIL>', <EMAIL>"),
    ("phone", "Diensttelefon 6502530000, tel. 6502530001", "Diensttelefon <PHONE>, tel. <PHONE>"),
    ("secret", "ghp_" + "a1B2" * 9, "<SECRET>"),
    ("secret", "github_pat_" + "A" * 22 + "_" + "b" * 59, "<SECRET>"),
    ("secret", "glpat-" + "xY1_" * 5, "<SECRET>"),
    ("secret", "xoxb-" + "123456789012-abcdef", "<SECRET>"),
    ("secret", "https://hooks.slack.com/services/T00000000/B00000000/" + "Xy1" * 8, "https://<SECRET>"),
    ("secret", "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc", "<SECRET>"),
    ("secret", "AIza" + "SyA" + "0" * 32, "<SECRET>"),
    ("secret", "hf_" + "abcdefghij" * 3 + "abcd", "<SECRET>"),
    ("secret", "SG." + "a" * 22 + "." + "b" * 43, "<SECRET>"),
    ("secret", "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", "Bearer <SECRET>"),
    (
        "secret",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIE\nabc=\n-----END RSA PRIVATE"
        " KEY-----",
        "<SECRET>",
    ),
    ("secret", "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n" + "B" * 64 + "\nand then", "<SECRET>\nand then"),
]  # fmt: skip

LEFT = [
    "@user liked it, icon@2x.png, a@b, user@localhost, x@1.2.3",
    "https://medium.com/@john.doe/my-post-123, https://www.threads.net/@john.doe",
    "hotel 6502530000, context 6502530000, recall 6502530000",
    "in 2019-2024, 1,234,567 people, 3.14159265358979, 12345678901234567890",
    "id 6502530000 and order 1234567890123456",
    "2024-01-15 12:30:45, 15.01.2024, 1/2/2003, 22.04.2020 10 Uhr, 2016-011092, [13.10.2021, 2021/2022",
    "version 1.2.3.4.5, OID 1.3.6.1.4.1, 10.0.0.1, 192.168.1.1, 127.0.0.1, 224.0.0.1, 999.1.1.1, 203.0.113.7",
    "std::vector a::b fe80::1 ::1 2001:db8::1 12:34:56",
    "04111111111111111000 x4111-1111-1111-1111 0.4111111111111111 9.41111111-1111-1111 4111 1111 1111 1111.5",
    "4f1-4111-1111-1111-1111-9, 4111 1111 1111 1111a, 4111-1111-1111-1111-9e, 2 4 41111111 11111111 9",
    "4111111111111112, 4111 1111 1111 1112, 0000000000000000, 1234567812345670",
    "DE89370400440532013001, XX82WEST12345698765432, GB82 WEST",
    "GB82WEST123456987<b>., DE89 3704 0044 0532 é130 00, FR1420041010050\n5000",
    "666-12-1234, 000-12-1234, 900-12-1234, 123-00-1234, 123-45-0000, 1123-45-67890, 123-45-6789-1",
    "AKIA, ghp_short, sk_live_, eyJ, pk_live_4eC39HqLyjWDarjtT1zdp7dc, skating-rink, the ASIAN market",
    "<EMAIL> <PHONE> <IP> <CREDIT_CARD> <IBAN> <US_SSN> <SECRET>",
    "",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "expected"), FOUND)
def test_each_kind_is_found_and_replaced_by_its_placeholder(kind, text, expected):
    scrubbed = scrub(text)
    assert scrubbed.text == expected
    assert set(scrubbed.counts) == {kind}
    assert scrubbed.counts[kind] == expected.count(f"<{kind.upper()}>")
    assert scrub(text, [kind]) == scrubbed
    assert scrub(text, [other for other in KINDS if other != kind]).counts.get(kind) is None


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("email", "redis://user:secretpw@cache.example.com:6379/0", None),
        ("email", "https://john:hunter22@example.com/x", None),
        ("email", "https://ghp_" + "a1B2" * 9 + "@github.com/x", None),
        ("email", "smtp://jo@example.com:pw123@mail.example.com", "smtp://<EMAIL>:pw123@mail.example.com"),
        ("email", "x@y.example, ftp://jo:pw@z.example", "<EMAIL>, ftp://jo:pw@z.example"),
        ("email", "https://jo:{password}@z.example, http://jo:$PASSWORD@z.example, a@z.example",
         "https://jo:{password}@z.example, http://jo:$PASSWORD@z.example, <EMAIL>"),
        ("email", "http://z.example:80/jo@z.example http://jo@z.example", "http://z.example:80/<EMAIL> http://<EMAIL>"),
        ("phone", "http://app:6502530000@db.example and 650-253-0000", "http://app:6502530000@db.example and <PHONE>"),
        ("ip", "amqp://app:93.184.216.34@queue of 93.184.216.34", "amqp://app:93.184.216.34@queue of <IP>"),
    ],
)  # fmt: skip
def test_a_kind_alone_does_not_take_what_is_of_another_kind(kind, text, expected):
    assert scrub(text, [kind]).text == (expected or text)
    assert scrub(scrub(text, [kind]).text, [kind]).counts == {}


_PERSONAL = st.sampled_from([text for _, text, _ in FOUND] + LEFT[:6])


@given(
    st.lists(_PERSONAL, max_size=4),
    st.sampled_from([" ", "\n", ":", "@", "//jo:", "-"]),
    st.sets(st.sampled_from(KINDS)),
)
@settings(max_examples=200, deadline=None)
def test_fewer_kinds_leave_what_they_lack_and_find_in_the_first_pass_what_all_find(texts, between, kinds):
    text = between.join(texts)
    data = text.encode()
    assert _find(data, sorted(kinds), "US") == [s for s in _find(data, KINDS, "US") if s[2] in kinds]


@pytest.mark.parametrize("text", LEFT)
def test_what_only_looks_like_personal_data_stays(text):
    assert scrub(text).text == text


def test_a_national_phone_number_counts_in_its_own_country():
    assert scrub("Ruf 030 901820 an", ["phone"], region="DE").text == "Ruf <PHONE> an"
    assert scrub("Ruf 030 901820 an", ["phone"], region="US").counts == {}


@pytest.mark.parametrize(
    "text", ["Jan 04 09:34 2021 \xa0", "Apidologie 34 (2003), 333 \u2013 337.", "2021, 16.45 Uhr"]
)
def test_digits_that_no_phone_number_joins_are_none(text):
    assert scrub(text, ["phone"], region="DE").counts == {}


@pytest.mark.parametrize("number", [
    "+1\u00a0212\u00a0–\u00a0736\u00a0–\u00a05000",
    "(212)\u00a0–\u00a0736\u00a0–\u00a05000",
    "+2010-0123-4567",
    "+2012-2345-6789",
    "+٩٦٦ ٥٠ ١٢٣ ٤٥٦٧",
    "+９１ ９８７６５ ４３２１０",
    "+९१ ९८७६५ ४३२१०",
])  # fmt: skip
def test_a_phone_number_is_found_whatever_digits_and_spaces_it_is_written_with(number):
    assert scrub(f"WhatsApp {number}, please").text == "WhatsApp <PHONE>, please"


ARMOR = "\n".join(
    ["-----BEGIN PGP PRIVATE KEY BLOCK-----", *["lQOYBFYJ1RcBCADKQ7u2Z6n3cXq0m8JbV1s9mF4h7e2rT5yU8iO0"] * 2]
)
NOTES = "BLOCK-----\nVersion: GnuPG v2\nComment: Made by x <x@y.org> - http://gnupg.example/~a\n\n"


@pytest.mark.parametrize("key", [
    ARMOR + "\n=AbCd\n-----END PGP PRIVATE KEY BLOCK-----",
    ARMOR.replace("BLOCK-----\n", NOTES) + "\n=AbCd\n-----END PGP PRIVATE KEY BLOCK-----",
    ARMOR.replace("BLOCK-----\n", NOTES),
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n" + "M" * 64,
])  # fmt: skip
def test_a_private_key_goes_with_its_headers_whole_or_cut_off(key):
    assert scrub(f"{key}\n\nNote: as above").text == "<SECRET>\n\nNote: as above"


@pytest.mark.parametrize("region", ["us", "UK", "XX", "", "ZZ", "001", "U S", " us", "Auto", "auto "])
def test_a_phone_region_that_is_no_country_is_refused_by_its_value(region):
    with pytest.raises(
        RecipeError, match=rf"pii\.phone_region = {region!r}: expected 'auto' or .*'GB'"
    ) as refused:
        check_phone_region(PiiTable(phone_region=region))
    assert refused.value.key == "pii.phone_region"
    assert ("did you mean 'US'" in str(refused.value)) == (region.strip() == "us")
    assert ("did you mean 'auto'" in str(refused.value)) == (region.strip().lower() == "auto")


def test_every_country_of_the_library_may_be_the_phone_region():
    assert PiiTable().phone_region == "auto"
    for region in ["auto", *sorted(SUPPORTED_REGIONS)]:
        check_phone_region(PiiTable(phone_region=region))


def test_a_list_of_phone_numbers_loses_each_of_them():
    text = "\n".join(f"+49 30 9018 {number}" for number in range(2000, 2300))
    assert scrub(text).text == "\n".join(["<PHONE>"] * 300)
    text = " and ".join(f"+49 30 9018 {number}" for number in range(2000, 2300))
    assert scrub(text).text == " and ".join(["<PHONE>"] * 300)


PHONES = [
    "+49 30 9018 2406",
    "(650-253-0000)",
    "(650) 253-0000",
    "call 6502530000",
    "+44 (0)20 7946 0958 ext. 12345678",
    "0032 2 555 12 12",
]
NO_PHONES = ["1234567", "15.01.2024", "1.234.567", "no. 7", "12345", "x", "é", "—", "\u3000", "+33\xa01\xa0"]
PHONE_LINES = st.lists(st.sampled_from(PHONES) | st.sampled_from(NO_PHONES), max_size=12).map(" a ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(PHONE_LINES, max_size=8), st.integers(min_value=100, max_value=400))
def test_a_phone_number_is_found_or_not_by_its_own_line_wherever_windows_end(lines, longest):
    alone = [[line.encode()[start:end] for start, end in find_phones(line.encode(), "US")] for line in lines]
    text = "\n".join(lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phones, "_LONGEST", longest)
        found = [text[start:end] for start, end in find_phones(text, "US")]
    assert found == [number for numbers in alone for number in numbers]


def test_where_finds_overlap_the_kind_that_comes_first_in_the_order_counts():
    assert ORDER.index("email") < ORDER.index("ip") < ORDER.index("phone")
    assert scrub("8.8.8.8@example.com").counts == {"email": 1}
    assert scrub("219-09-9999@example.com").text == "<EMAIL>"
    assert scrub("https://x:ghp_" + "a" * 36 + "@github.com").text == "https://x:<SECRET>@github.com"


def test_finds_are_counted_by_kind_in_a_mixed_text():
    scrubbed = scrub("a@b.co, c@d.co and 8.8.8.8; tel +1 650 253 0000 €")
    assert scrubbed.text == "<EMAIL>, <EMAIL> and <IP>; tel <PHONE> €"
    assert scrubbed.counts == {"email": 2, "ip": 1, "phone": 1}


PIECES = st.sampled_from(
    [text for _, text, _ in FOUND]
    + LEFT
    + list("@.-: +()0123456789aZ€<>\n")
    + ["4111 ", "555-", "DE89", "+1 ", "@b.co"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
@example("a@b.comc@d.com")
@example("+1 650 253 0000 650 253 0000 650 253 0000")
@example("1.1.1.1.1.1.1.1 8.8.8.8.8.8.8.8")
@example("4111111111111111-4111111111111111")
def test_scrubbing_a_scrubbed_text_changes_nothing(text):
    once = scrub(text)
    assert scrub(once.text).text == once.text
    assert sum(once.counts.values()) >= sum(
        once.text.count(mark.decode()) - text.count(mark.decode())
        for (mark,) in PLACEHOLDERS["named"].values()
    )


@settings(deadline=None)
@given(st.text())
def test_any_text_is_scrubbed_and_nothing_but_finds_changes(text):
    scrubbed = scrub(text)
    if not scrubbed.counts:
        assert scrubbed.text == text


@pytest.mark.hostile("stages/pii")
@pytest.mark.parametrize(
    "hostile",
    [
        "@",
        "a@",
        "a.",
        "1",
        "4111 ",
        "DE89 ",
        "2001:",
        "eyJ",
        "1.1.1.1.",
        "ghp_",
        "-----BEGIN PRIVATE KEY-----\n",
        "+1(",
    ],
)
def test_hostile_repetition_comes_to_an_end(hostile):
    text = hostile * (400_000 // len(hostile))
    assert isinstance(scrub(text).text, str)


@given(st.integers(min_value=0, max_value=10**18))
def test_luhn_catches_every_single_wrong_digit(number):
    digits = str(number)
    check = next(c for c in "0123456789" if luhn_holds(digits + c))
    assert not any(luhn_holds(digits + c) for c in "0123456789" if c != check)


def test_card_ranges_are_those_of_the_issuers():
    assert is_card("4111111111111111") and is_card("2223003122003222") and is_card("3530111333300000")
    assert not is_card("1111111111111117") and not is_card("41111111111111")


@given(st.sampled_from(sorted(IBAN_LENGTHS)), st.data())
def test_iban_check_digits_catch_every_other_pair(country, data):
    size = IBAN_LENGTHS[country] - 4
    account = data.draw(st.text("0123456789", min_size=size, max_size=size))
    valid = [
        f"{country}{check:02d}{account}"
        for check in range(2, 99)
        if is_iban(f"{country}{check:02d}{account}")
    ]
    assert len(valid) == 1


@settings(deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_the_one_pass_over_all_kinds_sees_what_each_kind_s_own_pass_sees(text):
    data = text.encode()
    assert {kind for kind, gate in GATES.items() if linear(gate).search(data)} == ANY_OF_GATES(data)
    for kind in KINDS:
        if scrub(text, [kind]).counts:
            assert kind in ANY_OF_GATES(data)


def test_the_one_pass_answers_rightly_where_its_memory_must_be_begun_anew():
    noise = "".join(
        f"{i:x}{i * 7919:o}" for i in range(20_000)
    ).encode()  # nearly each byte takes a state more
    assert len(noise) > 200_000
    for kind, sample in (
        ("us_ssn", b" 219-09-9999 "),
        ("email", b" a@b.co "),
        ("secret", b" AKIAIOSFODNN7EXAMPLE "),
    ):
        assert kind not in ANY_OF_GATES(noise)
        assert kind in ANY_OF_GATES(noise + sample + noise)


def test_the_step_leaves_an_edit_for_each_kind(make_document):
    document = PiiStep(PiiTable())(make_document(text="a@b.co, c@d.co, 8.8.8.8"))
    assert isinstance(document, Document)
    assert document.text == "<EMAIL>, <EMAIL>, <IP>"
    assert document.edits == (Edit(stage="pii", kind="email", count=2), Edit(stage="pii", kind="ip", count=1))


def test_a_clean_text_passes_unchanged(make_document):
    document = make_document(text="nothing here")
    assert PiiStep(PiiTable())(document) is document


def test_kinds_left_out_are_left_in(make_document):
    document = PiiStep(PiiTable(kinds=("ip",)))(make_document(text="a@b.co 8.8.8.8"))
    assert isinstance(document, Document)
    assert document.text == "a@b.co <IP>"


def test_drop_turns_the_document_down_with_the_number_of_finds(make_document):
    step = PiiStep(PiiTable(action="drop"))
    outcome = step(make_document(text="a@b.co, 8.8.8.8"))
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.rule, outcome.finding.value) == ("pii.dropped", 2)
    assert isinstance(step(make_document(text="nothing")), Document)


def test_finds_become_finewebs_texts_by_turns_and_stay_as_they_are_the_next_time():
    text = "a@mail.example.net b@mail.example.net c@mail.example.net at 8.8.4.4 and 9.9.9.9"
    scrubbed = scrub(text, ("email", "ip"), None, "fineweb")
    emails = ("email@example.com", "firstname.lastname@example.org", "email@example.com")
    assert scrubbed.text == " ".join(emails) + " at 22.214.171.124 and 126.96.36.199"
    assert scrubbed.counts == {"email": 3, "ip": 2}
    again = scrub(scrubbed.text, ("email", "ip"), None, "fineweb")
    assert (again.text, again.counts) == (scrubbed.text, {})

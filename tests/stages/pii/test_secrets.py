"""Secrets: each issuer's format is found, in a text and among punctuation; what only begins like one is
not."""

from __future__ import annotations

import random
import string

import pytest

from stages.linear import linear
from stages.pii import secrets
from stages.pii.scrub import GATES, scrub

LETTERS_DIGITS = string.ascii_letters + string.digits
URL_SAFE = LETTERS_DIGITS + "_-"
BASE64 = LETTERS_DIGITS + "+/"
HEX = "0123456789abcdef"
BASE32 = string.ascii_uppercase + "234567"


def written(number: int, *pieces: str | tuple[str, int]) -> str:
    """A token of a format: what is fixed, and (alphabet, length) of what is not. It ends in a letter or
    digit."""
    rng = random.Random(number)
    token = "".join(
        piece if isinstance(piece, str) else "".join(rng.choices(piece[0], k=piece[1])) for piece in pieces
    )
    return token if token[-1] not in "_-+/" else token[:-1] + "a"


UUID = ((HEX, 8), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 12))
FORMATS = {
    "AWS access key": ("AKIA", (BASE32, 16)),
    "AWS temporary key": ("ASIA", (BASE32, 16)),
    "AWS Bedrock": ("ABSKQmVkcm9ja0FQSUtleS", (BASE64, 110)),
    "Azure storage": ((BASE64, 76), "+ASt", (LETTERS_DIGITS, 6), "=="),
    "Azure Cosmos": ((LETTERS_DIGITS, 76), "ACDb", (LETTERS_DIGITS, 6), "=="),
    "Azure DevOps": ((LETTERS_DIGITS, 76), "AZDO", (LETTERS_DIGITS, 4)),
    "Azure client secret": ((LETTERS_DIGITS, 3), "8Q~", (LETTERS_DIGITS, 34)),
    "Twilio": ("SK", (HEX, 32)),
    "Mailgun": ("key-", (HEX, 32)),
    "Mailgun signing": ((HEX, 32), "-", (HEX, 8), "-", (HEX, 8)),
    "Mailchimp": ((HEX, 32), "-us12"),
    "Brevo": ("xkeysib-", (HEX, 64), "-", (LETTERS_DIGITS, 16)),
    "SendGrid": ("SG.", (URL_SAFE, 22), ".", (URL_SAFE, 43)),
    "Telegram": ("7", ("0123456789", 9), ":AA", (LETTERS_DIGITS, 33)),
    "Discord bot": ("N", (LETTERS_DIGITS, 25), ".", (URL_SAFE, 6), ".", (LETTERS_DIGITS, 38)),
    "Discord webhook": ("discord.com/api/webhooks/1", ("0123456789", 18), "/", (LETTERS_DIGITS, 68)),
    "Vault": ("hvs.", (URL_SAFE, 95)),
    "Vault batch": ("hvb.", (URL_SAFE, 150)),
    "Terraform": ((LETTERS_DIGITS, 14), ".atlasv1.", (LETTERS_DIGITS, 67)),
    "OpenAI": ("sk-", (LETTERS_DIGITS, 48)),
    "OpenAI project": ("sk-proj-", (URL_SAFE, 156)),
    "OpenAI service account": ("sk-svcacct-", (URL_SAFE, 120)),
    "OpenAI admin": ("sk-admin-", (URL_SAFE, 120)),
    "Anthropic": ("sk-ant-api03-", (URL_SAFE, 93), "AA"),
    "Anthropic admin": ("sk-ant-admin01-", (URL_SAFE, 93), "AA"),
    "OpenRouter": ("sk-or-v1-", (HEX, 64)),
    "Groq": ("gsk_", (LETTERS_DIGITS, 52)),
    "xAI": ("xai-", (LETTERS_DIGITS, 80)),
    "Perplexity": ("pplx-", (LETTERS_DIGITS, 48)),
    "Replicate": ("r8_", (LETTERS_DIGITS, 37)),
    "Hugging Face": ("hf_", (string.ascii_letters, 34)),
    "Databricks": ("dapi", (HEX, 32)),
    "Databricks of several": ("dapi", (HEX, 32), "-2"),
    "Shopify": ("shpat_", (HEX, 32)),
    "Shopify custom": ("shpca_", (HEX, 32)),
    "Shopify private": ("shppa_", (HEX, 32)),
    "Shopify shared": ("shpss_", (HEX, 32)),
    "Square": ("sq0atp-", (URL_SAFE, 22)),
    "Square secret": ("sq0csp-", (URL_SAFE, 43)),
    "Square access": ("EAAA", (LETTERS_DIGITS, 60)),
    "Stripe": ("sk_live_", (LETTERS_DIGITS, 24)),
    "Stripe restricted": ("rk_test_", (LETTERS_DIGITS, 99)),
    "Plaid": ("access-production-", *UUID),
    "Google API": ("AIza", (LETTERS_DIGITS, 35)),
    "Google OAuth": ("GOCSPX-", (LETTERS_DIGITS, 28)),
    "Google refresh": ("1//0", (URL_SAFE, 60)),
    "Google refresh of two digits": ("1//03", (URL_SAFE, 99)),
    "Google access": ("ya29.", (URL_SAFE, 150)),
    "GitHub": ("ghp_", (LETTERS_DIGITS, 36)),
    "GitHub OAuth": ("gho_", (LETTERS_DIGITS, 36)),
    "GitHub user": ("ghu_", (LETTERS_DIGITS, 36)),
    "GitHub server": ("ghs_", (LETTERS_DIGITS, 36)),
    "GitHub refresh": ("ghr_", (LETTERS_DIGITS, 76)),
    "GitHub fine-grained": ("github_pat_", (LETTERS_DIGITS, 22), "_", (LETTERS_DIGITS, 59)),
    "GitLab": ("glpat-", (URL_SAFE, 20)),
    "GitLab routable": ("glpat-", (URL_SAFE, 27), ".01", (HEX, 7)),
    "GitLab deploy": ("gldt-", (URL_SAFE, 20)),
    "GitLab OAuth": ("gloas-", (HEX, 64)),
    "Slack bot": ("xoxb-1234567890-1234567890-", (LETTERS_DIGITS, 24)),
    "Slack configuration": ("xoxe.xoxp-1-", (LETTERS_DIGITS, 160)),
    "Slack app": ("xapp-1-A0", (string.ascii_uppercase, 9), "-1234567890-", (HEX, 64)),
    "npm": ("npm_", (LETTERS_DIGITS, 36)),
    "PyPI": ("pypi-AgEIcHlwaS5vcmc", (URL_SAFE, 130)),
    "RubyGems": ("rubygems_", (HEX, 48)),
    "Docker": ("dckr_pat_", (URL_SAFE, 27)),
    "DigitalOcean": ("dop_v1_", (HEX, 64)),
    "Cloudflare origin": ("v1.0-", (HEX, 24), "-", (HEX, 146)),
    "Heroku": ("HRKU-AA", (URL_SAFE, 58)),
    "Pulumi": ("pul-", (HEX, 40)),
    "Supabase": ("sbp_", (HEX, 40)),
    "Tailscale": ("tskey-auth-k", (LETTERS_DIGITS, 11), "-", (LETTERS_DIGITS, 32)),
    "Alibaba": ("LTAI", (LETTERS_DIGITS, 20)),
    "Postman": ("PMAK-", (HEX, 24), "-", (HEX, 34)),
    "New Relic": ("NRAK-", (string.ascii_uppercase, 27)),
    "Doppler": ("dp.pt.", (LETTERS_DIGITS, 43)),
    "Doppler service": ("dp.st.prd.", (LETTERS_DIGITS, 43)),
    "Linear": ("lin_api_", (LETTERS_DIGITS, 40)),
    "Notion": ("ntn_", ("0123456789", 11), (LETTERS_DIGITS, 35)),
    "Notion of old": ("secret_", (LETTERS_DIGITS, 43)),
    "Airtable": ("pat", (LETTERS_DIGITS, 14), ".", (HEX, 64)),
    "Atlassian": ("ATATT3", (URL_SAFE, 186)),
    "Grafana": ("glsa_", (LETTERS_DIGITS, 32), "_", (HEX, 8)),
    "Sentry": ("sntryu_", (HEX, 64)),
    "HubSpot": ("pat-na1-", *UUID),
    "Dynatrace": ("dt0c01.", (BASE32, 24), ".", (BASE32, 64)),
    "JSON web token": ("eyJ", (URL_SAFE, 30), ".eyJ", (URL_SAFE, 80), ".", (URL_SAFE, 43)),
}  # fmt: skip
BY_NAME = {
    "AWS": ("AWS_SECRET_ACCESS_KEY=", (BASE64, 40)),
    "AWS in JSON": ('SecretAccessKey": "', (BASE64, 40)),
    "Azure": ("AccountKey=", (BASE64, 86), "=="),
    "Azure bus": ("SharedAccessKey=", (BASE64, 43), "="),
    "Twilio": ("TWILIO_AUTH_TOKEN=", (HEX, 32)),
    "Cloudflare": ("CLOUDFLARE_API_TOKEN: ", (URL_SAFE, 40)),
    "Heroku": ("HEROKU_API_KEY=", *UUID),
}


@pytest.mark.parametrize("issuer", FORMATS)
@pytest.mark.parametrize(
    "around", ["{}", "key = {}", 'token: "{}",', "TOKEN={}\nOTHER=1", "a `{}` b", "({})"]
)
def test_each_format_is_found_whole(issuer, around):
    for number in range(5):
        token = written(number, *FORMATS[issuer])
        assert scrub(around.format(token), ["secret"]).text == around.format("<SECRET>"), token


@pytest.mark.parametrize("issuer", BY_NAME)
def test_a_key_without_a_format_is_found_by_the_name_it_is_assigned_to(issuer):
    for number in range(5):
        line = written(number, *BY_NAME[issuer])
        value = line[len(str(BY_NAME[issuer][0])) :].rstrip("=")
        scrubbed = scrub(f"# {line}\nnext", ["secret"]).text
        assert "<SECRET>" in scrubbed and value not in scrubbed and scrubbed.endswith("\nnext")


def test_a_slack_hook_and_a_shared_access_signature_are_found():
    hook = written(
        1, "https://hooks.slack.com/services/T0", (BASE32, 8), "/B0", (BASE32, 9), "/", (LETTERS_DIGITS, 24)
    )
    assert scrub(hook).text == "https://<SECRET>"
    link = written(2, "https://a.blob.core.windows.net/c?sv=2022-11-02&sig=", (LETTERS_DIGITS, 43))
    assert (
        scrub(f"{link}%3D&se=2030").text
        == "https://a.blob.core.windows.net/c?sv=2022-11-02&sig=<SECRET>&se=2030"
    )


PLACEHOLDERS = [
    "sk-" + "x" * 48,
    "sk-proj-" + "x" * 60,
    "ghp_" + "x" * 36,
    "glpat-" + "X" * 20,
    "AIzaSy" + "X" * 33,
    "xoxb-xxxxxxxxxxxx-xxxxxxxxxxxx",
    "https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24,
    "hf_" + "x" * 34,
    "api_key: YOUR_API_KEY",
    "sk-ant-api03-<your key here>",
    "sk_live_YOUR_SECRET_KEY_HERE",
    "dapi" + "x" * 32,
    "AccountKey=<account-key>;EndpointSuffix=core.windows.net",
    "AWS_SECRET_ACCESS_KEY=" + "x" * 40,
    "SG.xxxxxxxxxxxxxxxxxxxxxx." + "x" * 43,
    "pypi-AgEI" + "x" * 60,
    "sk-proj-YOUR_API_KEY_GOES_IN_HERE_AND_NOWHERE_ELSE_PLEASE",
]
OTHERS = [
    "sk-circle-fade-dot-with-a-long-name-in-a-stylesheet-of-a-site",
    "dapi_client gsk_config xai-grok-mini npm_config_registry hf_hub_download pat-a-cake r8_000",
    "https://example.org/glimt-uebersinnliches-spiel-fuer-die-brille-angekuendigt/",
    "glft-2026-summary-of-everything-that-we-read"
    " sk-proj-a-name-that-is-long-enough-to-be-taken-for-one-of-theirs",
    "SKU SK12 key-value hvs. 1//02 glsa_ shpat_ EAAA AKIA",
    "3f2b8c1e-7d44-4a0b-9c55-1e2d3c4b5a69",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI",
    "pk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "telegram 12:34:56 1234567890:Abc",
]


@pytest.mark.parametrize("text", PLACEHOLDERS + OTHERS)
def test_a_placeholder_and_what_only_begins_like_a_secret_stay(text):
    assert scrub(text, ["secret"]).text == text


def test_hashes_ids_and_images_hold_no_secret():
    rng = random.Random(8)
    for _ in range(200):
        size = rng.choice([32, 40, 56, 64, 96, 128])
        for prefix in ("", "sha256:", "md5 ", "commit ", "etag="):
            text = prefix + "".join(rng.choices(HEX, k=size))
            assert scrub(text, ["secret"]).text == text
    for kind in ("image/png", "font/woff2", "application/wasm"):
        text = f"data:{kind};base64," + "".join(rng.choices(BASE64, k=100_000)) + "=="
        assert scrub(text, ["secret"]).text == text
        text = f"data:{kind};base64," + "".join(rng.choices("AAAAAAAAAAE+/B", k=100_000)) + "=="
        assert scrub(text, ["secret"]).text == text


def test_every_secret_holds_what_the_one_pass_looks_for():
    gate = linear(GATES["secret"])
    for known in secrets._ALL:
        mark = linear(known.mark)
        for issuer, pieces in FORMATS.items():
            token = written(3, *pieces).encode()
            if linear(known.pattern).search(token):
                assert mark.search(token) and gate.search(token), issuer


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("redis://:p4ssw0rdLong@10.0.0.5:6379/0", "redis://:<SECRET>@10.0.0.5:6379/0"),
        ("https://user:hunter2secret@10.0.0.5/admin", "https://user:<SECRET>@10.0.0.5/admin"),
        ("amqp://svc:Zk9qLw22Rt@queue:5672", "amqp://svc:<SECRET>@queue:5672"),
        (
            "postgres://app:Zk9qLw22Rt@db.example.net:5432/prod",
            "postgres://app:<SECRET>@db.example.net:5432/prod",
        ),
        ("mongodb+srv://u:p%40s%2Fs@h.x.net/db", "mongodb+srv://u:<SECRET>@h.x.net/db"),
        ("https://u:a@b@c.org/", "https://u:<SECRET>@c.org/"),
        ("https://a:b:c@h", "https://a:<SECRET>@h"),
        ("ftp://jo@x.org:pw1@[2001:db8::1]/", "ftp://<EMAIL>:<SECRET>@[2001:db8::1]/"),
        ("jdbc:mysql://root:s3cret@${HOST}/x", "jdbc:mysql://root:<SECRET>@${HOST}/x"),
        ("http://u:pw@h,http://u2:pw2@h2", "http://u:<SECRET>@h,http://u2:<SECRET>@h2"),
        ("https://0123456789abcdef0123:x-oauth-basic@h/x", "https://<SECRET>:x-oauth-basic@h/x"),
        ("https://tok3n_aaaaaaaaaaaaaaaaaa:@h/v1", "https://<SECRET>:@h/v1"),
        (f"https://ghp_{'a1B2' * 9}@github.com/x/y", "https://<SECRET>@github.com/x/y"),
    ],
)
def test_a_password_in_a_url_is_a_secret_whatever_its_scheme_and_host(text, scrubbed):
    assert scrub(f"Set it to {text} first.").text == f"Set it to {scrubbed} first."
    assert not scrub(scrubbed).counts.get("secret")


@pytest.mark.parametrize(
    "text",
    [
        "https://${USER}:${PASSWORD}@host/", "https://{user}:{password}@{host}", "https://user:****@host",
        "https://user:%s@host", "https://$USER:$PASS@host", "http://example.org:8080/path/@me",
        "https://example.org/?a=b:c@d", "http://example.org:80，联系@某人", "ssh://git@host:22/x",
        "see https://h:1 @me",
        "https://user:YOUR_PASSWORD@host", "https://anna@host/", "https://medium.com/@me:hi@x",
    ],
)  # fmt: skip
def test_what_stands_for_a_password_or_only_looks_like_one_stays(text):
    assert scrub(text, ["secret"]).text == text

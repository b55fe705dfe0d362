"""Keys and tokens that open something: formats as their issuers publish them, so that a match is hardly ever
chance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from stages.linear import AnyOf, linear


class _Format(NamedTuple):
    """The beginning that every secret of a format has, cheap to search for, and the whole of it; where the
    pattern has a group, that is the secret."""

    mark: bytes
    pattern: bytes


_ASSIGNED: Final = rb"[\"']?\s{0,4}(?:[=:]{1,2}>?|=>)\s{0,4}[\"'`]?"
"""Between a name and its value, in the ways of shells, programs, JSON and YAML."""
_HEX: Final = rb"[a-f0-9]"
_USER_INFO: Final = rb"[!$-&(-.0-;=@-Z\[-~]"
"""What a user and a password in a URL hold: printable ASCII but for quotes, white space and `<>/?#`, which end
them (RFC 3986, section 3.2.1)."""
_UUID: Final = rb"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}"
_URL_MARK: Final = rb"://[!$-&(-.0-;=@-Z\[-~]*@"

# Sources besides those named: GitHub Docs, "Supported secret scanning patterns" (what issuers registered),
# and the rules of gitleaks (MIT), which keep to the issuers' own descriptions.
_FORMATS: Final = (
    # AWS: unique identifiers of access keys and of temporary ones (IAM user guide, "IAM identifiers"), base
    # 32
    _Format(rb"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{4}", rb"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    # AWS: a secret access key is 40 characters of base 64, recognised by the name it is assigned to
    _Format(
        rb"(?i:secret_?access_?key|aws_?secret)",
        rb"(?i:aws_?secret_?(?:access_?)?key|secret_?access_?key)" + _ASSIGNED + rb"[A-Za-z0-9/+]{40}\b",
    ),
    # AWS Bedrock: long-lived keys are base 64 of "BedrockAPIKey-…" behind ABSK (Bedrock user guide, "API
    # keys")
    _Format(rb"ABSKQmVkcm9ja0FQSUtleS", rb"\bABSKQmVkcm9ja0FQSUtleS[A-Za-z0-9+/]{80,260}={0,2}"),
    # Azure: keys of storage and other services in connection strings, and on their own the keys that name
    # their service ("Azure identifiable keys": six characters of signature, before the last of the key);
    # client secrets of Entra ID
    _Format(
        rb"(?i:account_?key|shared_?access_?key)",
        rb"(?i:account_?key|shared_?access_?key)"
        + _ASSIGNED
        + rb"(?:[A-Za-z0-9+/]{86}==|[A-Za-z0-9+/]{43}=)",
    ),
    _Format(
        rb"(?:\+ASt|\+ABa|\+AMC|ACDb)[A-Za-z0-9+/]{6}==",
        rb"(?:^|[^A-Za-z0-9+/])([A-Za-z0-9+/]{76}(?:\+ASt|\+ABa|\+AMC|ACDb)[A-Za-z0-9+/]{6}==)",
    ),
    _Format(rb"AZDO[A-Za-z0-9]{4}", rb"\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b"),
    _Format(
        rb"\dQ~",
        rb"(?:^|[^A-Za-z0-9_~.-])([A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34})(?:$|[^A-Za-z0-9_~-])",
    ),
    # Azure: the signature of a shared access signature (Azure Storage, "Create a service SAS")
    _Format(rb"[?&]sig=", rb"[?&]sig=([A-Za-z0-9%+/]{43,80}(?:%3[Dd]|=))"),
    # Twilio: API keys (Twilio docs, "API keys"), and auth tokens by the name they are assigned to
    _Format(rb"\bSK[0-9a-f]{8}", rb"\bSK[0-9a-f]{32}\b"),
    # Keys that are hexadecimal or base 64 with nothing of their own: known by the name they are assigned to
    _Format(
        rb"(?i:twilio|cloudflare|datadog|mailchimp|mailgun|heroku)",
        rb"(?i:(?:twilio|cloudflare|datadog|mailchimp|mailgun|heroku)[a-z0-9_.-]{0,24}(?:token|key|secret))"
        + _ASSIGNED
        + rb"(?:"
        + _UUID
        + rb"|[A-Za-z0-9_-]{32,64})\b",
    ),
    # Mailgun: API keys, and HTTP signing keys (Mailgun documentation, "Authentication"); Mailchimp; Brevo
    _Format(rb"\bkey-" + _HEX + rb"{8}", rb"\bkey-" + _HEX + rb"{32}\b"),
    _Format(
        rb"-" + _HEX + rb"{8}-" + _HEX + rb"{8}\b",
        rb"\b" + _HEX + rb"{32}-" + _HEX + rb"{8}-" + _HEX + rb"{8}\b",
    ),
    _Format(_HEX + rb"-us\d", rb"\b" + _HEX + rb"{32}-us\d{1,2}\b"),
    _Format(rb"xkeysib-", rb"\bxkeysib-" + _HEX + rb"{64}-[A-Za-z0-9]{16}\b"),
    _Format(rb"SG\.[A-Za-z0-9_-]{22}", rb"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    # Telegram: the bot's number, a colon, and 35 characters that begin with AA (Bot API, "Authorizing your
    # bot")
    _Format(
        rb"\d:AA[A-Za-z0-9_-]",
        rb"(?:^|[^0-9A-Za-z]|\bbot)([0-9]{8,10}:AA[A-Za-z0-9_-]{33})(?:$|[^A-Za-z0-9_-])",
    ),
    # Discord: bot tokens are the bot's number in base 64 (so M, N or O first), a time and a MAC; incoming
    # webhooks
    _Format(
        rb"\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{8}",
        rb"(?:^|[^A-Za-z0-9_.-])([MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40})(?:$|[^A-Za-z0-9_-])",
    ),
    _Format(rb"api/webhooks/\d", rb"\bdiscord(?:app)?\.com/api/webhooks/\d{17,20}/[A-Za-z0-9_-]{60,80}"),
    # HashiCorp: Vault's service, batch and recovery tokens (Vault docs, "Tokens"); Terraform Cloud
    _Format(rb"\bhv[sbr]\.", rb"\bhv[sbr]\.[A-Za-z0-9_-]{24,300}"),
    _Format(rb"\.atlasv1\.", rb"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}"),
    # Model services: OpenAI (project, service account and admin keys; the older ones hold "OpenAI" in base
    # 64), Anthropic, OpenRouter, Groq, xAI, Perplexity, Replicate, Hugging Face
    _Format(
        rb"\bsk-[A-Za-z0-9_-]{20}",
        rb"\bsk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{40,}|[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{48}\b"
        rb"|ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{80,}|or-v1-[a-f0-9]{64}\b)",
    ),
    _Format(rb"\bgsk_[A-Za-z0-9]{8}", rb"\bgsk_[A-Za-z0-9]{52}\b"),
    _Format(rb"\bxai-[A-Za-z0-9]{8}", rb"\bxai-[A-Za-z0-9]{70,90}\b"),
    _Format(rb"\bpplx-", rb"\bpplx-[A-Za-z0-9]{48}\b"),
    _Format(rb"\br8_", rb"\br8_[A-Za-z0-9]{37}\b"),
    _Format(rb"\b(?:hf|api_org)_", rb"\b(?:hf|api_org)_[A-Za-z0-9]{34}\b"),
    # Databricks: personal access tokens, where there are several with a number behind
    _Format(rb"\bdapi" + _HEX + rb"{8}", rb"\bdapi" + _HEX + rb"{32}(?:-\d)?\b"),
    # Shopify: access tokens and shared secrets (shopify.dev, "Access token prefixes"); Square; Stripe: secret
    # and restricted keys, webhook secrets (docs.stripe.com/keys), publishable ones are public; Plaid
    _Format(rb"\bshp(?:at|ca|pa|ss|tka)_", rb"\bshp(?:at|ca|pa|ss|tka)_[a-fA-F0-9]{32}\b"),
    _Format(rb"\bsq0(?:atp|csp|idb)-", rb"\bsq0(?:atp|csp|idb)-[A-Za-z0-9_-]{22,43}"),
    _Format(
        rb"EAAA[A-Za-z0-9_-]{8}", rb"(?:^|[^A-Za-z0-9+/_-])(EAAA[A-Za-z0-9_-]{60})(?:$|[^A-Za-z0-9+/_=-])"
    ),
    _Format(rb"[sr]k_(?:live|test|prod)_", rb"\b(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}"),
    _Format(rb"\bwhsec_", rb"\bwhsec_[A-Za-z0-9+/]{32,}"),
    _Format(
        rb"access-(?:sandbox|development|production)-",
        rb"\baccess-(?:sandbox|development|production)-" + _UUID + rb"\b",
    ),
    # Google: API keys, OAuth client secrets, refresh and access tokens (Google Cloud docs, "Secret detection
    # formats")
    _Format(rb"AIza", rb"\bAIza[A-Za-z0-9_-]{35}"),
    _Format(rb"GOCSPX-", rb"\bGOCSPX-[A-Za-z0-9_-]{28}"),
    _Format(rb"\b1//0", rb"(?:^|[^A-Za-z0-9+/_-])(1//0[A-Za-z0-9_-]{40,250})"),
    _Format(rb"\bya29\.", rb"\bya29\.[A-Za-z0-9_-]{40,}"),
    # GitHub: token prefixes (GitHub blog, "Behind GitHub's new authentication token formats"); fine-grained
    # tokens
    _Format(rb"\bgh[pousr]_", rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    _Format(rb"\bgithub_pat_", rb"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b"),
    # GitLab: tokens of all kinds (GitLab documentation, "Token prefixes")
    _Format(
        rb"\bgl(?:pat|dt|rt|rtr|ptt|soat|cbt|ffct|imt|agent|ft|oas|wt)-",
        rb"\bgl(?:pat|dt|rt|rtr|ptt|soat|cbt|ffct|imt|agent|ft|oas|wt)-[A-Za-z0-9_-]{20,300}(?:\.[0-9a-z]{2}[0-9a-z]{7})?",
    ),
    # Slack: bot, user, configuration and refresh tokens, app tokens, incoming webhooks (api.slack.com, "Token
    # types")
    _Format(rb"\bxox[abeoprs][-.]", rb"\b(?:xoxe\.)?xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    _Format(rb"\bxapp-", rb"\bxapp-\d-[A-Za-z0-9-]{10,}"),
    _Format(
        rb"hooks\.slack",
        rb"\bhooks\.slack\.com/(?:services/T[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{20,32}|(?:workflows|triggers)/[A-Za-z0-9/]{40,80})",
    ),
    # Packages: npm, PyPI, RubyGems, Docker Hub, crates.io, Clojars
    _Format(rb"\bnpm_", rb"\bnpm_[A-Za-z0-9]{36}\b"),
    _Format(rb"pypi-AgE", rb"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    _Format(rb"\brubygems_", rb"\brubygems_" + _HEX + rb"{48}\b"),
    _Format(rb"\bdckr_", rb"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{27,}"),
    _Format(rb"\bcio[A-Za-z0-9]{8}", rb"\bcio[A-Za-z0-9]{32}\b"),
    _Format(rb"CLOJARS_", rb"\bCLOJARS_[a-z0-9]{60}\b"),
    # Hosting: DigitalOcean, Cloudflare's origin keys, Heroku, Fly.io, PlanetScale, Pulumi, Supabase, Netlify,
    # Scalingo, Tailscale, Alibaba
    _Format(rb"\bdo[opr]_v1_", rb"\bdo[opr]_v1_" + _HEX + rb"{64}\b"),
    _Format(rb"\bv1\.0-" + _HEX + rb"{8}", rb"\bv1\.0-" + _HEX + rb"{24}-" + _HEX + rb"{146}\b"),
    _Format(rb"HRKU-AA", rb"\bHRKU-AA[A-Za-z0-9_-]{58}"),
    _Format(
        rb"\bf(?:o1|m1[ar]|m2)_", rb"\b(?:fo1_[A-Za-z0-9_-]{43}|fm(?:1[ar]|2)_[A-Za-z0-9+/]{100,}={0,3})"
    ),
    _Format(rb"\bpscale_", rb"\bpscale_(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]{32,64}"),
    _Format(rb"\bpul-" + _HEX + rb"{8}", rb"\bpul-" + _HEX + rb"{40}\b"),
    _Format(rb"\bsbp_", rb"\bsbp_" + _HEX + rb"{40}\b"),
    _Format(rb"\bnfp_", rb"\bnfp_[A-Za-z0-9]{36}\b"),
    _Format(rb"\btk-us-", rb"\btk-us-[A-Za-z0-9_-]{48}"),
    _Format(rb"\btskey-", rb"\btskey-[a-z]+-[A-Za-z0-9]{8,24}-[A-Za-z0-9]{20,40}"),
    _Format(rb"\bLTAI", rb"\bLTAI[A-Za-z0-9]{20}\b"),
    # Tools: Postman, New Relic, Doppler, Linear, Notion, Airtable, Atlassian, Figma, Grafana, Sentry,
    # Sourcegraph, Sonar, HubSpot, Typeform, Dynatrace, Prefect, ReadMe, Shippo, EasyPost, Duffel, 1Password,
    # age
    _Format(rb"PMAK-", rb"\bPMAK-" + _HEX + rb"{24}-" + _HEX + rb"{34}\b"),
    _Format(rb"\bNR(?:AK|II)-", rb"\b(?:NRAK-[A-Z0-9]{27}|NRII-[A-Za-z0-9_-]{32})"),
    _Format(
        rb"\bdp\.(?:pt|st|ct|sa|scim|audit)\.",
        rb"\bdp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}\b",
    ),
    _Format(rb"\blin_(?:api|oauth)_", rb"\blin_(?:api|oauth)_[A-Za-z0-9]{40,64}\b"),
    _Format(
        rb"\b(?:ntn|secret)_[A-Za-z0-9]{11}", rb"\b(?:ntn_[0-9]{11}[A-Za-z0-9]{35}|secret_[A-Za-z0-9]{43})\b"
    ),
    _Format(rb"\bpat[A-Za-z0-9]{14}\.", rb"\bpat[A-Za-z0-9]{14}\." + _HEX + rb"{64}\b"),
    _Format(rb"ATATT3|\bATBB", rb"\b(?:ATATT3[A-Za-z0-9_=-]{100,200}|ATBB[A-Za-z0-9]{32}\b)"),
    _Format(rb"\bfigd_", rb"\bfigd_[A-Za-z0-9_-]{40,}"),
    _Format(rb"\bgl(?:sa|c)_", rb"\b(?:glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}|glc_[A-Za-z0-9+/]{32,400}={0,3})"),
    _Format(rb"\bsntry[su]_", rb"\b(?:sntrys_eyJ[A-Za-z0-9+/=_]{80,500}|sntryu_" + _HEX + rb"{64}\b)"),
    _Format(rb"\bsgp_", rb"\bsgp_(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}\b"),
    _Format(rb"\bsq[pua]_", rb"\bsq[pua]_" + _HEX + rb"{40}\b"),
    _Format(rb"\bpat-(?:na|eu)\d-", rb"\bpat-(?:na|eu)\d-" + _UUID + rb"\b"),
    _Format(rb"\btfp_", rb"\btfp_[A-Za-z0-9_.=-]{59}"),
    _Format(rb"\bdt0c01\.", rb"\bdt0c01\.[A-Z2-7]{24}\.[A-Z2-7]{64}"),
    _Format(rb"\bpnu_", rb"\bpnu_[A-Za-z0-9]{36}\b"),
    _Format(rb"\brdme_", rb"\brdme_[a-z0-9]{70}\b"),
    _Format(rb"\bshippo_", rb"\bshippo_(?:live|test)_[a-fA-F0-9]{40}\b"),
    _Format(rb"\bEZ[AT]K", rb"\bEZ[AT]K[A-Za-z0-9]{54}\b"),
    _Format(rb"\bduffel_", rb"\bduffel_(?:test|live)_[A-Za-z0-9_=-]{43}"),
    _Format(rb"\bops_eyJ", rb"\bops_eyJ[A-Za-z0-9+/]{250,}={0,3}"),
    _Format(rb"AGE-SECRET-KEY-1", rb"\bAGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    # The password of a URL, whatever its scheme and host (RFC 3986, section 3.2.1); a token in the place of the
    # user where the password is empty or says that it is one (GitHub docs, "x-oauth-basic")
    _Format(
        _URL_MARK,
        rb"[A-Za-z0-9+.-]://[!$-&(-.0-9;=@-Z\[-~]{0,200}:(" + _USER_INFO + rb"{1,200})@[A-Za-z0-9_\[{$%(<-]",
    ),
    _Format(_URL_MARK, rb"[A-Za-z0-9+.-]://([A-Za-z0-9_.~-]{16,200}):(?:x-oauth-basic)?@"),
    # JSON web tokens (RFC 7519): two parts that begin with {" in base 64, and a signature
    _Format(rb"eyJ[A-Za-z0-9_-]{8}", rb"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
)

# Private keys (RFC 7468; RFC 1421, section 4.6; RFC 9580, section 6.2): the whole block with its headers;
# where it is cut off, what stands of its lines.
_KEY_BEGINS = rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_ENDS = rb"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_HEADERS = rb"(?:\s*(?:Version|Comment|MessageID|Hash|Charset|Proc-Type|DEK-Info): [^\n]*)*"
_KEY_LINES = rb"(?:[A-Za-z0-9+/=:,.()\\ \r\n\t]|-[A-Za-z0-9])*"
_KEY_MARK: Final = rb"PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEYS: Final = (
    _Format(_KEY_MARK, _KEY_BEGINS + _KEY_HEADERS + _KEY_LINES + _KEY_ENDS),
    _Format(_KEY_MARK, _KEY_BEGINS + _KEY_HEADERS + rb"(?:\s*[A-Za-z0-9+/=]{32,80})*"),
)

_ALL: Final = (*_FORMATS, *_PRIVATE_KEYS)
_NUM_TOKENS: Final = len(_FORMATS)
GATE: Final = b"|".join(b"(?:" + mark + b")" for mark in dict.fromkeys(known.mark for known in _ALL))
"""What every secret holds: a search for it is cheap."""

_MARKS: Final = AnyOf({str(number): known.mark for number, known in enumerate(_ALL)})
_PATTERNS: Final[tuple[Any, ...]] = tuple(linear(known.pattern) for known in _ALL)
# Documentation writes keys so that nobody takes them for one: `ghp_xxxxxxxx…`, `sk-proj-YOUR_KEY…`.
_PLACEHOLDER = re.compile(
    rb"[xX]{6}|(?i:your[_-]?(?:api|access|secret|token|key|own|pass)|insert[_-]|replace[_-]?me|change[_-]?me|redacted)"
    # What a program puts a password in the place of, and what hides one: ${PASSWORD}, {password}, %s, ***, …
    rb"|^(?:\$?\{.*\}|\$\w+|\$\(.*\)|%\(?\w*\)?s|\[.*\]|[*.xX_-]+|x-oauth-basic)$"
)
# Words joined in the way of addresses and of names in programs (`glimt-ein-spiel-fuer-…`); tokens have
# capitals too.
_WORDS = re.compile(rb"(?:[-_][a-z]{2,}){3}")
_CAPITAL = re.compile(rb"[A-Z]")


def find_secrets(data: bytes) -> Iterator[tuple[int, int]]:
    """Byte spans of keys, tokens and private key blocks; of overlapping ones all. Placeholders of
    documentation and words that begin like a token are none."""
    for number in sorted(map(int, _MARKS(data))):
        pattern = _PATTERNS[number]
        for match in pattern.finditer(data):
            start, end = match.span(pattern.groups and 1)
            if number >= _NUM_TOKENS or not _only_looks_like_one(data, start, end):
                yield start, end


def _only_looks_like_one(data: bytes, start: int, end: int) -> bool:
    if _PLACEHOLDER.search(data[start:end]):
        return True
    return not _CAPITAL.search(data, start, end) and _WORDS.search(data, start, end) is not None

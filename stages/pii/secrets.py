"""Keys and tokens that open something: formats as their issuers publish them, so that a match is hardly ever chance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stages.pii.linear import linear

_FORMATS: Final = (
    # AWS: unique identifiers of access keys and of temporary ones (IAM user guide, "IAM identifiers"), base 32
    rb"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    # AWS: a secret access key is 40 characters of base 64, recognised by the name it is assigned to
    rb"(?i:aws_?secret_?(?:access_?)?key)[\"']?\s{0,4}[=:]{1,2}>?\s{0,4}[\"']?[A-Za-z0-9/+]{40}\b",
    # GitHub: token prefixes (GitHub blog, "Behind GitHub's new authentication token formats"); fine-grained tokens
    rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b",
    rb"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b",
    # GitLab: personal, deploy and runner tokens (GitLab documentation, "Token prefixes")
    rb"\bgl(?:pat|dt|rt|ptt)-[A-Za-z0-9_-]{20,}",
    # Slack: bot, user, configuration and refresh tokens, app tokens, incoming webhooks (api.slack.com, "Token types")
    rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    rb"\bxapp-\d-[A-Za-z0-9-]{10,}",
    rb"\bhooks\.slack\.com/services/T[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{20,32}",
    # Stripe: secret and restricted keys, webhook secrets (docs.stripe.com/keys); publishable ones are public
    rb"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}",
    rb"\bwhsec_[A-Za-z0-9]{32,}",
    # Google: API keys, OAuth client secrets (Google Cloud documentation, secret detection formats)
    rb"\bAIza[A-Za-z0-9_-]{35}",
    rb"\bGOCSPX-[A-Za-z0-9_-]{28}",
    # OpenAI, Anthropic, Hugging Face, npm, PyPI, SendGrid, DigitalOcean: as registered for GitHub secret scanning
    rb"\bsk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,}",
    rb"\bsk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{80,}",
    rb"\bhf_[A-Za-z0-9]{34}\b",
    rb"\bnpm_[A-Za-z0-9]{36}\b",
    rb"\bpypi-AgE[A-Za-z0-9_-]{50,}",
    rb"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    rb"\bdo[opr]_v1_[a-f0-9]{64}\b",
    # JSON web tokens (RFC 7519): two parts that begin with {" in base 64, and a signature
    rb"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}",
)
GATE: Final = (
    rb"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{4}|(?i:aws_?secret)|gh[pousr]_|github_pat_|gl(?:pat|dt|rt|ptt)-|xox[abeoprs]-|xapp-|hooks\.slack"
    rb"|[sr]k_(?:live|test)_|whsec_|AIza|GOCSPX-"
    rb"|\bsk-[A-Za-z0-9_-]{20}|hf_|npm_|pypi-AgE|SG\.[A-Za-z0-9_-]{22}|do[opr]_v1_|eyJ[A-Za-z0-9_-]{8}"
    rb"|PRIVATE KEY(?: BLOCK)?-----"
)
"""What every secret holds: a search for it is cheap."""


# Private keys (RFC 7468; RFC 1421, section 4.6; RFC 9580, section 6.2): the whole block with its headers; where it is
# cut off, what stands of its lines.
_KEY_BEGINS = rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_ENDS = rb"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_HEADERS = rb"(?:\s*(?:Version|Comment|MessageID|Hash|Charset|Proc-Type|DEK-Info): [^\n]*)*"
_KEY_LINES = rb"(?:[A-Za-z0-9+/=:,.()\\ \r\n\t]|-[A-Za-z0-9])*"
_WHOLE_KEY = linear(_KEY_BEGINS + _KEY_HEADERS + _KEY_LINES + _KEY_ENDS)
_CUT_OFF_KEY = linear(_KEY_BEGINS + _KEY_HEADERS + rb"(?:\s*[A-Za-z0-9+/=]{32,80})*")
_SECRETS = (*(linear(pattern) for pattern in _FORMATS), _WHOLE_KEY, _CUT_OFF_KEY)


def find_secrets(data: bytes) -> Iterator[tuple[int, int]]:
    """Byte spans of keys, tokens and private key blocks; of overlapping ones all."""
    for pattern in _SECRETS:
        for match in pattern.finditer(data):
            yield match.span()

"""Signs that announce a node's death: alerts of a Prometheus with the label `drain`, whichever exporter counted.

Node exporter and DCGM exporter count what kernel and GPUs tell; `deploy/prometheus/nodes.yaml` says how much of it
means something. No torch here."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 << 20
_LONGEST_TEXT: Final = 200
_NODE_LABELS: Final = ("node", "Hostname", "instance")
"""Who says which node is meant, the first of them that an alert has: Kubernetes' targets, DCGM exporter, any target."""
_log = logging.getLogger(__name__)


class _Alert(TypedDict):
    """An alert as Prometheus' HTTP API gives it, as far as it is looked at."""

    labels: dict[str, str]
    annotations: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """An alert that fires: the node, by its name or address, and what it says."""

    node: str
    what: str


def names_of_this_node() -> set[str]:
    """The name of this machine and its addresses, as the labels of an alert may have them; none that every machine
    has."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0], socket.getfqdn()}
    with suppress(OSError):
        names |= {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return {name for name in names if name != "::1" and not name.startswith(("127.", "localhost"))}


class SignReader:
    """The signs of all nodes, from one call to the next."""

    def __init__(self, prometheus: str) -> None:
        self._url = f"{prometheus.rstrip('/')}/api/v1/alerts"
        self._before = self._firing() or {}

    def read(self) -> list[Sign]:
        """The alerts that have begun to fire since the last call, or since this reader was made. A Prometheus
        that does not answer is logged: no sign is no reason to stop a run."""
        now = self._firing()
        if now is None:
            return []
        before, self._before = self._before, now
        return [sign for key, sign in now.items() if key not in before]

    def _firing(self) -> dict[str, Sign] | None:
        try:
            with urllib.request.urlopen(self._url, timeout=_SECONDS) as answer:
                alerts = json.loads(answer.read(_MOST_BYTES))["data"]["alerts"]
            return {
                json.dumps([alert["labels"], alert["activeAt"]], sort_keys=True): _sign(alert)
                for alert in alerts
                if alert["state"] == "firing" and alert["labels"].get("drain")
            }
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            _log.warning("%s does not say which alerts fire: %s", self._url, error)
            return None


def _sign(alert: _Alert) -> Sign:
    labels = alert["labels"]
    node = next((labels[name] for name in _NODE_LABELS if labels.get(name)), "")
    host, _, port = node.rpartition(":")
    said = " ".join(alert.get("annotations", {}).get("summary", labels["alertname"]).split())
    return Sign(node=host.strip("[]") if port.isdigit() and host else node, what=said[:_LONGEST_TEXT])

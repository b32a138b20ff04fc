"""Metrics as Prometheus gets them: over HTTP, parsed."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.waiting import PATIENCE


@dataclass(frozen=True)
class Scrape:
    """The families of one answer by name."""

    families: dict[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name and with these labels, among others that it may have."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        """All samples of this name and with these labels."""
        return [
            s.value
            for family in self.families.values()
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of all samples of this name."""
        samples = (s for family in self.families.values() for s in family.samples)
        return [dict(s.labels) for s in samples if s.name == name]


def parsed(text: str) -> Scrape:
    """What an exposition says; a family that stands twice in it is refused, as Prometheus does."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found, f"{family.name} stands twice"
        found[family.name] = family
    return Scrape(found)


def collected(registry: CollectorRegistry) -> Scrape:
    """What a registry would answer."""
    return parsed(generate_latest(registry).decode())


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Status and text of one answer."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(port: int) -> Scrape:
    """What a daemon that listens on a port answers."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    return parsed(text)


def logged_port(logs: Iterable[Path]) -> int:
    """The port that a daemon with an address of port 0 has logged; 0 if none yet."""
    for log in logs:
        if match := re.search(r"metrics and probes are served port=(\d+)", log.read_text()):
            return int(match[1])
    return 0

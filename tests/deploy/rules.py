"""The alert rules and the dashboard as data, and what they ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "deploy/helm/cursus/files/alerts/cursus.yaml"
ALERT_TESTS: Final = ROOT / "tests/deploy/alerts_test.yaml"
DASHBOARD: Final = ROOT / "deploy/helm/cursus/files/dashboards/cursus.json"

# Ours and those of the process; `up` is Prometheus' own.
_METRIC: Final = re.compile(r"\b(?:cursus|process|messages?)_\w+")
# Label names never begin like our metrics, but values do.
_STRING: Final = re.compile(r'"[^"]*"')


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Without the rows that only group them."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Where a query is, and the query."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]


def variable_queries() -> Iterator[tuple[str, str]]:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]


def metrics_in(expression: str) -> set[str]:
    """Names of the metrics an expression asks for.

    >>> sorted(metrics_in('rate(cursus_x_total{group!~"cursus-spark.*"}[1m]) and on (job) process_y'))
    ['cursus_x_total', 'process_y']
    """
    return set(_METRIC.findall(_STRING.sub('""', expression)))


def with_values(expression: str, rate_interval: str = "10s") -> str:
    """A query as Grafana sends it with every variable at All."""
    return re.sub(r"\$(job|topic|group)\b", ".*", expression).replace("$__rate_interval", rate_interval)

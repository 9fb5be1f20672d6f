"""Alerts and dashboards of the chart ask for metrics that exist, in expressions that Prometheus can read.

Prometheus itself reads them in `tests/contract/chart/test_alerts.py` and `tests/e2e/test_monitoring.py`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from longshore.api.runtime_status import Alarm, RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_cli.dashboards import STEP_METRIC, STEP_PANELS
from longshore_operator.metrics import OperatorMetrics

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "longshore" / "files"
ALERTS: list[dict[str, Any]] = yaml.safe_load((FILES / "alerts.yaml").read_text())
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
TARGET_LABELS = {"namespace", "pod"}
"""Prometheus adds them to what it scrapes by a PodMonitor."""


def metrics() -> dict[str, set[str]]:
    """Series that there are, with the names of their labels."""
    operator = OperatorMetrics()
    alarm = Alarm(reason="Example", message="", step=0)
    operator.show(("team", "demo"), RLJobStatus(phase=Phase.RUNNING, runtime=RuntimeStatus(alarms=[alarm])))
    found: dict[str, set[str]] = {STEP_METRIC: {"name", *TARGET_LABELS}}
    for family in operator.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


METRICS = metrics()


def expressions() -> Iterator[Any]:
    for alert in ALERTS:
        yield pytest.param(alert["expr"], id=alert["alert"])
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target["expr"], id=f"{path.stem}: {panel['title']} {target['refId']}")


class Selectors(list[promql_parser.VectorSelector]):
    """All selectors of an expression."""

    def __init__(self, expression: str) -> None:
        super().__init__()
        self._collect(promql_parser.parse(expression))

    def _collect(self, node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            self.append(node)
        for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
            inner = getattr(node, name, None)
            for one in inner if isinstance(inner, list) else [inner]:
                if one is not None:
                    self._collect(one)


@pytest.mark.parametrize("expression", [*expressions()])
def test_an_expression_asks_for_metrics_and_labels_that_exist(expression: str) -> None:
    found = Selectors(expression)
    assert found
    for selector in found:
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= METRICS[selector.name], selector.name
    for grouping in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        grouped = {label.strip() for label in grouping.split(",")}
        assert grouped <= set.union(*(METRICS[selector.name] for selector in found))


def test_every_metric_of_the_operator_is_on_the_dashboard_of_the_fleet() -> None:
    [fleet] = [path for path in DASHBOARDS if "fleet" in path.name]
    queried = {
        selector.name
        for panel in json.loads(fleet.read_text())["panels"]
        for target in panel["targets"]
        for selector in Selectors(target["expr"])
    }
    families = {family.name for family in OperatorMetrics().registry.collect()}
    assert families == {re.sub(r"_(total|bucket)$", "", name) for name in queried}


def test_metrics_of_steps_on_the_dashboard_are_written_by_the_runtime() -> None:
    writers = (ROOT / "runtime" / "longshore_runtime" / "telemetry").glob("*.py")
    written = set(re.findall(r'"([a-z_]+/[a-z0-9_/]+)"', "".join(path.read_text() for path in writers)))
    assert {name for _, _, names in STEP_PANELS for name in names} <= written

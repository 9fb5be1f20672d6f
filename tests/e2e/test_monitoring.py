"""What the chart's monitors, alerts and dashboards show of a real job, in a real Prometheus."""

import json
import math
import re
import time
from pathlib import Path

import pytest

from longshore_cli.dashboards import STEP_METRIC, STEP_PANELS
from longshore_client.installed import NAMESPACE
from tests.contract.chart.test_rendering import CHART, rendered
from tests.e2e.jobs import Cluster, Json, fake_job
from tests.prometheus import Prometheus, needs_prometheus, prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), needs_prometheus]

ON = {"enabled": True}
SHARING = {"sharing/wait_s"}
"""Metrics of jobs that share GPUs."""


def targets(path: Path) -> list[tuple[str, str, str]]:
    """Panel, expression and legend of all series of a dashboard; variables have their value `All`."""
    return [
        (panel["title"], re.sub(r"\$\w+", ".+", target["expr"]), target["legendFormat"])
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]


def legends(series: list[Json], legend: str) -> set[str]:
    """Legends of the series that have a value, as Grafana writes them."""
    return {
        re.sub(r"{{(\w+)}}", lambda label: one["metric"][label[1]], legend)
        for one in series
        if any(math.isfinite(float(value)) for _, value in one["values"])
    }


def variables(path: Path, shown: Prometheus) -> dict[str, list[str]]:
    """Values of each variable of a dashboard, as Grafana finds them."""
    found = {}
    for variable in json.loads(path.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            query = re.sub(r"\$\w+", ".+", variable["query"]["query"])
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            assert match, query
            found[variable["name"]] = shown.ask(f"label/{match[2]}/values", **{"match[]": match[1]})
    return found


def test_every_panel_shows_a_job_and_no_alert_fails(cluster: Cluster, tmp_path: Path) -> None:
    objects = rendered(NAMESPACE, monitoring={"serviceMonitor": ON, "podMonitor": ON, "rules": ON})
    by_kind = {kind: one for (kind, _), one in objects.items()}
    monitors = [by_kind["ServiceMonitor"], by_kind["PodMonitor"]]
    start_s = time.time()
    with prometheus(tmp_path, monitors, cluster.kubeconfig, by_kind["PrometheusRule"]["spec"]) as shown:
        job = cluster.apply(fake_job("shown"))
        assert job.wait_finished()["phase"] == "Succeeded", job.story()
        end_s = time.time()
        rules = [rule for group in shown.ask("rules")["groups"] for rule in group["rules"]]
        assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
        assert {rule["state"] for rule in rules} <= {"inactive", "pending"}

        fleet, of_jobs = (CHART / "files" / "dashboards" / f"longshore-{name}.json" for name in ("fleet", "job"))
        pod = "shown-coordinator"
        assert variables(fleet, shown) == {"namespace": ["default"]}
        assert variables(of_jobs, shown) == {"namespace": ["default"], "pod": [pod]}
        for title, expression, legend in targets(fleet):
            found = legends(shown.series(expression, start_s, end_s), legend)
            assert found, f"{title}: {expression}"
        for (title, expression, legend), (_, _, names) in zip(targets(of_jobs), STEP_PANELS, strict=True):
            found = legends(shown.series(expression, start_s, end_s), legend)
            assert found == {f"{pod} {name}" for name in {*names} - SHARING}, title
        newest = shown.series(f'{STEP_METRIC}{{name="critic/rewards/mean"}}', start_s, end_s)
        written = [json.loads(line) for line in (job.output() / "metrics.jsonl").read_text().splitlines()]
        assert {float(value) for one in newest for _, value in one["values"]} <= {
            row["critic/rewards/mean"] for row in written if "critic/rewards/mean" in row
        }

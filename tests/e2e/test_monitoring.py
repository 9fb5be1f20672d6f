"""What the chart's monitors, alerts and dashboards show of a real job, in a real Prometheus."""

import json
import math
import re
import time
from pathlib import Path

import pytest

from longshore_cli.dashboards import STEP_PANELS
from longshore_client.installed import NAMESPACE
from tests.contract.chart.test_rendering import CHART, rendered
from tests.contract.operator.harness import eventually
from tests.e2e.held import held
from tests.e2e.jobs import Cluster, Json, fake_job
from tests.prometheus import Prometheus, needs_prometheus, prometheus, with_all

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), needs_prometheus]

ON = {"enabled": True}


def board(name: str) -> Json:
    found: Json = json.loads((CHART / "files" / "dashboards" / f"longshore-{name}.json").read_text())
    return found


def choices(board: Json, shown: Prometheus) -> dict[str, list[str]]:
    """What each variable of a dashboard offers, as Grafana finds it."""
    found = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", with_all(variable["query"]["query"]))
            assert match, variable
            found[variable["name"]] = shown.ask(f"label/{match[2]}/values", **{"match[]": match[1]})
    return found


def test_every_panel_shows_a_job_and_no_alert_fails(cluster: Cluster, tmp_path: Path) -> None:
    objects = rendered(NAMESPACE, monitoring={"serviceMonitor": ON, "podMonitor": ON, "rules": ON})
    by_kind = {kind: one for (kind, _), one in objects.items()}
    monitors = [by_kind["ServiceMonitor"], by_kind["PodMonitor"]]
    start_s = time.time()
    manifest = fake_job("shown")
    with prometheus(tmp_path, by_kind["PrometheusRule"]["spec"]) as shown, held(manifest, num_scored=60) as goes_on:
        shown.discover(monitors, cluster.kubectl)
        job = cluster.apply(manifest)
        job.wait_step(1)
        shown.discover(monitors, cluster.kubectl)
        eventually("its pod is scraped", lambda: shown.ask("query", query='up{pod="shown-coordinator"} == 1')["result"])
        goes_on.set()
        assert job.wait_finished()["phase"] == "Succeeded", job.story()
        ended = 'longshore_operator_job_phase{job_name="shown", phase="Succeeded"}'
        eventually("its end is scraped", lambda: shown.ask("query", query=ended)["result"])
        end_s = time.time()
        rules = [rule for group in shown.ask("rules")["groups"] for rule in group["rules"]]
        assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
        assert {rule["state"] for rule in rules} <= {"inactive", "pending"}

        fleet, of_jobs = board("fleet"), board("job")
        assert choices(fleet, shown) == {"namespace": ["default"]}
        assert choices(of_jobs, shown) == {"namespace": ["default"], "pod": ["shown-coordinator"]}
        found = {
            (panel["title"], target["refId"]): {
                legend: {value for _, value in values if math.isfinite(value)}
                for legend, values in shown.series(target, start_s, end_s)
            }
            for panel in (*fleet["panels"], *of_jobs["panels"])
            for target in panel["targets"]
        }
    assert {panel for panel, lines in found.items() if not any(lines.values())} == set()
    for title, _, names in STEP_PANELS:
        assert found[title, "A"].keys() == {f"default/shown-coordinator {name}" for name in names}
    steps = job.metrics()
    trained = {step["response_length/mean"] for step in steps}
    assert found["Tokens of a response", "A"]["default/shown-coordinator response_length/mean"] <= trained
    assert max(found["Job step", "A"]["default/shown"]) == steps[-1]["step"]

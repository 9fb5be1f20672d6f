"""Grafana dashboards of the chart, generated from the definitions of the metrics that they show."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from longshore.api.runtime_status import Alarm, RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.metrics import OperatorMetrics

Json = dict[str, Any]

STEP_METRIC: Final = "longshore_step_metric"
STEP_PANELS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Rewards", "none", ("critic/rewards/mean", "val/reward/mean", "val/reward/longest_quartile")),
    ("Time of a step", "s", ("timing_s/gen", "timing_s/reward", "timing_s/update_actor", "timing_s/update_weights")),
    ("Tokens per second and GPU", "none", ("perf/throughput",)),
    ("Idle engines and trainers", "percentunit", ("perf/bubble_share", "trainer/waiting_ratio")),
    ("Tokens of a response", "none", ("response_length/mean", "response_length/p75", "response_length/max")),
    (
        "Cut and dropped responses",
        "percentunit",
        ("response_length/clip_ratio", "response/aborted_ratio", "response/dropped_token_ratio"),
    ),
    ("Update", "none", ("actor/grad_norm", "actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac")),
    ("Mismatch of engines and trainers", "none",
     ("rollout_corr/log_prob_mismatch_mean", "rollout_corr/log_prob_mismatch_max")),
    ("Long-prompt queue", "none", ("round/queue_length",)),
    ("Scoring", "none", ("reward/faults", "reward/timed_out", "reward/max_queue_depth")),
)  # fmt: skip
"""Title, unit and step metrics of each panel of the dashboard of a job."""
_UNITS: Final = {" counter": "cps", "_seconds histogram": "s", "_share gauge": "percentunit"}
"""What a panel is measured in, by the end of the metric's name and its type: counters are shown per second."""
_WIDTH, _HEIGHT = 12, 8
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_JOB: Final = "{{job_name}} {{job_namespace}}"
_OF_JOBS: Final = 'job_namespace=~"$namespace"'
_EXAMPLE: Final = RLJobStatus(
    phase=Phase.RUNNING, runtime=RuntimeStatus(alarms=[Alarm(reason="Example", message="", step=0)])
)
"""A job for which every metric of jobs has a series, and so its labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves, or bars where all values are 1; each expression has the legend of its series."""

    title: str
    expressions: tuple[tuple[str, str], ...]
    description: str = ""
    unit: str = "none"
    kind: str = "timeseries"


def dashboards() -> dict[str, str]:
    """Return each dashboard by its file name, as Grafana reads it."""
    metrics = OperatorMetrics()
    metrics.show(("", ""), _EXAMPLE)
    families = [one for one in metrics.registry.collect() if not one.name.endswith("_created")]
    namespaces = _variable("namespace", "label_values(longshore_operator_job_phase, job_namespace)")
    jobs = [
        _variable("namespace", f"label_values({STEP_METRIC}, namespace)"),
        _variable("pod", f'label_values({STEP_METRIC}{{namespace=~"$namespace"}}, pod)'),
    ]
    # What concerns jobs comes before what concerns the operator alone.
    panels = sorted(map(_operator_panel, families), key=lambda panel: not panel.title.startswith(("Job", "GPU")))
    fleet = _dashboard("longshore-fleet", "Longshore: fleet", panels, [namespaces])
    job = _dashboard("longshore-job", "Longshore: jobs", _step_panels(), jobs)
    return {f"{one['uid']}.json": json.dumps(one, indent=1) + "\n" for one in (fleet, job)}


def _operator_panel(family: Metric) -> Panel:
    """Return what a metric of the operator usually is asked for, by its type and labels."""
    labels = sorted({name for one in family.samples for name in one.labels} - {"le"})
    title = family.name.removeprefix("longshore_operator_").replace("_", " ").capitalize().replace("Gpus", "GPUs")
    unit = next((unit for end, unit in _UNITS.items() if f"{family.name} {family.type}".endswith(end)), "none")
    kind = "state-timeline" if family.documentation.startswith("1 for") else "timeseries"
    return Panel(title, tuple(_expressions(family, labels, title)), family.documentation, unit, kind)


def _expressions(family: Metric, labels: list[str], title: str) -> Iterator[tuple[str, str]]:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels).replace(_JOB, "{{job_namespace}}/{{job_name}}") or title
    where = f"{{{_OF_JOBS}}}" if "job_namespace" in labels else ""
    by = f" by ({', '.join(labels)})" if labels else ""
    if family.type == "histogram":
        for quantile in (0.5, 0.99):
            rate = f"sum by (le) (rate({family.name}_bucket[5m]))"
            yield f"histogram_quantile({quantile}, {rate})", f"p{quantile * 100:g}"
    elif family.type == "counter":
        yield f"sum{by} (rate({family.name}_total{where}[5m]))", legend
    else:
        yield f"sum{by} ({family.name}{where})", legend


def _step_panels() -> Iterator[Panel]:
    where = 'namespace=~"$namespace", pod=~"$pod"'
    for title, unit, names in STEP_PANELS:
        expression = f'{STEP_METRIC}{{{where}, name=~"{"|".join(names)}"}}'
        yield Panel(title, ((expression, "{{namespace}}/{{pod}} {{name}}"),), unit=unit)


def _dashboard(uid: str, title: str, panels: Iterable[Panel], variables: list[Json]) -> Json:
    return {
        "uid": uid,
        "title": title,
        "tags": ["longshore"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource_variable(), *variables]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> Json:
    column, row = number % 2, number // 2
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.expressions)
        ],
    }


def _datasource_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }

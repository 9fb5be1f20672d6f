"""Prometheus itself reads the alerts: each fires when it should and no minute earlier, in the clock of its promtool."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.api.reasons import AlarmReason
from longshore.api.runtime_status import Alarm, RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.metrics import OperatorMetrics
from tests.contract.chart.test_rendering import rendered
from tests.prometheus import needs_prometheus

pytestmark = needs_prometheus

JOB = ("team", "demo")
OF_JOB = {"job_namespace": "team", "job_name": "demo"}
SERVICE = "longshore-operator-metrics"
Json = dict[str, Any]


class Fleet:
    """Two operators of one job, and what Prometheus scrapes from them every minute."""

    def __init__(self, target: dict[str, str]) -> None:
        self._target = target
        self.operators = {"operator-0": OperatorMetrics(), "operator-1": OperatorMetrics()}
        self.first.leader.set(1)
        self._series: dict[str, list[str]] = {}
        self._num_scrapes = 0

    @property
    def first(self) -> OperatorMetrics:
        """The operator that leads, or may next."""
        return next(iter(self.operators.values()))

    def show(self, phase: Phase, step: int | None = None, alarms: tuple[AlarmReason, ...] = ()) -> None:
        """Show the job; without a step its coordinator has not reported yet."""
        found = [Alarm(reason=reason, message="", step=0) for reason in alarms]
        runtime = None if step is None else RuntimeStatus(step=step, alarms=found)
        self.first.show(JOB, RLJobStatus(phase=phase, runtime=runtime))

    def scrape(self) -> None:
        """Add a value to every series, and a marker to those that have just ended, as Prometheus does."""
        values = {
            f"{sample.name}{{{selector({**sample.labels, **self._target, 'pod': pod})}}}": f"{sample.value:g}"
            for pod, operator in self.operators.items()
            for family in operator.registry.collect()
            for sample in family.samples
        }
        for name in self._series.keys() | values:
            before = self._series.setdefault(name, ["_"] * self._num_scrapes)
            before.append(values.get(name, "_" if before[-1:] in ([], ["_"], ["stale"]) else "stale"))
        self._num_scrapes += 1

    def series(self) -> list[dict[str, str]]:
        """What promtool reads."""
        return [{"series": name, "values": " ".join(values)} for name, values in self._series.items()]


@dataclass(frozen=True)
class Story:
    """What happens in every minute, and the one from which on an alert fires, if it ever does."""

    alert: str
    happens: Callable[[Fleet, int], None]
    num_minutes: int
    fires: int | None = None
    labels: tuple[tuple[str, str], ...] = tuple(OF_JOB.items())
    value: str = ""
    """What the text of the alert says for `$value`."""


def leader_dies(successor: int) -> Callable[[Fleet, int], None]:
    """In minute 10; another one leads later."""

    def happens(fleet: Fleet, minute: int) -> None:
        if minute == 10:
            del fleet.operators["operator-0"]
        if minute == successor:
            fleet.first.leader.set(1)

    return happens


def errors(number: Callable[[int], int], num_others: int = 400) -> Callable[[Fleet, int], None]:
    """Reconciliations that fail in a minute, and others in every minute."""

    def happens(fleet: Fleet, minute: int) -> None:
        fleet.first.reconcile_errors.inc(number(minute))
        for _ in range(number(minute) + num_others):
            fleet.first.reconcile_seconds.observe(0.1)

    return happens


def waits(late: int, until: int) -> Callable[[Fleet, int], None]:
    """Make some of 1,000 reconciliations in every minute wait for 8 s."""

    def happens(fleet: Fleet, minute: int) -> None:
        for number in range(1000 if minute < until else 0):
            fleet.first.reconcile_lag_seconds.observe(8.0 if number < late else 0.01)

    return happens


def phases(
    *parts: tuple[Phase, int], step: Callable[[int], int | None] = lambda _: None
) -> Callable[[Fleet, int], None]:
    """Phases of the job, each for some minutes, again and again."""
    every = [phase for phase, num_minutes in parts for _ in range(num_minutes)]
    return lambda fleet, minute: fleet.show(every[minute % len(every)], step(minute))


def created_again(minute_of: int, num_minutes: int) -> Callable[[Fleet, int], None]:
    """Another job takes the name of one that had done more steps than it does, a step in every `num_minutes`."""

    def happens(fleet: Fleet, minute: int) -> None:
        if minute == minute_of:
            fleet.first.forget(JOB)
            fleet.show(Phase.PENDING)
        else:
            before, after = 500 + minute, (minute - minute_of) // num_minutes
            fleet.show(Phase.RUNNING, before if minute < minute_of else after)

    return happens


def alarm(reason: AlarmReason, until: int) -> Callable[[Fleet, int], None]:
    """A step in every minute, some of them with an alarm."""
    return lambda fleet, minute: fleet.show(Phase.RUNNING, minute, (reason,) if minute < until else ())


P = Phase
STORIES = {
    "the leader dies and nobody follows": Story("LongshoreOperatorDown", leader_dies(99), 30, 15, ()),
    "the leader dies and another follows": Story("LongshoreOperatorDown", leader_dies(14), 30),
    "12 failures a minute":
        Story("LongshoreReconcileErrors", errors(lambda _: 12), 40, 20, (("pod", "operator-0"),), "120"),
    "one job of few fails":
        Story("LongshoreReconcileErrors", errors(lambda _: 1, 4), 40, 16, (("pod", "operator-0"),), "10"),
    "one job of many fails": Story("LongshoreReconcileErrors", errors(lambda _: 1, 20), 40),
    "a failure now and then where little happens":
        Story("LongshoreReconcileErrors", errors(lambda minute: minute in (5, 30), 1), 60),
    "200 failures in one minute": Story("LongshoreReconcileErrors", errors(lambda minute: 200 * (minute == 5)), 40),
    "2 % wait": Story("LongshoreReconcileLag", waits(20, 40), 40, 16, ()),
    "0.5 % wait": Story("LongshoreReconcileLag", waits(5, 40), 40),
    "2 % wait until the fleet is at rest": Story("LongshoreReconcileLag", waits(20, 5), 40),
    "a job stays pending": Story("LongshoreJobStuck", phases((P.PENDING, 150)), 150, 30),
    "a job starts again and again": Story("LongshoreJobStuck", phases((P.STARTING, 5), (P.RESTARTING, 5)), 50, 30),
    "a job starts slowly": Story("LongshoreJobStuck", phases((P.PENDING, 10), (P.STARTING, 19), (P.RUNNING, 21)), 50),
    "a job waits in the queue": Story("LongshoreJobStuck", phases((P.QUEUED, 50)), 50),
    "a job hangs": Story("LongshoreJobMakesNoProgress", phases((P.RUNNING, 1), step=lambda _: 3), 140, 120),
    "a job never reports": Story("LongshoreJobMakesNoProgress", phases((P.RUNNING, 1)), 140, 120),
    "steps take 100 minutes":
        Story("LongshoreJobMakesNoProgress", phases((P.RUNNING, 1), step=lambda minute: minute // 100), 400),
    "a job repeats the same steps after restarts":
        Story("LongshoreJobMakesNoProgress",
              phases((P.RUNNING, 20), (P.RESTARTING, 5), step=lambda minute: 10 + minute % 25 // 10), 200, 150),
    "a job restarts before its first step":
        Story("LongshoreJobMakesNoProgress",
              phases((P.RUNNING, 15), (P.RESTARTING, 5), (P.STARTING, 5), step=lambda _: 0), 160, 120),
    "a job gets further between restarts":
        Story("LongshoreJobMakesNoProgress",
              phases((P.RUNNING, 40), (P.RESTARTING, 5), step=lambda now: now // 45 * 2 + now % 45 // 20), 400),
    "a job takes the name of another": Story("LongshoreJobMakesNoProgress", created_again(100, 15), 350),
    "a job fails": Story("LongshoreJobFailed", phases((P.RUNNING, 10), (P.FAILED, 90)), 100, 10),
    "a job succeeds": Story("LongshoreJobFailed", phases((P.RUNNING, 10), (P.SUCCEEDED, 90)), 100),
    "a job has ended": Story("LongshoreJobMakesNoProgress", phases((P.SUCCEEDED, 1), step=lambda _: 3), 140),
    "a job waits for quota": Story("LongshoreJobWaitsForQuota", phases((P.QUEUED, 1)), 730, 720),
    "a job gets its quota": Story("LongshoreJobWaitsForQuota", phases((P.QUEUED, 719), (P.PENDING, 20)), 739),
}  # fmt: skip


def written(folder: Path, **monitors: Json) -> Path:
    """What the Prometheus operator makes of the chart's PrometheusRule."""
    rule = rendered("here", monitoring={"rules": {"enabled": True}, **monitors})["PrometheusRule", "longshore-operator"]
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    return path


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("rules"))


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]
    return done.stdout


def selector(labels: dict[str, str]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))


def check(story: Story, rules: Path, **target: str) -> None:
    """See with promtool that the alert fires from its minute to the end, and no other one with it.

    `target`: labels of what is scraped.
    """
    fleet = Fleet(target)
    for minute in range(story.num_minutes):
        story.happens(fleet, minute)
        fleet.scrape()
    [rule] = [one for one in yaml.safe_load(rules.read_text())["groups"][0]["rules"] if one["alert"] == story.alert]
    labels = dict(story.labels)
    firing = {"exp_labels": rule["labels"] | labels, "exp_annotations": annotations(rule, labels, story.value)}
    fires = story.num_minutes if story.fires is None else story.fires
    expected = [
        {"eval_time": f"{minute}m", "alertname": story.alert, "exp_alerts": [firing] if minute >= fires else []}
        for minute in range(story.num_minutes)
    ]
    silent = {"expr": f'ALERTS{{alertstate="firing", alertname!="{story.alert}"}}',
              "eval_time": f"{story.num_minutes - 1}m", "exp_samples": []}  # fmt: skip
    test = {"interval": "1m", "input_series": fleet.series(), "alert_rule_test": expected, "promql_expr_test": [silent]}
    path = rules.with_name("story.yaml")
    path.write_text(json.dumps({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(path))


def annotations(rule: dict[str, Any], labels: dict[str, str], value: str) -> dict[str, str]:
    """The texts of an alert about series with these labels."""
    return {
        name: re.sub(r"{{ \$(?:labels\.(\w+)|value.*?) }}", lambda found: labels[found[1]] if found[1] else value, text)
        for name, text in rule["annotations"].items()
    }


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_an_alert_fires_when_it_should_and_no_minute_earlier(story: Story, rules: Path) -> None:
    check(story, rules)


@pytest.mark.parametrize("reason", AlarmReason)
def test_every_training_alarm_fires_one_alert_if_it_lasts(reason: AlarmReason, rules: Path) -> None:
    fails = reason in (AlarmReason.REWARDS_FAULT, AlarmReason.REWARDS_TIME_OUT, AlarmReason.ENVIRONMENTS_FAULT)
    alert, lasts = ("LongshoreRewardsFail", 10) if fails else ("LongshoreJobDoesNotLearn", 30)
    labels = (*OF_JOB.items(), ("reason", reason.value))
    check(Story(alert, alarm(reason, 50), 50, lasts, labels), rules)
    check(Story(alert, alarm(reason, lasts), 50, None, labels), rules)


@pytest.mark.parametrize(
    ("namespace", "fires"), [("here", 30), ("team", None)], ids=["of the operator", "of a tenant's service"]
)
def test_an_alert_is_about_metrics_of_the_operators_own_service(
    namespace: str, fires: int | None, tmp_path: Path
) -> None:
    """Where the chart's monitor reads them; that there is no operator is then said of the tenant's."""
    scoped = written(tmp_path, serviceMonitor={"enabled": True})
    story = STORIES["a job stays pending"]
    if fires is None:
        story = Story("LongshoreOperatorDown", story.happens, story.num_minutes, 5, ())
    check(story, scoped, namespace=namespace, service=SERVICE)

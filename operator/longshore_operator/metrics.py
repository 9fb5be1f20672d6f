"""Prometheus metrics of the operator."""

from collections import Counter as Tally
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from longshore.api.status import FINISHED_PHASES, Assignment, GpuCounts, Phase, RLJobStatus
from longshore_operator.identity import Key

_JOB: Final = ("job_namespace", "job_name")


class OperatorMetrics:
    """The operator's metrics, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "longshore_operator_reconcile_seconds",
            "Duration of one reconciliation of one job, API calls included",
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "longshore_operator_reconcile_errors", "Reconciliations that failed and are retried", registry=self.registry
        )
        self.reconcile_lag_seconds = Histogram(
            "longshore_operator_reconcile_lag_seconds",
            "From when a reconciliation of a job is due until it begins",
            buckets=(*Histogram.DEFAULT_BUCKETS[:-1], 30.0, 60.0),
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "longshore_operator_events_dropped",
            "Events that were not posted because their job had too many",
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "longshore_operator_queue_depth",
            "Jobs that wait for a reconciliation or are in one",
            registry=self.registry,
        )
        self.assignments = Counter(
            "longshore_operator_assignments",
            "Assignments that repurpose pods for a round (overlay), or set the size of the engines (baseline)",
            ["kind"],
            registry=self.registry,
        )
        for kind in ("overlay", "baseline"):
            self.assignments.labels(kind=kind)  # From 0 on, or Prometheus would not see the first one as an increase.
        self.assignment_rejections = Counter(
            "longshore_operator_assignment_rejections",
            "Assignments that a coordinator could not carry out",
            registry=self.registry,
        )
        self.leader = Gauge("longshore_operator_leader", "1 while this process leads", registry=self.registry)
        self._jobs = Gauge("longshore_operator_jobs", "RLJobs by phase", ["phase"], registry=self.registry)
        self._phases: dict[Key, Phase] = {}
        self._alarms: dict[Key, frozenset[str]] = {}
        self._gpus = Gauge(
            "longshore_operator_gpus",
            "GPUs that a job holds, by what its coordinator has acknowledged that they do",
            [*_JOB, "role"],
            registry=self.registry,
        )
        self._phase = Gauge(
            "longshore_operator_job_phase", "1 for the phase of a job", [*_JOB, "phase"], registry=self.registry
        )
        self._step = Gauge(
            "longshore_operator_job_step", "Optimizer steps that a job has done", _JOB, registry=self.registry
        )
        self._bubble = Gauge(
            "longshore_operator_job_bubble_share",
            "Share of engine time without a step in the last rollout of a job",
            _JOB,
            registry=self.registry,
        )
        self._alarm = Gauge(
            "longshore_operator_job_alarm",
            "1 for each sign that a job does not learn",
            [*_JOB, "reason"],
            registry=self.registry,
        )

    def count_assignment(self, before: Assignment, after: Assignment) -> None:
        """Count an assignment that was written."""
        if after.epoch == before.epoch:
            return
        if after.overlay is not None and after.overlay != before.overlay:
            self.assignments.labels(kind="overlay").inc()
        if before.epoch == 0 or after.baseline != before.baseline:
            self.assignments.labels(kind="baseline").inc()

    def show(self, key: Key, status: RLJobStatus) -> None:
        """Update the metrics of a job."""
        self._show_phase(key, status.phase)
        for role, num_gpus in status.gpus:
            self._gpus.labels(*key, role).set(num_gpus)
        runtime = status.runtime
        if runtime is not None:
            self._step.labels(*key).set(runtime.step)
            self._bubble.labels(*key).set(runtime.bubble_share)
        lasts = runtime is not None and status.phase not in FINISHED_PHASES
        self._show_alarms(key, frozenset(one.reason for one in runtime.alarms) if runtime and lasts else frozenset())

    def forget(self, key: Key) -> None:
        """Remove the metrics of a deleted job."""
        for role in GpuCounts.model_fields:
            self._gpus.remove(*key, role)
        self._step.remove(*key)
        self._bubble.remove(*key)
        self._show_alarms(key, frozenset())
        self._alarms.pop(key, None)
        if (phase := self._phases.pop(key, None)) is not None:
            self._phase.remove(*key, phase.value)
            self._publish()

    def _show_phase(self, key: Key, phase: Phase | None) -> None:
        before = self._phases.get(key)
        if phase is None or before is phase:
            return
        if before is not None:
            self._phase.remove(*key, before.value)
        self._phase.labels(*key, phase.value).set(1)
        self._phases[key] = phase
        self._publish()

    def _show_alarms(self, key: Key, reasons: frozenset[str]) -> None:
        for ended in self._alarms.get(key, frozenset()) - reasons:
            self._alarm.remove(*key, ended)
        for reason in reasons:
            self._alarm.labels(*key, reason).set(1)
        self._alarms[key] = reasons

    def _publish(self) -> None:
        tally = Tally(self._phases.values())
        for phase in Phase:
            self._jobs.labels(phase=phase.value).set(tally[phase])

"""Prometheus metrics of the operator."""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from longshore.api.status import Assignment, GpuCounts, Phase


class Metrics:
    """The operator's metrics, in a registry of their own."""

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
        self.assignment_rejections = Counter(
            "longshore_operator_assignment_rejections",
            "Assignments that a coordinator could not carry out",
            registry=self.registry,
        )
        self.leader = Gauge("longshore_operator_leader", "1 while this process leads", registry=self.registry)
        self._jobs = Gauge("longshore_operator_jobs", "RLJobs by phase", ["phase"], registry=self.registry)
        self._phases: dict[tuple[str, str], Phase] = {}
        self._gpus = Gauge(
            "longshore_operator_gpus",
            "GPUs that a job holds, by what its coordinator has acknowledged that they do",
            ["job_namespace", "job_name", "role"],
            registry=self.registry,
        )

    def count_assignment(self, before: Assignment, after: Assignment) -> None:
        """What is asked of a job's GPU pods was written."""
        if after.epoch == before.epoch:
            return
        if after.overlay is not None and after.overlay != before.overlay:
            self.assignments.labels(kind="overlay").inc()
        if before.epoch == 0 or after.baseline != before.baseline:
            self.assignments.labels(kind="baseline").inc()

    def set_phase(self, key: tuple[str, str], phase: Phase | None) -> None:
        """Remember the phase of a job."""
        if phase is None or self._phases.get(key) is phase:
            return
        self._phases[key] = phase
        self._publish()

    def set_gpus(self, key: tuple[str, str], counts: GpuCounts) -> None:
        """What the GPUs of a job do."""
        for role, num_gpus in counts:
            self._gpus.labels(*key, role).set(num_gpus)

    def forget(self, key: tuple[str, str]) -> None:
        """A job was deleted."""
        for role in GpuCounts.model_fields:
            self._gpus.remove(*key, role)
        if self._phases.pop(key, None) is not None:
            self._publish()

    def _publish(self) -> None:
        tally = Tally(self._phases.values())
        for phase in Phase:
            self._jobs.labels(phase=phase.value).set(tally[phase])

"""A job keeps its promises and settles, whatever happens to the pods and however late the operator sees it.

No assignment asks for what it must not, whatever the coordinator reports, however late or often.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.round_status import RepurposingBenefit, RoundKind
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, ConditionStatus, Phase, RLJobStatus
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Observed
from longshore_operator.pod_view import PodView
from longshore_operator.reconcile import reconcile
from tests.properties import examples
from tests.unit.operator.assigned import COSTS, PAYS, after_rounds, at_milestone, load
from tests.unit.operator.model import START, Cluster, make_job

BACKOFF_LIMIT = 3
CRASHES = st.sampled_from([1, 2, 134, 137, 139])
EXITS = st.one_of(CRASHES, st.sampled_from([int(code) for code in ExitCode if code != ExitCode.USER_ERROR]))


class AnyHistory(RuleBasedStateMachine):
    """Pods progress, fail and vanish at random; the operator looks now and then, with views of any age."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(spec={"backoffLimit": BACKOFF_LIMIT})
        self.snapshots: list[tuple[PodView, ...]] = [()]
        self.seen = 0
        self.created: list[tuple[int, PodView]] = []
        """Pods that the operator created, each with the number of snapshots that were taken before."""
        self.num_crashes = 0
        self.last_attempt = 0
        self.ended: Phase | None = None

    def _note(self) -> None:
        self.snapshots.append(tuple(self.cluster.pods.values()))

    @rule(age=st.integers(0, 3))
    def the_operator_looks(self, age: int) -> None:
        # A watch delivers changes in order: a view may be old, but never older than the one before.
        self.seen = max(self.seen, len(self.snapshots) - 1 - age)
        before = set(self.cluster.pods.values())
        self.cluster.step(self._view())
        self.created += [(len(self.snapshots), pod) for pod in self.cluster.pods.values() if pod not in before]
        self._note()

    def _view(self) -> tuple[PodView, ...]:
        """A snapshot, and what the operator itself created since."""
        view = {pod.name: pod for pod in self.snapshots[self.seen]}
        return tuple((view | {pod.name: pod for number, pod in self.created if number > self.seen}).values())

    @rule()
    def the_operator_restarts_and_forgets(self) -> None:
        self.cluster.children.clear()
        self.seen = len(self.snapshots) - 1
        self.created.clear()

    @rule(seconds=st.sampled_from([0.3, 1, 11, 400]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @rule()
    def pods_progress(self) -> None:
        self.cluster.kubelet()
        self._note()

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), code=EXITS)
    def a_pod_exits(self, data: st.DataObject, code: int) -> None:
        name = data.draw(st.sampled_from(self.cluster.names()))
        pod = self.cluster.pods[name]
        if pod.scheduled and not pod.terminal:
            self.cluster.exit(name, code)
            self.num_crashes += code not in {int(code) for code in ExitCode}
            self._note()

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), how=st.sampled_from(["delete", "vanish", "evict"]))
    def a_pod_is_lost(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(self.cluster.names()))
        if how == "delete":
            self.cluster.delete(name)
        elif how == "vanish":
            del self.cluster.pods[name]
        elif not self.cluster.pods[name].terminal:
            self.cluster.change(name, phase="Failed", reason="Evicted", ready=False)
        self._note()

    @rule(suspend=st.booleans())
    def someone_suspends_or_resumes(self, suspend: bool) -> None:
        if self.cluster.job.spec.suspend != suspend:
            self.cluster.spec = self.cluster.spec | {"suspend": suspend}
            self.cluster.generation += 1

    @rule(replicas=st.integers(1, 3))
    def someone_resizes(self, replicas: int) -> None:
        self.cluster.spec = self.cluster.spec | {"workers": {"replicas": replicas}}
        self.cluster.generation += 1

    @invariant()
    def never_two_attempts_at_once(self) -> None:
        assert len({pod.attempt for pod in self.cluster.pods.values()}) <= 1

    @invariant()
    def never_more_pods_than_asked_for(self) -> None:
        assert len(self.cluster.workers()) <= 3
        coordinators = [pod for pod in self.cluster.pods.values() if pod.component is Component.COORDINATOR]
        assert len(coordinators) <= 1

    @invariant()
    def attempts_only_grow_and_the_end_is_final(self) -> None:
        status = self.cluster.status
        assert status.attempt >= self.last_attempt
        self.last_attempt = status.attempt
        if self.ended is not None:
            assert status.phase is self.ended
        if status.phase in FINISHED_PHASES:
            self.ended = status.phase

    @invariant()
    def a_crash_is_counted_at_most_once(self) -> None:
        assert self.cluster.status.failures <= min(self.num_crashes, BACKOFF_LIMIT + 1)

    def teardown(self) -> None:
        """Left alone, every history settles: with all pods ready, suspended, or ended and nothing running."""
        cluster = self.cluster
        for _ in range(4):
            cluster.reconcile_until_stable(limit=60)
            cluster.pass_time(400)
        cluster.reconcile_until_stable()
        running = [pod for pod in cluster.pods.values() if not pod.terminal]
        if cluster.status.phase in FINISHED_PHASES or cluster.status.phase is Phase.SUSPENDED:
            assert running == []
        else:
            assert cluster.status.phase is Phase.RUNNING, cluster.status
            assert len(running) == len(cluster.pods) == 2 + cluster.job.spec.workers.replicas
        assert cluster.plan().actions == ()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)

PODS = st.builds(
    PodView,
    name=st.just(""),
    namespace=st.just("team"),
    uid=st.just(""),
    job=st.just("demo"),
    component=st.sampled_from(Component),
    index=st.integers(0, 4),
    attempt=st.integers(0, 4),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    reason=st.sampled_from(["", "Evicted", "UnexpectedAdmissionError"]),
    ip=st.sampled_from([None, "10.0.0.1"]),
    ready=st.booleans(),
    deleting=st.booleans(),
    scheduled=st.booleans(),
    exit_code=st.sampled_from([None, 0, 1, 64, 75, 137]),
    disruption=st.sampled_from([None, "PreemptionByScheduler"]),
    owner_uid=st.sampled_from(["job-uid", "old-uid"]),
)
STATUSES = st.builds(
    RLJobStatus,
    phase=st.sampled_from([None, *Phase]),
    attempt=st.integers(0, 4),
    failures=st.integers(0, 5),
    start_time=st.just("2025-12-31T23:59:00Z"),
    restart_time=st.sampled_from([None, "2025-12-31T23:59:30Z", "2026-01-01T00:01:00Z"]),
    completion_time=st.just("2025-12-31T23:59:59Z"),
)


def _named(pods: list[PodView]) -> tuple[PodView, ...]:
    """Names as the API server keeps them: unique."""
    named = {}
    for pod in pods:
        index = 0 if pod.component is Component.COORDINATOR else pod.index
        name = "demo-coordinator" if index == 0 and pod.component is Component.COORDINATOR else (
            f"demo-{pod.component}-{index}"
        )  # fmt: skip
        named[name] = replace(pod, name=name, uid=f"uid-{name}", index=index)
    return tuple(named.values())


@given(status=STATUSES, pods=st.lists(PODS, max_size=6).map(_named), suspend=st.booleans())
@settings(max_examples=examples(120), deadline=None)
def test_any_observed_state_gives_one_plan_and_its_application_settles(
    status: RLJobStatus, pods: tuple[PodView, ...], suspend: bool
) -> None:
    job, config = make_job(status, suspend=suspend), OperatorConfig("runtime:1")
    observed = Observed(pods=pods, ray_token="token")
    assert reconcile(job, observed, START, config) == reconcile(job, observed, START, config)
    cluster = Cluster(spec={"suspend": suspend}, status=status, pods={pod.name: pod for pod in pods})
    for _ in range(3):
        cluster.reconcile_until_stable(limit=60)
        cluster.pass_time(400)
    assert cluster.plan().actions == ()


REPLICAS, GPUS_PER_POD = 4, 4
POD_LOADS = st.fixed_dictionaries(
    {
        "pod": st.integers(0, REPLICAS),
        "gpus": st.just(GPUS_PER_POD) | st.integers(0, GPUS_PER_POD),
        "kv_capacity_tokens": st.sampled_from([1_000, 1_000, 1_000, 0]),
        "running_tokens": st.integers(0, 1_000),
    }
)
LOADS = st.fixed_dictionaries(
    {
        "projected_kv_peak_tokens": st.sampled_from([0, 500, 4_000]),
        "pods": st.lists(POD_LOADS, min_size=1, max_size=REPLICAS + 1, unique_by=lambda load: int(load["pod"])),
    }
)
ROUNDS = st.fixed_dictionaries(
    {
        "number": st.integers(0, 6),
        "kind": st.sampled_from(RoundKind),
        "fraction_finished": st.sampled_from([0.0, 0.2, 0.3, 0.5, 1.0]),
        "load": st.none() | LOADS,
    }
)
PREEMPTIONS = st.sampled_from([0, 0, 0, 30, 90])
BUSY = st.lists(st.integers(0, 1_000), min_size=2, max_size=REPLICAS).map(tuple)
"""Tokens of each pod that samples."""
FINISHED_ROUNDS = st.fixed_dictionaries(
    {
        "number": st.integers(1, 30),
        "kind": st.sampled_from(RoundKind),
        "preemptions": PREEMPTIONS,
    }
)
TELEMETRY = st.fixed_dictionaries(
    {
        "attempt": st.integers(0, 4),
        "step": st.integers(0, 6),
        "round": st.none() | ROUNDS,
        "recent_rounds": st.lists(FINISHED_ROUNDS, max_size=16),
        "rejected_epoch": st.integers(0, 6),
        "repurposing": st.dictionaries(st.sampled_from(RoundKind), st.sampled_from([PAYS, PAYS, COSTS])),
        "trainer_pods": st.lists(st.integers(0, REPLICAS), max_size=3),
        "tp_size": st.integers(0, 4),
        "tp_sizes": st.sampled_from([[], [1, 2, 4], [1, 2], [1], [2, 4], [0, 3]]),
    }
).map(RuntimeStatus.model_validate)


class AnyTelemetry(RuleBasedStateMachine):
    """Telemetry comes late, repeated, of other attempts, or not at all, while coordinator and operator restart."""

    num_changes: ClassVar[Counter[str]] = Counter()
    """Changes of what was assigned, in all histories."""

    def __init__(self) -> None:
        super().__init__()
        rollout = {"handover": "Streamed", "engine": {"parallelism": "Adaptive"}}
        workers = {"replicas": REPLICAS, "gpusPerPod": GPUS_PER_POD}
        self.cluster = Cluster(spec={"rollout": rollout, "workers": workers, "reward": {"pods": 0}})
        self.cluster.reconcile_until_stable()
        self.reported: list[RuntimeStatus] = []
        self.num_of_attempt = 0
        """Reports since the attempt started."""

    @rule(telemetry=TELEMETRY, of_this_attempt=st.booleans())
    def the_coordinator_reports_anything(self, telemetry: RuntimeStatus, of_this_attempt: bool) -> None:
        if of_this_attempt:
            telemetry = telemetry.model_copy(update={"attempt": self.cluster.status.attempt})
        self._reports(telemetry)

    @rule(
        number=st.integers(1, 6), peak=st.sampled_from([500, 4_000]), busy=BUSY, benefit=st.sampled_from([PAYS, COSTS])
    )
    def the_coordinator_reports_a_milestone(
        self, number: int, peak: int, busy: tuple[int, ...], benefit: RepurposingBenefit
    ) -> None:
        known = {"attempt": self.cluster.status.attempt, "repurposing": {RoundKind.SHORT: benefit}}
        self._reports(at_milestone(number, load=load(peak, busy, GPUS_PER_POD), **known))

    @rule(first=st.integers(1, 20), preemptions=st.lists(PREEMPTIONS, min_size=1, max_size=8))
    def the_coordinator_reports_rounds_that_are_over(self, first: int, preemptions: list[int]) -> None:
        self._reports(after_rounds(*preemptions, first=first, attempt=self.cluster.status.attempt))

    @precondition(lambda self: self.reported)
    @rule(data=st.data())
    def something_old_arrives(self, data: st.DataObject) -> None:
        self._arrives(data.draw(st.sampled_from(self.reported)))

    @precondition(lambda self: self.num_of_attempt >= 1)  # An attempt without reports would only take time.
    @rule()
    def a_new_attempt_starts(self) -> None:
        self.num_of_attempt = 0
        self.cluster.delete("demo-coordinator")
        self.cluster.reconcile_until_stable()

    @rule()
    def the_operator_restarts_and_forgets(self) -> None:
        self.cluster.children.clear()
        self.cluster.reported_rejection = 0

    @rule()
    def the_operator_reconciles(self) -> None:
        before = self.cluster.status.assignment, self.cluster.status.planner
        self.cluster.step()
        assert (self.cluster.status.assignment, self.cluster.status.planner) == before, "nothing came in between"

    def _reports(self, telemetry: RuntimeStatus) -> None:
        self.reported.append(telemetry)
        self.num_of_attempt += 1
        self._arrives(telemetry)

    def _arrives(self, telemetry: RuntimeStatus) -> None:
        before = self.cluster.status.assignment
        self.cluster.status = self.cluster.status.model_copy(update={"runtime": telemetry})
        self.cluster.step()
        after = self.cluster.status.assignment
        if after == before:
            return
        assert after.epoch == before.epoch + 1
        assert after.reason
        if after.baseline != before.baseline:
            assert set(after.baseline.tp_sizes.values()) <= set(telemetry.tp_sizes)
        assert all(GPUS_PER_POD % size == 0 for size in after.baseline.tp_sizes.values())
        self.num_changes["sizes"] += after.baseline != before.baseline
        overlay = after.overlay
        if overlay is None or overlay == before.overlay:
            return
        self.num_changes["pods"] += 1
        assert telemetry.round is not None and telemetry.round.load is not None
        assert overlay.attempt == telemetry.attempt == self.cluster.status.attempt
        assert overlay.round == telemetry.round.number > telemetry.step
        gpus = {load.pod: max(1, load.gpus) for load in telemetry.round.load.pods if load.pod < REPLICAS}
        assert overlay.trainer_pods
        assert set(overlay.trainer_pods) < gpus.keys(), "pods that sample, and one of them stays"
        assert 2 * sum(gpus[pod] for pod in overlay.trainer_pods) <= sum(gpus.values())

    @invariant()
    def labels_follow_what_the_coordinator_of_this_attempt_acknowledged(self) -> None:
        runtime, attempt = self.cluster.status.runtime, self.cluster.status.attempt
        if runtime is None or runtime.attempt != attempt:
            return
        for pod in self.cluster.workers():
            if pod.attempt == attempt and not pod.deleting:
                assert pod.role == ("trainer" if pod.index in runtime.trainer_pods else "rollout")

    @invariant()
    def the_condition_says_whether_pods_of_this_attempt_train(self) -> None:
        status = self.cluster.status
        shown = [c.type for c in status.conditions if c.status is ConditionStatus.TRUE]
        reported = status.runtime is not None and status.runtime.attempt == status.attempt
        assert ("Repurposed" in shown) == (reported and bool(status.runtime and status.runtime.trainer_pods))


def test_no_assignment_asks_for_what_it_must_not() -> None:
    AnyTelemetry.num_changes.clear()
    run_state_machine_as_test(
        AnyTelemetry, settings=settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
    )
    assert min(AnyTelemetry.num_changes[what] for what in ("pods", "sizes")) >= 10, "hardly anything was assigned"

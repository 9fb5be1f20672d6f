"""Many jobs, their pods and an operator that forgets: the real reconcile on every job, and what the pods hold."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, Phase
from longshore_operator.admission.demand import gang
from longshore_operator.admission.ledger import Ledger, application
from longshore_operator.config import AdmissionConfig, PriorityClass
from longshore_operator.identity import Key
from longshore_operator.reconcile import reconcile
from tests.properties import examples
from tests.unit.operator.model import Cluster

GPU = "nvidia.com/gpu"
CAPACITY = 8
CONFIG = AdmissionConfig(
    capacity={GPU: CAPACITY}, quotas={"b": {GPU: 4}}, priority_classes={"high": PriorityClass(value=1)}
)


class Member(Cluster):
    """A job of the fleet, with its pods."""

    metadata: dict[str, Any]
    taken: tuple[int, int] = (0, 0)
    """Attempt of the coordinator that runs, and worker pods that it uses, which it may not have reported yet."""

    @property
    def num_workers(self) -> int:
        """Worker pods that the coordinator is asked to use."""
        size = self.status.assignment.size
        return size.workers if size is not None else self.job.spec.workers.replicas

    def has_coordinator(self) -> bool:
        """The coordinator of the attempt runs."""
        coordinators = [pod for pod in self.pods.values() if pod.component is Component.COORDINATOR]
        return any(pod.phase == "Running" and pod.attempt == self.status.attempt for pod in coordinators)

    def take_size(self) -> None:
        """The coordinator goes on with the size that it is asked for."""
        if self.has_coordinator():
            self.taken = (self.status.attempt, self.num_workers)

    def report_size(self) -> None:
        """It acknowledges what it is asked for, if it has done it."""
        if self.has_coordinator() and self.taken == (self.status.attempt, self.num_workers):
            runtime = RuntimeStatus(attempt=self.status.attempt, size=self.status.assignment.size)
            self.status = self.status.model_copy(update={"runtime": runtime})

    @property
    def job(self) -> RLJob:
        job = super().job
        return job.model_copy(update={"metadata": job.metadata | self.metadata})


def _least(member: Member) -> int:
    return gang(member.job.spec, member.job.spec.workers.least_replicas)[GPU]


class AnyFleet(RuleBasedStateMachine):
    """Jobs arrive, end, fail, and are suspended; their pods take their time; the operator restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[Key, Member] = {}
        self.ledger = self._new_ledger()

    @rule(team=st.sampled_from(["a", "b"]), replicas=st.integers(1, 9), least=st.integers(1, 9), is_high=st.booleans())
    def a_job_arrives(self, team: str, replicas: int, least: int, is_high: bool) -> None:
        if len(self.members) >= 6:
            return
        name = f"job-{len(self.members)}"
        workers = {"replicas": replicas, "minReplicas": min(least, replicas), "gpusPerPod": 1}
        member = Member(spec={"workers": workers, "reward": {"pods": 0}})
        member.metadata = {"name": name, "namespace": team, "creationTimestamp": f"{len(self.members):04}"}
        member.metadata |= {"labels": {"longshore.dev/priority-class": "high"} if is_high else {}}
        self.members[team, name] = member

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_pass(self, data: st.DataObject) -> None:
        self._pass(data.draw(st.sampled_from(sorted(self.members))))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), times=st.integers(1, 4))
    def pods_progress(self, data: st.DataObject, times: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.members)))
        for _ in range(times):
            self.members[key].kubelet()
            self._pass(key)

    @precondition(lambda self: self.members)
    @rule(times=st.integers(1, 8), answers=st.booleans())
    def everything_progresses(self, times: int, answers: bool) -> None:
        for _ in range(times):
            for key, member in self.members.items():
                if answers:
                    member.report_size()
                    member.take_size()
                self._pass(key)
                member.kubelet()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), tells=st.booleans())
    def a_coordinator_takes_its_size(self, data: st.DataObject, tells: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.members)))
        self.members[key].take_size()
        if tells:
            self.members[key].report_size()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), code=st.sampled_from([0, 1, 75]))
    def a_coordinator_ends(self, data: st.DataObject, code: int) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        for pod in list(member.pods.values()):
            if pod.component is Component.COORDINATOR and pod.phase == "Running":
                member.exit(pod.name, code)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), suspend=st.booleans())
    def someone_suspends_or_resumes(self, data: st.DataObject, suspend: bool) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        member.spec = member.spec | {"suspend": suspend}
        member.generation += 1

    @precondition(lambda self: self.members)
    @rule()
    def the_operator_restarts_and_forgets(self) -> None:
        before = {key: member.job.status.admission for key, member in self.members.items()}
        self.ledger = self._new_ledger()
        self._look_at_all()
        for key, known in before.items():
            admission = self.ledger.state(key)
            if known is not None and known.admitted and admission is not None and not self._is_out(key):
                assert admission.admitted, "what was admitted stays admitted"

    @rule(seconds=st.sampled_from([1, 400]))
    def time_passes(self, seconds: float) -> None:
        for member in self.members.values():
            member.pass_time(seconds)

    def _is_out(self, key: Key) -> bool:
        job = self.members[key].job
        return job.spec.suspend or job.status.phase in FINISHED_PHASES

    def _new_ledger(self) -> Ledger:
        assert CONFIG.limits is not None
        return Ledger(CONFIG.limits)

    def _look_at_all(self) -> None:
        for key, member in self.members.items():
            self.ledger.note(key, application(member.job, member.pods.values(), CONFIG, member.now))

    def _pass(self, key: Key) -> None:
        member = self.members[key]
        self.ledger.note(key, application(member.job, member.pods.values(), CONFIG, member.now))
        self.ledger.decide()
        observed = member.observed(admission=self.ledger.state(key))
        member.apply(reconcile(member.job, observed, member.now, member.config))
        if member.status.phase is Phase.QUEUED:
            self._keeps_no_pods_but_those_that_a_last_checkpoint_needs(member)

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held = {key: self._held(member) for key, member in self.members.items()}
        assert sum(held.values()) <= CAPACITY
        assert sum(count for (team, _), count in held.items() if team == "b") <= 4

    def _held(self, member: Member) -> int:
        """GPUs of the least gang, as long as one of the job's pods lives, and of every worker pod beyond it."""
        pods = [pod for pod in member.pods.values() if not pod.terminal]
        workers = [pod.index + 1 for pod in pods if pod.component is Component.WORKER]
        return max(_least(member), *workers, 0) if pods else 0

    @invariant()
    def no_coordinator_loses_a_pod_that_it_uses(self) -> None:
        """But when its attempt ends."""
        for member in self.members.values():
            attempt, num_workers = member.taken
            if not member.has_coordinator() or attempt != member.status.attempt:
                continue
            if member.status.phase in {Phase.QUEUED, Phase.SUSPENDED, Phase.RESTARTING, *FINISHED_PHASES}:
                continue
            used = [pod for pod in member.pods.values() if pod.component is Component.WORKER]
            assert not any(pod.deleting for pod in used if pod.index < num_workers and pod.attempt == attempt)

    def _keeps_no_pods_but_those_that_a_last_checkpoint_needs(self, member: Member) -> None:
        """Holds after each pass of the job: between passes the coordinator may end, which the next pass sees."""
        staying = [pod for pod in member.pods.values() if not (pod.deleting or pod.terminal)]
        assert not staying or self._is_saving(member)
        assert {pod.component for pod in staying} <= {Component.WORKER, Component.TRAINER}

    def _is_saving(self, member: Member) -> bool:
        coordinators = [pod for pod in member.pods.values() if pod.component is Component.COORDINATOR]
        return any(pod.deleting and pod.phase == "Running" for pod in coordinators)

    def _fits(self, key: Key) -> bool:
        return _least(self.members[key]) <= (4 if key[0] == "b" else CAPACITY)

    def teardown(self) -> None:
        """Every job that fits runs in the end, when those that run come to their ends."""
        for key in self.members:
            self.members[key].spec = self.members[key].spec | {"suspend": False}
        for _ in range(40 * (len(self.members) + 1)):
            for key, member in self.members.items():
                member.pass_time(500)
                self._pass(key)
                member.kubelet()
                member.take_size()
                member.report_size()
                if member.status.phase is Phase.RUNNING:
                    member.exit(f"{key[1]}-coordinator", 0)
                    self._pass(key)
            if all(
                member.status.phase in FINISHED_PHASES or not self._fits(key) for key, member in self.members.items()
            ):
                break
        for key, member in self.members.items():
            if self._fits(key):
                assert member.status.phase in FINISHED_PHASES, member.status
            else:
                assert member.status.phase in {Phase.QUEUED, *FINISHED_PHASES}
                assert member.status.attempt == 0


AnyFleet.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
TestAnyFleet = AnyFleet.TestCase

"""Whatever arrives, ends, is suspended or changes its mind: no GPU is promised twice, and nobody waits for ever."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longshore_operator.admission.demand import CLUSTER, GpuRequest, Key, Limits, Stage
from longshore_operator.admission.queue import QueueDecision, Why, decide
from tests.properties import examples

KINDS = ("nvidia.com/gpu", "amd.com/gpu")
TEAMS = ("a", "b", "c")


class AnyFleet(RuleBasedStateMachine):
    """Jobs come and go at random; between two events, the decision is carried out as the operator would."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits()
        self.jobs: dict[Key, GpuRequest] = {}
        self.num_created = 0
        self.overtaken: dict[Key, set[Key]] = {}
        """Jobs that were admitted behind a job that waited as the head of the cluster, and still hold GPUs."""
        self.decision = QueueDecision()

    @initialize(
        capacity=st.fixed_dictionaries({kind: st.integers(1, 16) for kind in KINDS}),
        quotas=st.dictionaries(st.sampled_from(TEAMS), st.fixed_dictionaries({KINDS[0]: st.integers(1, 16)})),
    )
    def limits_are_set(self, capacity: dict[str, int], quotas: dict[str, dict[str, int]]) -> None:
        self.limits = Limits(capacity, quotas)

    @rule(
        team=st.sampled_from(TEAMS),
        gpus=st.dictionaries(st.sampled_from(KINDS), st.integers(1, 10), min_size=1),
        priority=st.integers(0, 2),
    )
    def a_job_arrives(self, team: str, gpus: dict[str, int], priority: int) -> None:
        self.num_created += 1
        key = (team, f"job-{self.num_created}")
        self.jobs[key] = GpuRequest(key, gpus, priority, f"{self.num_created:06}")
        self._decide()

    @precondition(lambda self: self._at(Stage.ADMITTED))
    @rule(data=st.data())
    def a_job_begins_to_end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._at(Stage.ADMITTED)))
        self.jobs[key] = replace(self.jobs[key], stage=Stage.LEAVING)
        self._decide()

    @precondition(lambda self: self._at(Stage.LEAVING))
    @rule(data=st.data(), returns=st.booleans())
    def the_pods_of_a_job_are_gone(self, data: st.DataObject, returns: bool) -> None:
        key = data.draw(st.sampled_from(self._at(Stage.LEAVING)))
        if returns:
            self.jobs[key] = replace(self.jobs[key], stage=Stage.WAITING)
        else:
            del self.jobs[key]
        self._decide()

    @precondition(lambda self: self._at(Stage.WAITING))
    @rule(data=st.data())
    def a_job_that_waits_is_deleted(self, data: st.DataObject) -> None:
        del self.jobs[data.draw(st.sampled_from(self._at(Stage.WAITING)))]
        self._decide()

    def _at(self, stage: Stage) -> list[Key]:
        return sorted(key for key, job in self.jobs.items() if job.stage is stage)

    def _decide(self) -> None:
        before = {key: self.jobs[key] for key in self._at(Stage.WAITING)}
        self.decision = decide(self.jobs.values(), self.limits)
        for key in self.decision.admitted:
            self.jobs[key] = replace(self.jobs[key], stage=Stage.ADMITTED)
        for key, by in self.decision.preempted.items():
            assert self.jobs[key].stage is Stage.ADMITTED
            assert self.jobs[key].priority < self.jobs[by].priority, "preemption is for a higher priority only"
            self.jobs[key] = replace(self.jobs[key], stage=Stage.LEAVING)
        self._note_overtaking(before)

    def _note_overtaking(self, waited: dict[Key, GpuRequest]) -> None:
        holding = {key for key, job in self.jobs.items() if job.stage is not Stage.WAITING}
        head = self._head()
        if head is None:
            self.overtaken = {}
            return
        past = self.overtaken.get(head.key, set()) & holding
        new = {key for key in self.decision.admitted if waited[key].order > head.order}
        self.overtaken = {head.key: past | new}

    def _head(self) -> GpuRequest | None:
        """The first job that waits for GPUs of the cluster, unless its quota holds it back."""
        waiting = [job for job in self.jobs.values() if job.stage is Stage.WAITING]
        for job in sorted(waiting, key=lambda one: one.order):
            why = self.decision.waiting[job.key].why
            if why is Why.TOO_LARGE:
                continue
            return None if why is Why.NO_QUOTA or self._quota_lacks(job) else job
        return None

    def _quota_lacks(self, job: GpuRequest) -> bool:
        demand = self.limits.demand(job.key[0], job.gpus)
        return any(amount > self._free(pool) for pool, amount in demand.items() if pool[0] != CLUSTER)

    def _free(self, pool: tuple[str, str], without: "set[Key] | frozenset[Key]" = frozenset()) -> int:
        holders = [job for job in self.jobs.values() if job.stage is not Stage.WAITING and job.key not in without]
        return self.limits.size(pool) - sum(self.limits.demand(job.key[0], job.gpus).get(pool, 0) for job in holders)

    @invariant()
    def no_gpu_is_promised_twice(self) -> None:
        for kind in self.limits.capacity:
            assert self._free((CLUSTER, kind)) >= 0
        for team, quota in self.limits.quotas.items():
            for kind in quota:
                assert self._free((team, kind)) >= 0

    @invariant()
    def a_decision_that_is_carried_out_leaves_nothing_to_decide(self) -> None:
        repeated = decide(self.jobs.values(), self.limits)
        assert (repeated.admitted, dict(repeated.preempted)) == ((), {})
        assert set(repeated.waiting) == set(self._at(Stage.WAITING))

    @invariant()
    def the_head_starts_as_soon_as_it_would_without_the_jobs_that_overtook_it(self) -> None:
        for key, overtakers in self.overtaken.items():
            demand = self.limits.demand(key[0], self.jobs[key].gpus)
            assert any(amount > self._free(pool, overtakers) for pool, amount in demand.items())

    @invariant()
    def the_head_waits_only_for_jobs_that_it_may_not_preempt_or_that_leave(self) -> None:
        head = self._head()
        if head is None:
            return
        preemptible = {
            key for key in self._at(Stage.ADMITTED) if self.jobs[key].priority < head.priority
        }  # fmt: skip
        leaving = set(self._at(Stage.LEAVING))
        demand = self.limits.demand(head.key[0], head.gpus)
        if all(amount <= self._free(pool, preemptible | leaving) for pool, amount in demand.items()):
            assert all(amount <= self._free(pool, leaving) for pool, amount in demand.items())

    def teardown(self) -> None:
        """Everything that fits comes to its end, if what runs ends."""
        for _ in range(3 * len(self.jobs) + 1):
            for key in [*self._at(Stage.ADMITTED), *self._at(Stage.LEAVING)]:
                if self.jobs[key].stage is Stage.ADMITTED or key not in self.decision.preempted:
                    del self.jobs[key]
                else:
                    self.jobs[key] = replace(self.jobs[key], stage=Stage.WAITING)
            self._decide()
        for key in self.jobs:
            assert self.decision.waiting[key].why is Why.TOO_LARGE, "a job that fits waits for ever"


AnyFleet.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestAnyFleet = AnyFleet.TestCase

"""Whatever arrives, ends, is suspended or changes its mind: no GPU is promised twice, and nobody waits for ever."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longshore_operator.admission.demand import CLUSTER, Extra, GpuRequest, Limits, Stage
from longshore_operator.admission.queue import QueueDecision, Why, decide
from longshore_operator.identity import Key
from tests.properties import examples

KINDS = ("nvidia.com/gpu", "amd.com/gpu")
TEAMS = ("a", "b", "c")


class AnyFleet(RuleBasedStateMachine):
    """Jobs come and go at random; between two events, the decision is carried out as the operator would."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits()
        self.jobs: dict[Key, GpuRequest] = {}
        self.arrived: dict[Key, GpuRequest] = {}
        """As they came."""
        self.num_created = 0
        self.overtaken: dict[Key, set[Key]] = {}
        """Jobs that were admitted behind a job that waited as the head of the cluster, and still hold GPUs."""
        self.sizes_before: dict[Key, dict[Key, int]] = {}
        """By head: worker pods beyond those that they need which elastic jobs held when it became the head."""
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
        more=st.integers(0, 4),
        gpus_per_pod=st.integers(1, 3),
    )
    def a_job_arrives(self, team: str, gpus: dict[str, int], priority: int, more: int, gpus_per_pod: int) -> None:
        """`more` worker pods than it needs would be welcome to it."""
        self.num_created += 1
        key = (team, f"job-{self.num_created}")
        resource = min(gpus)
        extra = Extra(resource, min(gpus_per_pod, gpus[resource]), more) if more else None
        self.jobs[key] = self.arrived[key] = GpuRequest(key, gpus, priority, f"{self.num_created:06}", extra=extra)
        self._decide()

    @precondition(lambda self: self._giving_back())
    @rule(data=st.data())
    def a_job_gives_a_worker_pod_back(self, data: st.DataObject) -> None:
        key, extra = data.draw(st.sampled_from(self._giving_back()))
        self._change(key, replace(extra, num_held=extra.num_held - 1, is_overdue=False))
        self._decide()

    @precondition(lambda self: self._giving_back())
    @rule(data=st.data())
    def a_job_does_not_answer(self, data: st.DataObject) -> None:
        key, extra = data.draw(st.sampled_from(self._giving_back()))
        self._change(key, replace(extra, is_overdue=True))
        self._decide()

    @precondition(lambda self: self._unsettled())
    @rule(data=st.data())
    def a_job_runs_with_its_size(self, data: st.DataObject) -> None:
        key, extra = data.draw(st.sampled_from(self._unsettled()))
        self._change(key, replace(extra, is_settled=True))
        self._decide()

    def _elastic(self) -> list[tuple[Key, Extra]]:
        jobs = (self.jobs[key] for key in self._at(Stage.ADMITTED))
        return [(job.key, job.extra) for job in jobs if job.extra is not None]

    def _giving_back(self) -> list[tuple[Key, Extra]]:
        return [(key, extra) for key, extra in self._elastic() if extra.num_held > extra.num_granted]

    def _unsettled(self) -> list[tuple[Key, Extra]]:
        return [
            (key, extra)
            for key, extra in self._elastic()
            if extra.num_held == extra.num_granted and not extra.is_settled
        ]

    def _change(self, key: Key, extra: Extra) -> None:
        self.jobs[key] = replace(self.jobs[key], extra=extra)

    @precondition(lambda self: self._at(Stage.ADMITTED))
    @rule(data=st.data())
    def a_job_begins_to_end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._at(Stage.ADMITTED)))
        self._leave(key)
        self._decide()

    @precondition(lambda self: self._at(Stage.LEAVING))
    @rule(data=st.data(), returns=st.booleans())
    def the_pods_of_a_job_are_gone(self, data: st.DataObject, returns: bool) -> None:
        key = data.draw(st.sampled_from(self._at(Stage.LEAVING)))
        if returns:
            self._return(key)
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

    def _leave(self, key: Key) -> None:
        job = self.jobs[key]
        self.jobs[key] = replace(job, gpus=job.held, stage=Stage.LEAVING, extra=None)

    def _return(self, key: Key) -> None:
        self.jobs[key] = self.arrived[key]

    def _decide(self) -> None:
        before = {key: self.jobs[key] for key in self._at(Stage.WAITING)}
        self.decision = decide(self.jobs.values(), self.limits)
        self._require_shrinking_before_preemption(before)
        for key in self.decision.admitted:
            self.jobs[key] = replace(self.jobs[key], stage=Stage.ADMITTED)
        for key, num_pods in self.decision.sizes.items():
            extra = self.jobs[key].extra
            assert self.jobs[key].stage is Stage.ADMITTED
            assert extra is not None
            assert 0 <= num_pods <= extra.num_most
            assert num_pods != extra.num_granted
            assert num_pods < extra.num_granted or extra.is_settled, "a job grows when its last change is over"
            held = max(num_pods, extra.num_held)
            self._change(key, replace(extra, num_granted=num_pods, num_held=held, is_settled=False))
        for key, by in self.decision.preempted.items():
            victim = self.jobs[key]
            assert victim.stage is Stage.ADMITTED
            is_overdue = victim.extra is not None and victim.extra.is_overdue
            assert is_overdue or victim.priority < self.jobs[by].priority, "preemption is for a higher priority only"
            self._leave(key)
        self._note_overtaking(before)

    def _require_shrinking_before_preemption(self, waiting: dict[Key, GpuRequest]) -> None:
        """The first of all that wait preempts nobody if what elastic jobs do not need is enough for it."""
        head = min(waiting.values(), key=lambda one: one.order, default=None)
        if head is None or head.key not in self.decision.preempted.values():
            return
        answering = {key for key, extra in self._elastic() if not extra.is_overdue}
        leaving = frozenset(self._at(Stage.LEAVING))
        demand = self.limits.demand(head.key[0], head.gpus)
        assert any(amount > self._free(pool, leaving, shrunk=answering) for pool, amount in demand.items())

    def _note_overtaking(self, waited: dict[Key, GpuRequest]) -> None:
        holding = {key for key, job in self.jobs.items() if job.stage is not Stage.WAITING}
        head = self._head()
        if head is None:
            self.overtaken, self.sizes_before = {}, {}
            return
        past = self.overtaken.get(head.key, set()) & holding
        new = {key for key in self.decision.admitted if waited[key].order > head.order}
        self.overtaken = {head.key: past | new}
        grown = {key: extra for key, extra in self._elastic() if extra.num_granted}
        known = self.sizes_before.get(head.key)
        if known is None:
            self.sizes_before = {head.key: {key: extra.num_held for key, extra in grown.items()}}
        else:
            self.sizes_before = {
                head.key: {key: min(known.get(key, 0), extra.num_held) for key, extra in grown.items()}
            }

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

    def _free(
        self,
        pool: tuple[str, str],
        without: "set[Key] | frozenset[Key]" = frozenset(),
        shrunk: "set[Key] | frozenset[Key]" = frozenset(),
    ) -> int:
        """GPUs that are free, or would be `without` some jobs, and if others were `shrunk` to what they need."""
        holders = [job for job in self.jobs.values() if job.stage is not Stage.WAITING and job.key not in without]
        held = [(job, job.gpus if job.key in shrunk else job.held) for job in holders]
        return self.limits.size(pool) - sum(self.limits.demand(job.key[0], gpus).get(pool, 0) for job, gpus in held)

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
        assert (repeated.admitted, dict(repeated.preempted), dict(repeated.sizes)) == ((), {}, {})
        assert set(repeated.waiting) == set(self._at(Stage.WAITING))

    @invariant()
    def the_head_starts_as_soon_as_it_would_without_the_jobs_that_overtook_it(self) -> None:
        for key, overtakers in self.overtaken.items():
            demand = self.limits.demand(key[0], self.jobs[key].gpus)
            assert any(
                amount > self._free(pool, overtakers) + self._grown_since(key, pool) for pool, amount in demand.items()
            )

    def _grown_since(self, head: Key, pool: tuple[str, str]) -> int:
        """GPUs of worker pods that elastic jobs took while the head waited."""
        before = self.sizes_before[head]
        return sum(
            self.limits.demand(key[0], extra.gpus(extra.num_held - before.get(key, 0))).get(pool, 0)
            for key, extra in self._elastic()
            if key not in self.overtaken[head] and extra.num_granted > before.get(key, 0)
        )

    @invariant()
    def the_head_waits_only_for_jobs_that_it_may_not_preempt_or_that_leave(self) -> None:
        head = self._head()
        if head is None:
            return
        preemptible = {
            key for key in self._at(Stage.ADMITTED) if self.jobs[key].priority < head.priority
        }  # fmt: skip
        leaving = set(self._at(Stage.LEAVING))
        overdue = {key for key, extra in self._elastic() if extra.is_overdue}
        shrunk = {key for key, _ in self._elastic()} - overdue
        demand = self.limits.demand(head.key[0], head.gpus)
        gone = preemptible | leaving | overdue
        if all(amount <= self._free(pool, gone, shrunk) for pool, amount in demand.items()):
            coming = {pool: self._free(pool, leaving) + self._coming_back(pool) for pool in demand}
            assert all(amount <= coming[pool] for pool, amount in demand.items())

    def _coming_back(self, pool: tuple[str, str]) -> int:
        """GPUs of worker pods that are being given back."""
        return sum(
            self.limits.demand(key[0], extra.gpus(extra.num_held - extra.num_granted)).get(pool, 0)
            for key, extra in self._elastic()
            if not extra.is_overdue
        )

    @invariant()
    def while_nobody_waits_no_gpu_idles_that_a_job_would_take(self) -> None:
        if any(wait.why is not Why.TOO_LARGE for wait in self.decision.waiting.values()):
            return
        for key, extra in self._elastic():
            if extra.is_settled and not extra.is_overdue and extra.num_granted < extra.num_most:
                demand = self.limits.demand(key[0], extra.gpus(1))
                assert any(amount > self._free(pool) for pool, amount in demand.items())

    def teardown(self) -> None:
        """Everything that fits comes to its end, if what runs ends."""
        for _ in range(3 * len(self.jobs) + 1):
            for key, extra in self._elastic():
                self._change(key, replace(extra, num_held=extra.num_granted, is_settled=True, is_overdue=False))
            for key in [*self._at(Stage.ADMITTED), *self._at(Stage.LEAVING)]:
                if self.jobs[key].stage is Stage.ADMITTED or key not in self.decision.preempted:
                    del self.jobs[key]
                else:
                    self._return(key)
            self._decide()
        for key in self.jobs:
            assert self.decision.waiting[key].why is Why.TOO_LARGE, "a job that fits waits for ever"


AnyFleet.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
TestAnyFleet = AnyFleet.TestCase

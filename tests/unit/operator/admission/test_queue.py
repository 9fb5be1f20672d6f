"""Who gets GPUs next, as a specification: one rule per test."""

from longshore_operator.admission.demand import Extra, GpuRequest, Limits, Stage
from longshore_operator.admission.queue import QueueDecision, Wait, Why, decide
from longshore_operator.identity import Key

GPU = "nvidia.com/gpu"
EIGHT = Limits(capacity={GPU: 8})


def job(
    name: str, gpus: int, age: int = 0, priority: int = 0, stage: Stage = Stage.WAITING, team: str = "a"
) -> GpuRequest:
    """`age`: a higher one is older."""
    return GpuRequest((team, name), {GPU: gpus}, priority, f"2026-01-01T00:{59 - age:02}:00Z", stage)


def running(name: str, gpus: int, priority: int = 0, team: str = "a") -> GpuRequest:
    return job(name, gpus, age=50, priority=priority, stage=Stage.ADMITTED, team=team)


def leaving(name: str, gpus: int) -> GpuRequest:
    return job(name, gpus, age=50, stage=Stage.LEAVING)


def why(decision: QueueDecision, name: str) -> Wait:
    return decision.waiting["a", name]


def names(keys: "tuple[Key, ...] | dict[Key, Key]") -> list[str]:
    return sorted(name for _, name in keys)


class TestGangs:
    def test_a_job_starts_when_all_of_its_gpus_are_free(self) -> None:
        assert names(decide([job("one", 8)], EIGHT).admitted) == ["one"]

    def test_no_job_gets_a_part_of_its_gpus(self) -> None:
        decision = decide([running("old", 4), job("new", 5)], EIGHT)
        assert decision.admitted == ()
        assert why(decision, "new") == Wait(Why.NO_CAPACITY, needed=5, available=4, resource=GPU)

    def test_two_jobs_that_need_everything_take_turns(self) -> None:
        decision = decide([job("one", 8, age=2), job("two", 8, age=1)], EIGHT)
        assert names(decision.admitted) == ["one"]
        assert why(decision, "two").why is Why.NO_CAPACITY

    def test_gpus_of_a_job_that_is_leaving_are_not_free(self) -> None:
        assert decide([leaving("old", 4), job("new", 5)], EIGHT).admitted == ()

    def test_a_job_that_can_never_start_holds_up_nobody(self) -> None:
        decision = decide([job("huge", 9, age=9), job("small", 8)], EIGHT)
        assert names(decision.admitted) == ["small"]
        assert why(decision, "huge") == Wait(Why.TOO_LARGE, needed=9, available=8, resource=GPU)

    def test_no_job_takes_what_a_second_head_needs_beside_the_first(self) -> None:
        amd = "amd.com/gpu"
        limits = Limits(capacity={GPU: 4, amd: 13})

        def mixed(name: str, gpus: dict[str, int], second: int, priority: int, stage: Stage) -> GpuRequest:
            return GpuRequest(("a", name), gpus, priority, f"2026-01-01T00:00:{second:02}Z", stage)

        decision = decide(
            [
                mixed("old", {GPU: 3}, 1, 0, Stage.LEAVING),
                mixed("older", {GPU: 1, amd: 6}, 2, 0, Stage.LEAVING),
                mixed("first", {amd: 8}, 3, 1, Stage.WAITING),
                mixed("second", {GPU: 1, amd: 5}, 4, 1, Stage.WAITING),
                mixed("small", {amd: 1}, 5, 0, Stage.WAITING),
            ],
            limits,
        )
        assert decision.admitted == (), "first and second take all 13: the small job would have to be preempted"

    def test_resources_are_counted_apart(self) -> None:
        limits = Limits(capacity={GPU: 8, "amd.com/gpu": 4})
        other = GpuRequest(("a", "amd"), {"amd.com/gpu": 4}, created="2026-01-01T01:00:00Z")
        decision = decide([running("old", 8), job("head", 8, age=1), other], limits)
        assert names(decision.admitted) == ["amd"]

    def test_what_nothing_limits_is_admitted(self) -> None:
        other = GpuRequest(("a", "amd"), {"amd.com/gpu": 4000})
        assert names(decide([other], EIGHT).admitted) == ["amd"]


class TestOrder:
    def test_first_come_first_served(self) -> None:
        decision = decide([job("late", 8, age=1), job("early", 8, age=2)], EIGHT)
        assert names(decision.admitted) == ["early"]
        assert why(decision, "late").num_ahead == 0

    def test_a_higher_priority_comes_first(self) -> None:
        decision = decide([job("early", 8, age=2), job("urgent", 8, age=1, priority=1)], EIGHT)
        assert names(decision.admitted) == ["urgent"]

    def test_those_who_wait_are_reported_how_many_are_ahead(self) -> None:
        waiting = [job(name, 8, age=age) for name, age in (("first", 3), ("second", 2), ("third", 1))]
        decision = decide([running("old", 8), *waiting], EIGHT)
        assert [why(decision, name).num_ahead for name in ("first", "second", "third")] == [0, 1, 2]


class TestBackfill:
    def test_a_small_job_uses_what_the_head_does_not_need(self) -> None:
        """The head needs 6 and gets 8 when the running job ends: 2 are left over."""
        decision = decide([running("old", 6), job("head", 6, age=2), job("small", 2, age=1)], EIGHT)
        assert names(decision.admitted) == ["small"]

    def test_a_job_that_would_delay_the_head_waits_though_gpus_are_free(self) -> None:
        decision = decide([running("old", 6), job("head", 8, age=2), job("small", 2, age=1)], EIGHT)
        assert decision.admitted == ()
        assert why(decision, "small") == Wait(Why.BEHIND, 2, 2, GPU, num_ahead=1, head=("a", "head"))

    def test_any_of_the_running_jobs_may_end_first(self) -> None:
        """When the job with 2 GPUs ends first, 4 are free, which is all that the head needs."""
        jobs = [running("short", 2), running("long", 4), job("head", 4, age=2), job("small", 2, age=1)]
        assert decide(jobs, EIGHT).admitted == ()

    def test_backfill_uses_what_is_left_over_once(self) -> None:
        jobs = [running("old", 5), job("head", 6, age=3), job("one", 2, age=2), job("two", 1, age=1)]
        assert names(decide(jobs, EIGHT).admitted) == ["one"]


class TestPreemption:
    def test_a_job_of_lower_priority_makes_room(self) -> None:
        decision = decide([running("low", 8), job("urgent", 8, priority=1)], EIGHT)
        assert decision.preempted == {("a", "low"): ("a", "urgent")}
        assert why(decision, "urgent").why is Why.PREEMPTING

    def test_an_equal_priority_is_never_preempted(self) -> None:
        assert decide([running("old", 8, priority=1), job("new", 8, priority=1)], EIGHT).preempted == {}

    def test_nobody_is_preempted_for_nothing(self) -> None:
        jobs = [running("low", 4), running("high", 4, priority=2), job("urgent", 8, priority=1)]
        assert decide(jobs, EIGHT).preempted == {}

    def test_nobody_is_preempted_while_those_who_leave_are_enough(self) -> None:
        assert decide([running("low", 4), leaving("old", 4), job("urgent", 4, priority=1)], EIGHT).preempted == {}

    def test_the_least_important_and_youngest_go_and_no_more_than_needed(self) -> None:
        jobs = [
            GpuRequest(("a", "low-old"), {GPU: 2}, 0, "2026-01-01T00:00:00Z", Stage.ADMITTED),
            GpuRequest(("a", "low-young"), {GPU: 2}, 0, "2026-01-02T00:00:00Z", Stage.ADMITTED),
            GpuRequest(("a", "middle"), {GPU: 4}, 1, "2026-01-01T00:00:00Z", Stage.ADMITTED),
        ]
        assert names(decide([*jobs, job("urgent", 2, priority=2)], EIGHT).preempted) == ["low-young"]
        assert names(decide([*jobs, job("urgent", 5, priority=2)], EIGHT).preempted) == ["low-young", "middle"]

    def test_only_the_head_preempts(self) -> None:
        jobs = [running("low", 4), running("high", 4, priority=9)]
        waiting = [job("head", 8, age=2, priority=5), job("second", 4, age=1, priority=4)]
        assert decide([*jobs, *waiting], EIGHT).preempted == {}


class TestQuotas:
    LIMITS = Limits(capacity={GPU: 8}, quotas={"a": {GPU: 4}, "b": {GPU: 8}})

    def test_a_namespace_gets_no_more_than_its_quota(self) -> None:
        decision = decide([running("old", 4), job("new", 1)], self.LIMITS)
        assert why(decision, "new") == Wait(Why.NO_QUOTA, needed=1, available=0, resource=GPU)

    def test_a_namespace_whose_quota_is_used_up_does_not_hold_up_others(self) -> None:
        decision = decide([running("old", 4), job("mine", 4, age=2), job("theirs", 4, age=1, team="b")], self.LIMITS)
        assert names(decision.admitted) == ["theirs"]

    def test_backfill_within_a_namespace_does_not_delay_its_head(self) -> None:
        decision = decide([running("old", 3), job("head", 4, age=2), job("small", 1, age=1)], self.LIMITS)
        assert decision.admitted == ()

    def test_for_a_quota_only_jobs_of_the_namespace_are_preempted(self) -> None:
        jobs = [running("mine", 4), running("theirs", 4, team="b"), job("urgent", 4, priority=1)]
        assert names(decide(jobs, self.LIMITS).preempted) == ["mine"]

    def test_a_job_larger_than_the_quota_is_reported(self) -> None:
        assert why(decide([job("huge", 5)], self.LIMITS), "huge").why is Why.TOO_LARGE

    def test_quotas_do_without_a_capacity(self) -> None:
        decision = decide([job("one", 4), job("two", 4), job("free", 400, team="c")], Limits(quotas={"a": {GPU: 4}}))
        assert names(decision.admitted) == ["free", "one"]


def test_lowered_limits_admit_nobody_and_stop_nobody() -> None:
    decision = decide([running("one", 8), running("two", 8), job("new", 1)], EIGHT)
    assert (decision.admitted, decision.preempted) == ((), {})


def elastic(
    name: str,
    least: int,
    most: int,
    granted: int = 0,
    *,
    held: int = 0,
    priority: int = 0,
    stage: Stage = Stage.ADMITTED,
    is_overdue: bool = False,
    is_settled: bool = True,
) -> GpuRequest:
    """A job with pods of one GPU: it needs `least`, takes `most`, and may have `granted`."""
    extra = Extra(GPU, 1, most - least)
    if stage is Stage.ADMITTED:
        num_granted, num_held = (granted or least) - least, max(granted or least, held) - least
        extra = Extra(GPU, 1, most - least, num_granted, num_held, is_settled, is_overdue)
    return GpuRequest(("a", name), {GPU: least}, priority, "2026-01-01T00:00:30Z", stage, extra)


class TestElasticJobs:
    def test_a_job_starts_when_what_it_needs_is_free_and_takes_what_idles(self) -> None:
        decision = decide([running("old", 5), elastic("new", 2, 8, stage=Stage.WAITING)], EIGHT)
        assert names(decision.admitted) == ["new"]
        assert decision.sizes == {("a", "new"): 1}

    def test_it_takes_more_when_others_end(self) -> None:
        assert decide([elastic("one", 2, 6)], EIGHT).sizes == {("a", "one"): 4}

    def test_one_change_at_a_time(self) -> None:
        assert decide([elastic("one", 2, 6, is_settled=False)], EIGHT).sizes == {}

    def test_it_takes_whole_pods(self) -> None:
        pods_of_three = GpuRequest(("a", "one"), {GPU: 3}, 0, "1", Stage.ADMITTED, Extra(GPU, 3, 4))
        assert decide([pods_of_three], EIGHT).sizes == {("a", "one"): 1}

    def test_it_takes_nothing_that_the_head_of_the_queue_may_need(self) -> None:
        decision = decide([running("old", 4), elastic("one", 2, 8), job("head", 6)], EIGHT)
        assert decision.sizes == {}

    def test_it_takes_what_the_head_leaves_over(self) -> None:
        decision = decide([running("old", 5), elastic("one", 1, 8), job("head", 6)], EIGHT)
        assert decision.sizes == {("a", "one"): 1}

    def test_it_takes_no_more_than_its_quota(self) -> None:
        limits = Limits(capacity={GPU: 8}, quotas={"a": {GPU: 5}})
        assert decide([elastic("one", 2, 8)], limits).sizes == {("a", "one"): 3}

    def test_idle_gpus_go_to_the_more_important_job(self) -> None:
        decision = decide([elastic("low", 2, 8), elastic("high", 2, 6, priority=1)], EIGHT)
        assert decision.sizes == {("a", "high"): 4}

    def test_what_it_does_not_need_goes_to_those_who_wait(self) -> None:
        decision = decide([elastic("one", 2, 8, 8, priority=9), job("new", 3)], EIGHT)
        assert decision.sizes == {("a", "one"): 3}
        assert decision.preempted == {}
        assert why(decision, "new").why is Why.SHRINKING

    def test_gpus_stay_in_use_until_the_pods_are_gone(self) -> None:
        waiting = job("new", 3)
        assert decide([elastic("one", 2, 8, 5, held=8), waiting], EIGHT).admitted == ()
        assert decide([elastic("one", 2, 8, 5, held=6), waiting], EIGHT).admitted == ()
        assert decide([elastic("one", 2, 8, 5), waiting], EIGHT).admitted == (waiting.key,)

    def test_each_lent_pod_may_be_what_the_head_lacks(self) -> None:
        """The head starts with the 2 that are free, the 2 of the old job, and one lent pod: nothing is left over."""
        jobs = [elastic("one", 2, 4, 4), running("old", 2), job("head", 5, age=5), job("small", 1)]
        assert decide(jobs, EIGHT).admitted == ()

    def test_the_least_important_job_shrinks_first(self) -> None:
        decision = decide([elastic("low", 2, 4, 4), elastic("high", 2, 4, 4, priority=1), job("new", 2)], EIGHT)
        assert decision.sizes == {("a", "low"): 0}

    def test_jobs_shrink_before_one_is_preempted(self) -> None:
        decision = decide([elastic("high", 2, 4, 4, priority=9), running("low", 4), job("new", 2, priority=5)], EIGHT)
        assert decision.sizes == {("a", "high"): 0}
        assert decision.preempted == {}

    def test_if_shrinking_is_not_enough_lower_priorities_stop_and_fewest_others_shrink(self) -> None:
        decision = decide([elastic("high", 2, 4, 4, priority=9), running("low", 4), job("new", 5, priority=5)], EIGHT)
        assert names(dict(decision.preempted)) == ["low"]
        assert decision.sizes == {("a", "high"): 1}

    def test_nobody_shrinks_for_nothing(self) -> None:
        decision = decide([elastic("one", 2, 4, 4), running("old", 4), job("new", 5)], EIGHT)
        assert decision.sizes == {}

    def test_a_job_that_does_not_answer_is_stopped_whatever_its_priority(self) -> None:
        slow = elastic("slow", 2, 8, 5, held=8, priority=9, is_overdue=True)
        decision = decide([slow, job("new", 3)], EIGHT)
        assert names(dict(decision.preempted)) == ["slow"]

    def test_all_that_it_holds_comes_back_then(self) -> None:
        slow = elastic("slow", 2, 8, 3, held=8, is_overdue=True)
        assert names(dict(decide([slow, job("new", 8)], EIGHT).preempted)) == ["slow"]

    def test_it_is_stopped_before_a_job_that_answers(self) -> None:
        slow = elastic("slow", 1, 4, 2, held=4, priority=9, is_overdue=True)
        decision = decide([slow, running("obedient", 4), job("urgent", 4, priority=10)], EIGHT)
        assert names(dict(decision.preempted)) == ["slow"]

    def test_but_only_if_somebody_waits(self) -> None:
        assert not decide([elastic("slow", 2, 8, 5, held=8, is_overdue=True)], EIGHT).changes_something

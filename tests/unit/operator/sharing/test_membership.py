"""Who is a member of a sharing group, and whose turn it is, as the operator looks at one job after the other."""

from dataclasses import dataclass, field, replace
from itertools import combinations, count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pydantic import TypeAdapter

from longshore.api.limits import MAX_COUNT
from longshore.api.names import Component
from longshore.api.sharing import RuntimeSharing, Sharing, SharingStatus
from longshore.policy.sharing_group import Claim, Grant, MemberStage, MemberTurns, SharingGroup
from longshore_operator.observed import PodView
from longshore_operator.sharing.membership import EMPTY, NUM_TRIAL_STEPS, MemberFacts, advanced, obstacle, refused, view
from tests.properties import examples
from tests.unit.operator.model import START, Cluster
from tests.unit.operator.sharing.test_concern import SPEC


def facts(name: str, attempt: int = 1, *, report: RuntimeSharing | None = None) -> MemberFacts:
    return MemberFacts(name, f"{name}-uid", attempt, Sharing(group="g", max_slowdown=1.5), report, True, None)


def measured(step_s: float, turn_s: float) -> RuntimeSharing:
    return RuntimeSharing(asked=1, returned=0, num_steps=NUM_TRIAL_STEPS, step_s=step_s, turn_s=turn_s, switch_s=0.0)


def pod(name: str, attempt: int = 1, phase: str = "Running") -> PodView:
    return PodView(
        f"{name}-worker-0", "team", f"{name}-{attempt}", name, Component.WORKER, 0, attempt, phase=phase,
        owner_uid=f"{name}-uid", sharing="token",
    )  # fmt: skip


def look(group: SharingGroup, job: MemberFacts, claims: dict[str, Claim] | None = None, *pods: PodView) -> SharingGroup:
    """All pods of the job are those of the group."""
    return advanced(group, job, {job.member_name: job.claim} if claims is None else claims, pods, pods, 0.0)


def stages(group: SharingGroup) -> dict[str, MemberStage]:
    return {one.member.job: one.stage for one in group.standings}


def test_a_job_with_pods_joins_on_trial_and_one_without_pods_does_not() -> None:
    assert stages(look(EMPTY, facts("a"))) == {"a": MemberStage.ON_TRIAL}
    assert stages(look(EMPTY, facts("a", attempt=0))) == {}


def test_a_member_is_judged_by_its_first_measured_steps() -> None:
    group = look(EMPTY, facts("a", report=measured(10.0, 4.0)))
    assert stages(group) == {"a": MemberStage.ADMITTED}
    group = look(group, facts("b"))
    early = measured(10.0, 4.0).model_copy(update={"num_steps": 1})
    assert stages(look(group, facts("b", report=early)))["b"] is MemberStage.ON_TRIAL
    assert stages(look(group, facts("b", report=measured(10.0, 4.0))))["b"] is MemberStage.ADMITTED
    slow = look(group, facts("b", report=measured(10.0, 6.0)))
    assert stages(slow) == {"a": MemberStage.ADMITTED, "b": MemberStage.LEAVING}


def test_a_member_that_takes_another_past_its_limit_is_asked_to_stop_with_the_reason() -> None:
    group = look(look(EMPTY, facts("a", report=measured(10.0, 4.0))), facts("b"))
    job = facts("b", report=measured(10.0, 6.0))
    found = view(look(group, job), "g", job, {})
    assert found.refusal == (
        "a step of a could take more than 1.5 times as long as alone: choose another sharing.group, or raise "
        "sharing.maxSlowdown"
    )
    assert found.turns is None


def test_a_job_that_was_measured_before_waits_until_there_is_room() -> None:
    group = look(EMPTY, facts("a", report=measured(10.0, 6.0)))
    waiting = facts("b", attempt=0, report=measured(10.0, 6.0))
    assert refused(group, waiting) is not None
    assert stages(look(group, replace(waiting, attempt=2))) == {"a": MemberStage.ADMITTED}
    alone = look(group, facts("a", attempt=0))
    assert (stages(alone), refused(alone, waiting)) == ({}, None)


def test_the_first_report_of_another_attempt_does_not_put_it_on_trial_again() -> None:
    """It carries the measurements, and counts its turns from 0."""
    before = measured(10.0, 4.0).model_copy(update={"asked": 9, "returned": 9})
    group = look(EMPTY, replace(facts("a", attempt=2, report=before), is_current=False))
    assert stages(group) == {"a": MemberStage.ADMITTED}
    again = look(group, facts("a", attempt=2, report=before.model_copy(update={"asked": 0, "returned": 0})))
    assert again == group


def test_an_attempt_is_a_member_until_its_last_pod_is_gone() -> None:
    group = look(EMPTY, facts("a"), None, pod("a"))
    again = facts("a", attempt=2)
    both = look(group, again, None, pod("a"))
    assert [member.name for member in both.members] == ["a/a-uid/1", "a/a-uid/2"]
    ended = look(both, again, None, pod("a", phase="Succeeded"))
    assert [member.name for member in ended.members] == ["a/a-uid/2"]


def test_the_next_attempt_joins_while_pods_of_the_one_before_still_end() -> None:
    report = measured(10.0, 9.0)
    group = look(EMPTY, facts("a", report=report))
    following = replace(facts("a", attempt=2, report=report), is_current=False)
    group = look(group, following, None, pod("a"))
    assert [one.member.name for one in group.standings] == ["a/a-uid/1", "a/a-uid/2"]
    assert view(group, "g", following, {}).refusal == ""


def test_a_later_job_of_the_same_name_is_another_member() -> None:
    group = look(EMPTY, facts("a"), None, pod("a"))
    later = replace(facts("a"), uid="later")
    assert len(look(group, later, None, pod("a")).members) == 2
    assert [member.name for member in look(group, later).members] == ["a/later/1"]


def test_an_attempt_that_is_over_gets_no_turn_while_its_last_pods_end() -> None:
    """It asked for one before the job was suspended, restarted or deleted, and could not return it."""
    asks = facts("b", report=RuntimeSharing(asked=1))
    claims = {"a/a-uid/1": Claim(1, 0), asks.member_name: asks.claim}
    group = look(look(look(EMPTY, facts("a")), facts("a"), claims), asks, claims)
    assert {one.member.job: one.grant.granted for one in group.standings} == {"a": 1, "b": 0}
    for after in (facts("b", attempt=0), facts("b", attempt=2)):
        left = advanced(group, after, claims, [pod("b")], [pod("a"), pod("b")], 0.0)
        returned = claims | {"a/a-uid/1": Claim(1, 1), after.member_name: Claim()}
        free = advanced(left, after, returned, [pod("b")], [pod("a"), pod("b")], 0.0)
        assert all(one.grant.granted == (one.member.job == "a") for one in free.standings)
        assert obstacle(free, returned, [pod("a"), pod("b")]) == ""


def test_after_a_restart_of_the_operator_an_attempt_that_is_over_and_had_no_turn_keeps_nobody_waiting() -> None:
    asks = facts("a", report=RuntimeSharing(asked=1))
    claims = {asks.member_name: asks.claim}
    group = look(look(EMPTY, facts("b")), facts("b", attempt=2), {}, pod("b"))
    claims["b/b-uid/2"] = Claim()
    group = advanced(group, asks, claims, [pod("a")], [pod("a"), pod("b"), pod("b", attempt=2)], 0.0)
    assert {one.member.name: one.grant.granted for one in group.standings} == {
        "b/b-uid/1": 0, "b/b-uid/2": 0, "a/a-uid/1": 1
    }  # fmt: skip


def test_a_turn_whose_recall_nobody_remembers_is_not_overdue() -> None:
    """Somebody has deleted the object of the group."""
    now_s = 1_700_000_000.0
    holder = replace(
        facts("a", report=RuntimeSharing(asked=4, returned=3)), turns=SharingStatus(attempt=1, granted=4, recalled=4)
    )
    waits = facts("b", report=RuntimeSharing(asked=1))
    claims = {holder.member_name: holder.claim, waits.member_name: waits.claim}
    group = advanced(EMPTY, holder, claims, [pod("a")], [pod("a")], now_s)
    group = advanced(group, waits, claims, [pod("b")], [pod("a"), pod("b")], now_s)
    shown = view(group, "g", holder, claims)
    assert shown.turns is not None and shown.turns.recalled == 4
    assert shown.overdue_at is not None and shown.overdue_at.timestamp() > now_s


def test_an_operator_that_starts_grants_nothing_before_it_has_looked_at_every_member() -> None:
    group = look(look(EMPTY, facts("a")), facts("b"))
    asks = facts("b", report=RuntimeSharing(asked=1))
    claims = {asks.member_name: asks.claim}
    assert [one.grant for one in look(group, asks, claims).standings] == [Grant(), Grant()]
    claims["a/a-uid/1"] = Claim()
    found = look(group, asks, claims)
    assert {one.member.job: one.grant for one in found.standings} == {"a": Grant(), "b": Grant(1, 0)}


def test_no_turn_is_granted_while_pods_of_no_member_have_the_gpus() -> None:
    """Somebody has deleted the object of the group, and the operator has restarted."""
    asks = facts("b", report=RuntimeSharing(asked=1))
    claims = {asks.member_name: asks.claim}
    group = advanced(EMPTY, asks, claims, [pod("b")], [pod("a"), pod("b")], 0.0)
    assert [one.grant for one in group.standings] == [Grant()]
    holder = replace(
        facts("a", report=RuntimeSharing(asked=4, returned=3)), turns=SharingStatus(attempt=1, granted=4, recalled=3)
    )
    claims[holder.member_name] = holder.claim
    group = advanced(group, holder, claims, [pod("a")], [pod("a"), pod("b")], 0.0)
    assert {one.member.job: one.grant for one in group.standings} == {"a": Grant(4, 4), "b": Grant()}


def test_what_a_coordinator_says_of_its_turns_is_made_plausible() -> None:
    assert facts("a", report=RuntimeSharing(asked=2, returned=7)).claim == Claim(2, 2)
    assert facts("a", report=RuntimeSharing(asked=9, returned=0)).claim == Claim(1, 0)


def test_a_member_whose_turns_were_lost_goes_on_counting_where_it_is() -> None:
    """Neither its status nor the object of the group says what it was granted."""
    job = facts("a", report=RuntimeSharing(asked=1000, returned=999))
    group = look(EMPTY, job, {job.member_name: job.claim})
    assert [one.grant for one in group.standings] == [Grant(1000, 999)]
    group = look(group, facts("a", report=RuntimeSharing(asked=7000, returned=7000)))
    assert [one.grant for one in group.standings] == [Grant(7000, 7000)]


ANY_TIME = st.one_of(st.just(0.0), st.floats(0, MAX_COUNT), st.floats(0, 1e-3), st.just(5e-324))
ANY_COUNT = st.one_of(st.integers(0, 5), st.integers(0, MAX_COUNT))
ANY_REPORT = st.builds(
    RuntimeSharing,
    asked=ANY_COUNT,
    returned=ANY_COUNT,
    num_steps=ANY_COUNT,
    step_s=ANY_TIME,
    turn_s=ANY_TIME,
    wait_s=ANY_TIME,
    switch_s=ANY_TIME,
)
ANY_JOB = st.tuples(
    st.sampled_from(("a", "b", "c")),
    st.integers(0, 2),
    ANY_REPORT,
    st.builds(Sharing, group=st.just("g"), max_slowdown=st.floats(1, 100), turn_limit_s=st.integers(1, 2**31 - 1)),
    st.booleans(),
)


@given(st.lists(ANY_JOB, max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_nothing_that_a_coordinator_can_report_stops_a_pass(
    looks: list[tuple[str, int, RuntimeSharing, Sharing, bool]],
) -> None:
    group, claims, now = EMPTY, dict[str, Claim](), START
    for name, attempt, report, sharing, is_current in looks:
        job = MemberFacts(name, f"{name}-uid", attempt, sharing, report, is_current, None)
        before = claims.get(job.member_name, Claim())
        claims |= {job.member_name: before.merged(job.claim)} if attempt else {}
        group = advanced(group, job, claims, [], [pod(name, max(attempt, 1))], now.timestamp())
        group = TypeAdapter(SharingGroup).validate_json(TypeAdapter(SharingGroup).dump_json(group))
        found = view(group, "g", job, claims, obstacle(group, claims, []))
    if looks:
        cluster = Cluster(spec=SPEC)
        cluster.apply(cluster.plan(sharing=found))
        cluster.apply(cluster.plan(sharing=found))


@dataclass
class Job:
    """A coordinator with its pods."""

    name: str
    attempt: int = 0
    turns: MemberTurns = field(default_factory=MemberTurns)
    pods: dict[int, MemberTurns] = field(default_factory=dict)
    """Turns of attempts whose pods are there; those of earlier attempts change no more."""

    @property
    def report(self) -> RuntimeSharing:
        return RuntimeSharing(asked=self.turns.claim.asked, returned=self.turns.claim.returned)


class AnyFleet(RuleBasedStateMachine):
    """Jobs start, crash and end, reports and grants come late, the operator restarts, and its object is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.names = (f"job-{number}" for number in count())
        self.group = EMPTY
        self.claims: dict[str, Claim] = {}

    @rule()
    def starts(self) -> None:
        if len(self.jobs) < 4:
            self.jobs.append(Job(next(self.names)))
            self.begins_an_attempt(len(self.jobs) - 1)

    @rule(pick=st.integers(0))
    def begins_an_attempt(self, pick: int) -> None:
        """The status has the attempt before pods are there, and a pass looks at it in between."""
        if not self.jobs:
            return
        job = self.jobs[pick % len(self.jobs)]
        job.attempt, job.turns = job.attempt + 1, MemberTurns()
        self.pass_over(job)
        job.pods[job.attempt] = job.turns

    @rule(pick=st.integers(0))
    def old_pods_end(self, pick: int) -> None:
        if self.jobs:
            job = self.jobs[pick % len(self.jobs)]
            job.pods = {attempt: turns for attempt, turns in job.pods.items() if attempt == job.attempt}

    @rule(pick=st.integers(0))
    def asks_or_returns(self, pick: int) -> None:
        if not self.jobs:
            return
        job = self.jobs[pick % len(self.jobs)]
        if job.turns.is_asleep:
            self.change(job, job.turns.asking())
        elif job.turns.may_use and job.turns.is_recalled:
            self.change(job, job.turns.returning())

    @rule(pick=st.integers(0))
    def reads_its_grant(self, pick: int) -> None:
        if self.jobs:
            job = self.jobs[pick % len(self.jobs)]
            found = view(self.group, "g", self.facts(job), self.claims).turns
            if found is not None:
                self.change(job, job.turns.read(Grant(found.granted, found.recalled)))

    @rule(pick=st.integers(0))
    def is_looked_at(self, pick: int) -> None:
        if self.jobs:
            self.pass_over(self.jobs[pick % len(self.jobs)])

    @rule()
    def operator_restarts(self) -> None:
        self.claims = {}

    @rule()
    def operator_restarts_without_its_object(self) -> None:
        """The statuses of jobs remain, and with them what coordinators have read."""
        self.claims, self.group = {}, EMPTY

    @invariant()
    def no_two_jobs_use_the_gpus_at_once(self) -> None:
        using = [(job.name, attempt) for job in self.jobs for attempt, turns in job.pods.items() if turns.may_use]
        assert not list(combinations(using, 2)), using

    def teardown(self) -> None:
        """Everybody who asks gets a turn, in as many rounds as there are jobs."""
        for job in self.jobs:
            job.pods = {job.attempt: job.turns}
            if job.turns.is_asleep:
                self.change(job, job.turns.asking())
        waiting = {job.name for job in self.jobs}
        for _ in range(2 * len(self.jobs) + 2):
            for job in self.jobs * 2:
                self.pass_over(job)
                self.reads_its_grant(self.jobs.index(job))
                self.no_two_jobs_use_the_gpus_at_once()
                if job.turns.may_use:
                    waiting.discard(job.name)
                    if job.turns.is_recalled:
                        self.change(job, job.turns.returning())
                        self.change(job, job.turns.asking())
        assert not waiting, f"these never got a turn: {waiting}"

    def change(self, job: Job, turns: MemberTurns) -> None:
        job.turns = turns
        if job.attempt in job.pods:
            job.pods[job.attempt] = turns

    def facts(self, job: Job) -> MemberFacts:
        grant = job.turns.grant
        turns = SharingStatus(attempt=job.attempt, granted=grant.granted, recalled=grant.recalled)
        sharing = Sharing(group="g", max_slowdown=50)
        return MemberFacts(job.name, f"{job.name}-uid", job.attempt, sharing, job.report, True, turns)

    def pass_over(self, job: Job) -> None:
        found = self.facts(job)
        self.claims[found.member_name] = self.claims.get(found.member_name, Claim()).merged(found.claim)
        pods = {one.name: [pod(one.name, attempt) for attempt in one.pods] for one in self.jobs}
        everything = [each for of in pods.values() for each in of]
        self.group = advanced(self.group, found, self.claims, pods[job.name], everything, 0.0)


TestAnyFleet = AnyFleet.TestCase
TestAnyFleet.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

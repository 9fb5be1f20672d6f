"""Sharing groups under every order of events.

Messages are late, lost, repeated and out of order. Members die. Arbiters restart, know little, and are two at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from longshore.policy.sharing_group import Claim, Member, MemberTurns, SharingGroup, arbitrate
from tests.properties import examples

_SLOTS = ("s", "t", "u")
_MOST_MEMBERS = 4


@dataclass
class Job:
    """One attempt of a job, in its pods."""

    member: Member
    turns: MemberTurns = field(default_factory=MemberTurns)
    is_dead: bool = False
    """It does nothing any more. Its pods still have what they have."""
    has_pods: bool = True
    said: list[Claim] = field(default_factory=lambda: [Claim()])
    """Every claim it ever made; any of them may arrive at any time."""
    num_turns: int = 0

    @property
    def uses(self) -> bool:
        return self.has_pods and self.turns.may_use

    def changes(self, turns: MemberTurns) -> None:
        self.num_turns += turns.may_use and not self.turns.may_use
        self.turns = turns
        self.said.append(turns.claim)


@dataclass
class Arbiter:
    """One of two replicas of the operator; each may believe that it leads."""

    version: int = 0
    """Of the stored group that it has read."""
    claims: dict[str, Claim] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class AnyGroup(RuleBasedStateMachine):
    """Every step changes one thing of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.stored: list[SharingGroup] = [SharingGroup(slot_host_bytes=1_000)]
        """Every version; the last one is what the API server has."""
        self.arbiters = (Arbiter(), Arbiter())
        self.names = (f"job-{number}" for number in count())

    @initialize(first=st.sets(st.sampled_from(_SLOTS), min_size=1), second=st.sets(st.sampled_from(_SLOTS), min_size=1))
    def begin(self, first: set[str], second: set[str]) -> None:
        for slots in (first, second):
            self.joins(slots)

    @rule(slots=st.sets(st.sampled_from(_SLOTS), min_size=1))
    def joins(self, slots: set[str]) -> None:
        if len(self.alive) < _MOST_MEMBERS:
            job = Job(Member(next(self.names), frozenset(slots), 1, 10.0, 10.0, 4.0, 99.0))
            self.jobs.append(job)
            self.stored.append(self.stored[-1].joined(job.member))

    @rule(pick=st.integers(0))
    def asks(self, pick: int) -> None:
        if sleeping := [job for job in self.alive if job.turns.is_asleep]:
            job = sleeping[pick % len(sleeping)]
            job.changes(job.turns.asking())

    @rule(pick=st.integers(0))
    def returns(self, pick: int) -> None:
        """Also a turn that was not recalled: a job may end, or be suspended."""
        if using := [job for job in self.alive if job.uses]:
            job = using[pick % len(using)]
            job.changes(job.turns.returning())

    @rule(pick=st.integers(0), version=st.integers(0))
    def reads_a_grant(self, pick: int, version: int) -> None:
        """Of any version that there ever was."""
        if alive := self.alive:
            self.read(alive[pick % len(alive)], self.stored[version % len(self.stored)])

    @rule(pick=st.integers(0))
    def dies(self, pick: int) -> None:
        if alive := self.alive:
            alive[pick % len(alive)].is_dead = True

    @rule(pick=st.integers(0))
    def pods_end(self, pick: int) -> None:
        if dead := [job for job in self.jobs if job.is_dead]:
            dead[pick % len(dead)].has_pods = False

    @rule(which=st.integers(0, 1), pick=st.integers(0), report=st.integers(0))
    def arbiter_hears(self, which: int, pick: int, report: int) -> None:
        """Any claim that any member ever made."""
        job = self.jobs[pick % len(self.jobs)]
        self.hear(self.arbiters[which], job, job.said[report % len(job.said)])

    @rule(which=st.integers(0, 1))
    def arbiter_sees_which_pods_are_gone(self, which: int) -> None:
        self.arbiters[which].gone |= {job.member.name for job in self.jobs if not job.has_pods}

    @rule(which=st.integers(0, 1))
    def arbiter_reads_the_group(self, which: int) -> None:
        self.arbiters[which].version = len(self.stored) - 1

    @rule(which=st.integers(0, 1))
    def arbiter_restarts(self, which: int) -> None:
        arbiter = self.arbiters[which]
        arbiter.version, arbiter.claims, arbiter.gone = len(self.stored) - 1, {}, set()

    @rule(which=st.integers(0, 1))
    def arbiter_decides(self, which: int) -> None:
        """From what it knows; it writes only on what it has read."""
        arbiter = self.arbiters[which]
        found = arbitrate(self.stored[arbiter.version], arbiter.claims, arbiter.gone, 0.0)
        if arbiter.version == len(self.stored) - 1:
            self.stored.append(found)

    @invariant()
    def no_two_jobs_use_a_gpu_at_once(self) -> None:
        using = [job.member for job in self.jobs if job.uses]
        assert all(one.slots.isdisjoint(other.slots) for one, other in combinations(using, 2))

    def teardown(self) -> None:
        """Once messages arrive, everybody that asks has its turn, and waits for no member twice."""
        for job in self.jobs:
            job.has_pods &= not job.is_dead
        self.settle()
        for job in self.alive:
            if job.turns.is_asleep:
                job.changes(job.turns.asking())
        self.settle()
        waiting = {job.member.name: {each.member.name: each.num_turns for each in self.alive} for job in self.waiting()}
        for _ in range(_MOST_MEMBERS):
            for job in self.alive:
                if job.uses and job.turns.is_recalled:
                    job.changes(job.turns.returning())
                    job.changes(job.turns.asking())
            self.settle()
            for job in self.alive:
                before = waiting.get(job.member.name)
                if before is not None and job.turns.may_use:
                    del waiting[job.member.name]
                    blockers = [other for other in self.alive if other.member.slots & job.member.slots]
                    assert all(each.num_turns - before[each.member.name] <= 1 for each in blockers)
        assert waiting == {}, f"these never got a turn: {sorted(waiting)}"

    def settle(self) -> None:
        """Everything newest arrives, and the leader decides."""
        leader = self.arbiters[0]
        leader.version = len(self.stored) - 1
        leader.gone |= {job.member.name for job in self.jobs if not job.has_pods}
        for job in self.alive:
            self.hear(leader, job, job.turns.claim)
        self.arbiter_decides(0)
        for job in self.alive:
            self.read(job, self.stored[-1])
        self.no_two_jobs_use_a_gpu_at_once()

    def hear(self, arbiter: Arbiter, job: Job, claim: Claim) -> None:
        arbiter.claims[job.member.name] = arbiter.claims.get(job.member.name, Claim()).merged(claim)

    def read(self, job: Job, group: SharingGroup) -> None:
        for standing in group.standings:
            if standing.member.name == job.member.name:
                job.changes(job.turns.read(standing.grant))

    def waiting(self) -> Iterator[Job]:
        return (job for job in self.alive if not job.turns.may_use)

    @property
    def alive(self) -> list[Job]:
        return [job for job in self.jobs if not job.is_dead]


TestAnyGroup = AnyGroup.TestCase
TestAnyGroup.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)

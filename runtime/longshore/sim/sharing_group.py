"""Members of a sharing group on the virtual clock: the arbiter itself, and members that do what their steps take.

A member's steps are those of its own simulation: what a job samples and trains on does not depend on when it has its
turns. A step begins with the training and publication of the step before, and with the part of the round that needs the
shared GPUs; after that the rest of the round runs on the member's own GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Final

from longshore.policy.sharing_group import Claim, Grant, Member, MemberTurns, SharingGroup, arbitrate
from longshore.sim.events import EventQueue
from longshore.sim.job import SimJob
from longshore.sim.simulate import simulate

REPORT_S: Final = 0.5
"""From a member through the API server to the arbiter, or back."""
SLEEP_S: Final = 1.0
"""Until the engines on the shared GPUs have freed their memory. Waking is a part of every step of a colocated job."""


@dataclass(frozen=True)
class SharedStep:
    """A step of a member that never waits."""

    shared_s: float
    """It needs the shared GPUs."""
    apart_s: float
    """After that it does not."""


@dataclass(frozen=True)
class SharedJob:
    """What the members of a group, and its arbiter, go by."""

    name: str
    num_gpus: int
    num_own_gpus: int
    """Of these, those that it does not share."""
    host_bytes_per_gpu: float
    """While it sleeps."""
    alone_s: float
    """Mean step if it shared nothing."""
    steps: tuple[SharedStep, ...]

    def member(self, slots: Sequence[str], max_slowdown: float) -> Member:
        """What it says of itself when it joins; each slot has as many of its GPUs."""
        gpus_per_slot = (self.num_gpus - self.num_own_gpus) / len(slots)
        return Member(
            self.name,
            frozenset(slots),
            host_bytes=round(self.host_bytes_per_gpu * gpus_per_slot),
            alone_s=self.alone_s,
            step_s=fmean(step.shared_s + step.apart_s for step in self.steps) + SLEEP_S + 2 * REPORT_S,
            turn_s=max(step.shared_s for step in self.steps) + SLEEP_S + 2 * REPORT_S,
            max_slowdown=max_slowdown,
        )


def shared_job(name: str, job: SimJob, num_steps: int, num_warm_up_steps: int = 1) -> SharedJob:
    """Simulate a job alone and with its tails on its own GPUs; the first steps, with lengths unknown, do not count."""
    assert job.num_own_gpus is not None and num_warm_up_steps >= 1, "the job shares GPUs, and has to learn its lengths"
    num_all = num_warm_up_steps + num_steps
    alone = simulate(replace(job, num_own_gpus=None), num_all, keeps_spans=False).steps[num_warm_up_steps:]
    sharing = simulate(job, num_all, keeps_spans=False).steps[num_warm_up_steps - 1 :]
    steps = []
    for before, step in pairwise(sharing):
        assert step.until_free_s is not None, "the job shares GPUs"
        needed_s = before.train_s + before.publish_s + step.until_free_s
        steps.append(SharedStep(needed_s, step.rollout_s + step.reward_wait_s - step.until_free_s))
    return SharedJob(
        name,
        job.num_gpus,
        job.num_own_gpus,
        job.engine_costs.asleep_host_bytes(job.rollout.engine.tensor_parallel_size, job.num_gpus),
        fmean(step.step_s for step in alone),
        tuple(steps),
    )


@dataclass(frozen=True)
class MemberResult:
    """How a member fared."""

    name: str
    step_s: float
    """Mean."""
    slowdown: float
    """Over the mean step alone."""
    longest_wait_s: float
    """From the need of the shared GPUs until they were there."""


def run_group(group: SharingGroup, jobs: Mapping[str, SharedJob]) -> list[MemberResult]:
    """Until every member has made all its steps at least once; members that are done begin again."""
    return _GroupRun(group, jobs).run()


class _GroupRun:
    def __init__(self, group: SharingGroup, jobs: Mapping[str, SharedJob]) -> None:
        self._group = group
        self._claims: dict[str, Claim] = {}
        self._queue = EventQueue()
        self._members = {
            member.name: _SimMember(jobs[member.name], self._queue, partial(self._report, member.name))
            for member in group.members
        }

    def run(self) -> list[MemberResult]:
        for member in self._members.values():
            member.begin()
        self._queue.run_until(lambda: all(member.num_passes for member in self._members.values()))
        return [member.result() for member in self._members.values()]

    def _report(self, name: str, claim: Claim) -> None:
        self._queue.at(self._queue.now_s + REPORT_S, partial(self._hear, name, claim))

    def _hear(self, name: str, claim: Claim) -> None:
        self._claims[name] = self._claims.get(name, Claim()).merged(claim)
        before = {standing.member.name: standing.grant for standing in self._group.standings}
        self._group = arbitrate(self._group, self._claims, (), self._queue.now_s)
        for standing in self._group.standings:
            if standing.grant != before[standing.member.name]:
                member = self._members[standing.member.name]
                self._queue.at(self._queue.now_s + REPORT_S, partial(member.read, standing.grant))


class _SimMember:
    """A coordinator that shares GPUs: asks for turns, uses them, and returns them when they are recalled."""

    def __init__(self, job: SharedJob, queue: EventQueue, report: Callable[[Claim], None]) -> None:
        self._job = job
        self._queue = queue
        self._report = report
        self._turns = MemberTurns()
        self._num_steps = 0
        self._needs_gpus = False
        """Whether it uses the shared GPUs, or waits for them."""
        self._is_falling_asleep = False
        self._needed_at_s: float | None = None
        """When it began to wait; None: it does not."""
        self._longest_wait_s = 0.0
        self._pass_ended_s = 0.0

    @property
    def num_passes(self) -> int:
        """How often it has made all of its steps."""
        return self._num_steps // len(self._job.steps)

    def result(self) -> MemberResult:
        """Over whole passes."""
        step_s = self._pass_ended_s / (self.num_passes * len(self._job.steps))
        return MemberResult(self._job.name, step_s, step_s / self._job.alone_s, self._longest_wait_s)

    def begin(self) -> None:
        """The first step, or the next one."""
        self._needs_gpus, self._needed_at_s = True, self._queue.now_s
        if not self._is_falling_asleep:
            self._go_on()

    def read(self, grant: Grant) -> None:
        """From the arbiter."""
        self._turns = self._turns.read(grant)
        if self._needed_at_s is not None and not self._is_falling_asleep:
            self._go_on()
        self._return_if_recalled()

    def _go_on(self) -> None:
        if self._turns.is_asleep:
            self._turns = self._turns.asking()
            self._report(self._turns.claim)
        elif self._turns.may_use:
            assert self._needed_at_s is not None, "it waits"
            self._longest_wait_s = max(self._longest_wait_s, self._queue.now_s - self._needed_at_s)
            self._needed_at_s = None
            self._queue.at(self._queue.now_s + self._step.shared_s, self._needs_them_no_more)

    def _needs_them_no_more(self) -> None:
        self._needs_gpus = False
        self._queue.at(self._queue.now_s + self._step.apart_s, self._step_ended)
        self._return_if_recalled()

    def _step_ended(self) -> None:
        self._num_steps += 1
        if self._num_steps % len(self._job.steps) == 0:
            self._pass_ended_s = self._queue.now_s
        self.begin()

    def _return_if_recalled(self) -> None:
        if self._turns.is_recalled and not self._needs_gpus and not self._is_falling_asleep:
            self._is_falling_asleep = True
            self._queue.at(self._queue.now_s + SLEEP_S, self._asleep)

    def _asleep(self) -> None:
        self._is_falling_asleep = False
        self._turns = self._turns.returning()
        self._report(self._turns.claim)
        if self._needs_gpus:
            self._go_on()

    @property
    def _step(self) -> SharedStep:
        return self._job.steps[self._num_steps % len(self._job.steps)]

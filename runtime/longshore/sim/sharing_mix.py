"""Which jobs share GPUs with which, and what comes of it, alongside the same jobs without sharing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from longshore.policy.sharing_group import SharingGroup, refusal
from longshore.sim.sharing_group import MemberResult, SharedJob, run_group


@dataclass(frozen=True)
class Nodes:
    """Where groups lie."""

    slot_gpus: int = 2
    """GPUs of a slot."""
    host_bytes_per_gpu: float = 125e9
    """1 TB for a node of eight GPUs."""


NODES: Final = Nodes()


@dataclass(frozen=True)
class PackedGroup:
    """Jobs that share GPUs; one that is alone shares none."""

    group: SharingGroup
    jobs: tuple[SharedJob, ...]

    def num_gpus(self, nodes: Nodes) -> int:
        """Own GPUs of every job, and the shared ones."""
        if len(self.jobs) == 1:
            return self.jobs[0].num_gpus
        return sum(job.num_own_gpus for job in self.jobs) + nodes.slot_gpus * len(_slots(self.group))

    def run(self) -> list[MemberResult]:
        """On the virtual clock."""
        if len(self.jobs) == 1:
            return [MemberResult(self.jobs[0].name, self.jobs[0].alone_s, slowdown=1.0, longest_wait_s=0.0)]
        return run_group(self.group, {job.name: job for job in self.jobs})


@dataclass(frozen=True)
class MixResult:
    """How the jobs of a mix fared."""

    num_gpus_alone: int
    num_gpus: int
    num_groups: int
    members: tuple[MemberResult, ...]
    gain: float
    """GPU hours that the same steps take without sharing, over those that they take."""

    @property
    def max_slowdown(self) -> float:
        """Of the job that lost most."""
        return max(member.slowdown for member in self.members)


def alike(job: SharedJob, count: int) -> list[SharedJob]:
    """Copies that begin at different steps: in step with each other they would never wait."""
    starts = [number % len(job.steps) for number in range(count)]
    return [
        replace(job, name=f"{job.name}-{number}", steps=(*job.steps[start:], *job.steps[:start]))
        for number, start in enumerate(starts)
    ]


def packed(jobs: Sequence[SharedJob], max_slowdown: float, nodes: Nodes = NODES) -> list[PackedGroup]:
    """Every job joins the first group that lets it in, the largest jobs first."""
    groups: list[PackedGroup] = []
    for job in sorted(jobs, key=lambda job: (-job.num_gpus, job.name)):
        for index, found in enumerate(groups):
            member = job.member(_quietest_slots(found.group, _num_slots(job, nodes)), max_slowdown)
            if refusal(found.group, member) is None:
                groups[index] = PackedGroup(found.group.joined(member), (*found.jobs, job))
                break
        else:
            groups.append(_group_of_one(job, max_slowdown, nodes))
    return groups


def run_mix(jobs: Sequence[SharedJob], max_slowdown: float, nodes: Nodes = NODES) -> MixResult:
    """Pack the jobs into groups and let all groups run."""
    groups = packed(jobs, max_slowdown, nodes)
    results = {result.name: result for group in groups for result in group.run()}
    num_gpus = sum(group.num_gpus(nodes) for group in groups)
    alone = sum(job.num_gpus / results[job.name].slowdown for job in jobs)
    members = tuple(results[job.name] for job in jobs)
    return MixResult(sum(job.num_gpus for job in jobs), num_gpus, len(groups), members, gain=alone / num_gpus)


def _group_of_one(job: SharedJob, max_slowdown: float, nodes: Nodes) -> PackedGroup:
    """Its member may be over its limit by the switches alone; then no other job may join."""
    empty = SharingGroup(round(nodes.host_bytes_per_gpu * nodes.slot_gpus))
    member = job.member(_quietest_slots(empty, _num_slots(job, nodes)), max_slowdown)
    is_able = refusal(empty, member) is None
    return PackedGroup(empty.joined(member) if is_able else replace(empty, slot_host_bytes=0), (job,))


def _num_slots(job: SharedJob, nodes: Nodes) -> int:
    num_shared_gpus = job.num_gpus - job.num_own_gpus
    if num_shared_gpus % nodes.slot_gpus:
        raise ValueError(f"{job.name} shares {num_shared_gpus} GPUs, which are no whole slots of {nodes.slot_gpus}")
    return num_shared_gpus // nodes.slot_gpus


def _quietest_slots(group: SharingGroup, count: int) -> list[str]:
    """Those whose members need the least of their time; new ones where there are too few."""
    load = dict.fromkeys(_slots(group), 0.0)
    for member in group.members:
        for slot in member.slots:
            load[slot] += member.turn_s / member.step_s
    new = [f"slot-{number:02}" for number in range(len(load), count)]
    return [*sorted(load, key=lambda slot: (load[slot], slot)), *new][:count]


def _slots(group: SharingGroup) -> set[str]:
    return {slot for member in group.members for slot in member.slots}

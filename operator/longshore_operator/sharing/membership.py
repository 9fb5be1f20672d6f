"""How a sharing group changes when the operator looks at one of its jobs. Pure.

The group is one slot: its members have pods on the same nodes, and only one of them is awake, wherever its pods are.
The memory of a sleeping member is a part of what its pods request, so the scheduler has checked it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.sharing import RuntimeSharing, Sharing, SharingStatus
from longshore.api.status import FINISHED_PHASES, WITHOUT_PODS
from longshore.policy.sharing_group import (
    Claim,
    Grant,
    Member,
    MemberStage,
    MemberStanding,
    SharingGroup,
    arbitrate,
    refusal,
)
from longshore_operator.identity import Identity
from longshore_operator.observed import PodView
from longshore_operator.sharing.view import SharingView

_SLOTS: Final = frozenset({"gpus"})
NUM_TRIAL_STEPS: Final = 3
"""Measured steps after which a member is judged."""
EMPTY: Final = SharingGroup(slot_host_bytes=None)


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """What the group needs to know of a job."""

    name: str
    uid: str
    attempt: int
    """0: the job has no pods and must get none before the next look."""
    sharing: Sharing | None
    """None: the job is no member of this group any more."""
    report: RuntimeSharing | None
    """Newest report of its coordinator, perhaps of an earlier attempt."""
    is_current: bool
    """Whether the report is of this attempt."""
    turns: SharingStatus | None
    """What the coordinator of this attempt may have read."""

    @classmethod
    def of(cls, job: RLJob, group: str) -> "MemberFacts":
        """The facts of a job as it is stored, for one group."""
        identity, status, sharing = Identity.of(job), job.status, job.spec.sharing
        has_pods = status.phase is not None and status.phase not in FINISHED_PHASES | WITHOUT_PODS
        is_member = sharing is not None and sharing.group == group
        runtime = status.runtime or RuntimeStatus()
        turns = status.sharing
        return cls(
            identity.name,
            identity.uid,
            status.attempt if has_pods and is_member else 0,
            sharing if is_member else None,
            runtime.sharing,
            runtime.attempt == status.attempt,
            turns if turns is not None and turns.attempt == status.attempt else None,
        )

    @property
    def claim(self) -> Claim:
        """What the coordinator of this attempt says of its turns."""
        if self.report is None or not self.is_current:
            return Claim()
        returned = min(self.report.returned, self.report.asked)
        return Claim(min(self.report.asked, returned + 1), returned)

    @property
    def member_name(self) -> str:
        """Name of the member that this attempt is."""
        return member_name(self.name, self.uid, self.attempt)

    @property
    def is_measured(self) -> bool:
        """Whether enough steps were measured to judge it."""
        return self.report is not None and self.report.num_steps >= NUM_TRIAL_STEPS and _step_s(self.report) > 0

    def member(self) -> Member:
        """What is known of it; of one that was not measured, only its limits."""
        assert self.sharing is not None, "it shares GPUs"
        report = self.report if self.report is not None and self.is_measured else RuntimeSharing()
        step_s = _step_s(report)
        return Member(
            self.member_name,
            _SLOTS,
            host_bytes=0,
            # Engines and trainers of colocated jobs take turns in any case, so a switch costs no more than alone.
            alone_s=step_s,
            step_s=step_s,
            turn_s=report.turn_s + report.switch_s,
            max_slowdown=self.sharing.max_slowdown,
            return_limit_s=self.sharing.turn_limit_s,
        )


def member_name(job: str, uid: str, attempt: int) -> str:
    """Name of an attempt of a job as a member."""
    return f"{job}/{uid}/{attempt}"


def advanced(
    group: SharingGroup,
    job: MemberFacts,
    claims: Mapping[str, Claim],
    job_pods: Iterable[PodView],
    group_pods: Iterable[PodView],
    now_s: float,
) -> SharingGroup:
    """Return the group after a look at one of its jobs.

    No turn is granted before every member was looked at, which an operator does when it starts: `claims` are of those
    that were. Nor is one while a pod of the group, which are `group_pods`, is of no member: somebody has removed the
    object of the group, and nobody knows which turns that pod has.
    """
    after = left(group, job, job_pods)
    if job.attempt and job.sharing is not None:
        after = _with_job(after, job)
    return after if _unknown(after, claims, group_pods) else arbitrate(after, claims, (), now_s)


def left(group: SharingGroup, job: MemberFacts, job_pods: Iterable[PodView]) -> SharingGroup:
    """Return the group without the attempts of the job that have ended; those of which pods are left get no turn."""
    holding = {_member_of(pod) for pod in job_pods if pod.holds_resources}
    over = {member.name for member in group.members if member.job == job.name} - {job.member_name}
    return group.without(over - holding).leaving(over)


def obstacle(group: SharingGroup, claims: Mapping[str, Claim], group_pods: Iterable[PodView]) -> str:
    """Return what keeps the group from its next turn that its jobs cannot mend, for people; empty: nothing does."""
    pods = [pod for pod in group_pods if pod.holds_resources]
    if unknown := _unknown(group, claims, pods):
        return f"no turn is granted, since {unknown}"
    for standing in group.standings:
        mine = [pod for pod in pods if _member_of(pod) == standing.member.name]
        if standing.holds(claims.get(standing.member.name, Claim())) and mine and all(pod.deleting for pod in mine):
            return f"the next turn begins when {_described(mine[0])} is gone, which is being deleted and has the GPUs"
    return ""


def _unknown(group: SharingGroup, claims: Mapping[str, Claim], group_pods: Iterable[PodView]) -> str:
    """Return why it is not known who has the GPUs; empty: it is."""
    known = {member.name for member in group.members}
    harmless = {
        one.member.name for one in group.standings if one.stage is MemberStage.LEAVING and not one.grant.granted
    }
    holding = [pod for pod in group_pods if pod.holds_resources]
    strangers = sorted(pod.name for pod in holding if _member_of(pod) not in known)
    if strangers:
        pod = next(pod for pod in holding if pod.name == strangers[0])
        return f"{_described(pod)} has the label of the group and is of no member: wait for its end, or delete it"
    unseen = sorted(known - harmless - claims.keys())
    if not unseen:
        return ""
    left = sorted((pod for pod in holding if _member_of(pod) == unseen[0]), key=lambda pod: pod.name)
    job, attempt = unseen[0].split("/")[0], unseen[0].rpartition("/")[2]
    pods = f", of which {_described(left[0])} is left" if left else ""
    return f"the operator has not looked at attempt {attempt} of job {job} since it started{pods}"


def _described(pod: PodView) -> str:
    return f"pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")


def view(
    group: SharingGroup, name: str, job: MemberFacts, claims: Mapping[str, Claim], waits_for: str = ""
) -> SharingView:
    """Return what a decision about the job sees; `waits_for`: the obstacle of its group."""
    standing = _standing(group, job)
    if standing is None:
        return SharingView(name, refusal=refused(group, job) or "")
    if standing.stage is MemberStage.LEAVING:
        why = refusal(group, standing.member) or "a member would have become slower than its sharing.maxSlowdown allows"
        return SharingView(name, refusal=_sentence(why))
    grant, claim = standing.grant, claims.get(standing.member.name, Claim())
    limit = timedelta(seconds=standing.member.limit_s)
    recalled_at = datetime.fromtimestamp(standing.recalled_at_s, UTC)
    return SharingView(
        name,
        SharingStatus(attempt=job.attempt, granted=grant.granted, recalled=grant.recalled),
        is_on_trial=standing.stage is MemberStage.ON_TRIAL,
        overdue_at=recalled_at + limit if standing.is_recalled(claim) else None,
        waits_for=waits_for,
    )


def refused(group: SharingGroup, job: MemberFacts) -> str | None:
    """Return why the job cannot join with what is known of it; None: it can."""
    if not job.is_measured or job.sharing is None:
        return None
    why = refusal(group, job.member())
    return None if why is None else _sentence(why)


def _with_job(group: SharingGroup, job: MemberFacts) -> SharingGroup:
    """Let a job join that can, and take its newest measurements."""
    standing = _standing(group, job)
    if standing is None:
        if refused(group, job) is not None:
            return group
        turns = job.turns
        # A turn that others still wait for is recalled again, now: when it was, nobody knows any more.
        grant = Grant(turns.granted) if turns is not None else Grant()
        trial = group.on_trial(job.member(), grant.merged(_counted(job)))
        return trial.measured(job.member()) if job.is_measured else trial
    if job.claim.returned > standing.grant.granted:
        group = group.granting(job.member_name, standing.grant.merged(_counted(job)))
    if job.is_measured and job.is_current and standing.member != job.member():
        return group.measured(job.member())
    return group


def _counted(job: MemberFacts) -> Grant:
    """Turns that the job has had, by its own account: the group's object may have been lost since."""
    return Grant(job.claim.returned, job.claim.returned)


def _step_s(report: RuntimeSharing) -> float:
    return report.step_s + report.switch_s


def _standing(group: SharingGroup, job: MemberFacts) -> MemberStanding | None:
    return next((one for one in group.standings if one.member.name == job.member_name), None)


def _member_of(pod: PodView) -> str:
    return member_name(pod.job, pod.owner_uid, pod.attempt)


def _sentence(why: str) -> str:
    return f"{why}: choose another sharing.group, or raise sharing.maxSlowdown"

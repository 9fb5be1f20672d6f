"""Jobs that take turns on GPUs: which member of a sharing group may use the GPUs that its members share.

Members have pods on the same GPUs. All but one of these pods sleep, with everything offloaded to the host. A member
counts its turns: it says how many it *asked* for and how many it *returned*. The arbiter says how many it *granted* and
how many it *recalled*. A member uses the shared GPUs while it has a granted turn that it has not returned. It returns a
recalled turn as soon as it does not need the GPUs for a while, which is once per step at the latest.

Counters only grow, and each has one writer. A report that is late, lost, repeated or out of order therefore says less
than there is to say, and nothing wrong. No rule depends on a clock: without an arbiter no turn is recalled, and the
member that has the turn keeps the GPUs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_RETURN_FACTOR: Final = 3
"""A recalled turn is overdue after so many times what the member said that it needs at most."""


@dataclass(frozen=True)
class Member:
    """A job, and what it says of itself when it joins."""

    name: str
    """Of one attempt of the job: the pods of the next attempt are another member, which counts from 0. People know it
    by the part before the first slash."""
    slots: frozenset[str]
    """What it shares. A slot is the GPUs of one node on which each member with that slot has a pod."""
    host_bytes: int
    """Memory of the host that its pod takes in each slot, with everything offloaded."""
    alone_s: float
    """Mean time of a step on GPUs that it does not share."""
    step_s: float
    """Mean time of a step in the group, switches included, if it never waited for another member."""
    turn_s: float
    """The longest time in a step from a grant until the shared GPUs are free for another member."""
    max_slowdown: float
    """How many times as long a step may become, compared with `alone_s`."""
    return_limit_s: float | None = None
    """A recalled turn is overdue after this time; None: after three times `turn_s`."""

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.name.partition("/")[0]

    @property
    def limit_s(self) -> float:
        """Time after which a recalled turn is overdue."""
        return _RETURN_FACTOR * self.turn_s if self.return_limit_s is None else self.return_limit_s


@dataclass(frozen=True)
class Claim:
    """What a member says of its turns; 0 <= returned <= asked <= returned + 1."""

    asked: int = 0
    returned: int = 0

    def merged(self, other: "Claim") -> "Claim":
        """What two reports say together, in whatever order they came."""
        return Claim(max(self.asked, other.asked), max(self.returned, other.returned))


@dataclass(frozen=True)
class Grant:
    """What the arbiter says of the turns of a member; recalled <= granted."""

    granted: int = 0
    recalled: int = 0

    def merged(self, other: "Grant") -> "Grant":
        """What two messages say together, in whatever order they came."""
        return Grant(max(self.granted, other.granted), max(self.recalled, other.recalled))


NO_GRANT: Final = Grant()


@dataclass(frozen=True)
class MemberTurns:
    """A member's own side: what it claims, and what it has read of its grants."""

    claim: Claim = Claim()
    grant: Grant = Grant()

    @property
    def may_use(self) -> bool:
        """Whether the shared GPUs are this member's."""
        return self.grant.granted > self.claim.returned

    @property
    def is_asleep(self) -> bool:
        """Whether it neither has a turn nor waits for one."""
        return self.claim.asked == self.claim.returned

    @property
    def is_recalled(self) -> bool:
        """Whether it has to return its turn as soon as it does not need the GPUs for a while."""
        return self.grant.recalled > self.claim.returned

    def read(self, grant: Grant) -> "MemberTurns":
        """A message of the arbiter, new or old."""
        return replace(self, grant=self.grant.merged(grant))

    def asking(self) -> "MemberTurns":
        """It needs the shared GPUs."""
        assert self.is_asleep, "a member has one turn at a time"
        return replace(self, claim=replace(self.claim, asked=self.claim.asked + 1))

    def returning(self) -> "MemberTurns":
        """Everything that used the shared GPUs sleeps."""
        assert self.may_use, "only a granted turn can be returned"
        return replace(self, claim=replace(self.claim, returned=self.claim.asked))


class MemberStage(StrEnum):
    """How a member stands to the group."""

    ADMITTED = "Admitted"
    ON_TRIAL = "OnTrial"
    """It takes turns while its steps are measured (`SharingGroup.measured`)."""
    LEAVING = "Leaving"
    """It keeps the turn that it has until its pods are gone, and gets no other."""


@dataclass(frozen=True)
class MemberStanding:
    """A member and its grants, as the group's object has them."""

    member: Member
    grant: Grant = Grant()
    recalled_at_s: float = 0.0
    """When the newest turn was recalled, if it was."""
    stage: MemberStage = MemberStage.ADMITTED

    def holds(self, claim: Claim) -> bool:
        """Whether it may be using its slots, for all that is known."""
        return self.grant.granted > claim.returned

    def waits(self, claim: Claim) -> bool:
        """Whether it asks for a turn that it was not granted, and may get one."""
        return claim.asked > self.grant.granted and self.stage is not MemberStage.LEAVING

    def is_recalled(self, claim: Claim) -> bool:
        """Whether it was asked to return the turn that it has."""
        return self.grant.recalled > claim.returned


@dataclass(frozen=True)
class SharingGroup:
    """The arbiter's whole memory; stored as one object, so that of two arbiters one fails to write."""

    slot_host_bytes: int | None
    """Memory of the host for the pods of each slot; None: the scheduler has reserved it for each pod."""
    standings: tuple[MemberStanding, ...] = ()
    """The member whose last turn began longest ago comes first; new ones come last."""

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order of their next turns."""
        return tuple(standing.member for standing in self.standings)

    def joined(self, member: Member) -> "SharingGroup":
        """With another member, which `refusal` lets in."""
        assert refusal(self, member) is None, "a member is let in before it joins"
        return self._with(MemberStanding(member))

    def on_trial(self, member: Member, grant: Grant = NO_GRANT) -> "SharingGroup":
        """With another member, whose steps were not measured; `grant`: what it has read already."""
        return self._with(MemberStanding(member, grant, stage=MemberStage.ON_TRIAL))

    def measured(self, member: Member) -> "SharingGroup":
        """With the newest measurements of a member. The first end its trial: it stays, or has to leave."""
        index = [each.name for each in self.members].index(member.name)
        standing, others = self.standings[index], (*self.standings[:index], *self.standings[index + 1 :])
        stage = standing.stage
        if stage is MemberStage.ON_TRIAL:
            stage = (
                MemberStage.ADMITTED
                if refusal(replace(self, standings=others), member) is None
                else MemberStage.LEAVING
            )
        standings = list(self.standings)
        standings[index] = replace(standing, member=member, stage=stage)
        return replace(self, standings=tuple(standings))

    def granting(self, name: str, grant: Grant) -> "SharingGroup":
        """With other counters of a member, whose turns are no longer known."""
        changed = (replace(one, grant=grant) if one.member.name == name else one for one in self.standings)
        return replace(self, standings=tuple(changed))

    def leaving(self, names: Collection[str]) -> "SharingGroup":
        """The group in which these members get no other turn."""
        changed = (
            replace(one, stage=MemberStage.LEAVING) if one.member.name in names else one for one in self.standings
        )
        return replace(self, standings=tuple(changed))

    def without(self, names: Collection[str]) -> "SharingGroup":
        """The group after the pods of these members are known to be gone."""
        return replace(self, standings=tuple(one for one in self.standings if one.member.name not in names))

    def _with(self, standing: MemberStanding) -> "SharingGroup":
        name = standing.member.name
        assert name not in [each.name for each in self.members], "a name belongs to one attempt"
        return replace(self, standings=(*self.standings, standing))


def arbitrate(group: SharingGroup, claims: Mapping[str, Claim], gone: Collection[str], now_s: float) -> SharingGroup:
    """Grant turns on free slots, and recall those on slots that others wait for.

    `claims`: the newest that is known of each member; one of which nothing is known has said nothing. `gone`: members
    that are known to have no pods any more; no member comes back.
    """
    left = group.without(gone).standings
    claimed = {standing.member.name: claims.get(standing.member.name, Claim()) for standing in left}
    taken = _slots(standing for standing in left if standing.holds(claimed[standing.member.name]))
    rest: list[MemberStanding] = []
    began: list[MemberStanding] = []
    for standing in left:
        if not standing.waits(claimed[standing.member.name]):
            rest.append(standing)
            continue
        if taken.isdisjoint(standing.member.slots):
            began.append(replace(standing, grant=replace(standing.grant, granted=standing.grant.granted + 1)))
        else:
            rest.append(standing)
        taken |= standing.member.slots  # Also of those that wait: no later one may overtake them.
    waited_for = _slots(standing for standing in rest if standing.waits(claimed[standing.member.name]))
    standings = [_recalled(standing, claimed, waited_for, now_s) for standing in (*rest, *began)]
    return replace(group, standings=tuple(standings))


def overdue(group: SharingGroup, claims: Mapping[str, Claim], now_s: float) -> tuple[str, ...]:
    """Members that do not return a recalled turn: their pods on the shared GPUs have to be deleted."""
    return tuple(
        standing.member.name
        for standing in group.standings
        if standing.is_recalled(claims.get(standing.member.name, Claim()))
        and now_s - standing.recalled_at_s > standing.member.limit_s
    )


def refusal(group: SharingGroup, candidate: Member) -> str | None:
    """Why a job cannot join: memory of the host, or the limit of an admitted member; None if it can.

    An earlier attempt of the same job, whose pods still end, takes no turns beside it.
    """
    for slot in sorted(candidate.slots):
        on_slot = [member for member in (*group.members, candidate) if slot in member.slots]
        needed = sum(member.host_bytes for member in on_slot)
        if group.slot_host_bytes is not None and needed > group.slot_host_bytes:
            return (
                f"{len(on_slot)} sleeping jobs would need {needed / 1e9:.0f} GB of memory of the host in {slot}, which "
                f"has {group.slot_host_bytes / 1e9:.0f} GB"
            )
    admitted = (standing.member for standing in group.standings if standing.stage is MemberStage.ADMITTED)
    members = (*(member for member in admitted if member.job != candidate.job), candidate)
    for member in members:
        if not _stays_within_limit(member, [other for other in members if other is not member]):
            return f"a step of {member.job} could take more than {member.max_slowdown:g} times as long as alone"
    return None


def _stays_within_limit(member: Member, others: Iterable[Member]) -> bool:
    """Whether its mean step stays within its limit, however the turns fall.

    A step waits for at most one turn of each other member, since nobody overtakes. A member has at most one turn per
    step, and a step takes at least `step_s`: in a time of x it delays others by x / step_s turns at most. So a mean
    step of x takes no longer than step_s + sum of turn_s * min(1, x / step_s) over the others. The right side is
    concave in x: if it is within the limit for x at the limit, no greater x is possible.
    """
    limit_s = member.max_slowdown * member.alone_s
    waits_s = sum(other.turn_s * (1.0 if other.step_s <= limit_s else limit_s / other.step_s) for other in others)
    return member.step_s + waits_s <= limit_s


def _recalled(
    standing: MemberStanding, claims: Mapping[str, Claim], waited_for: Collection[str], now_s: float
) -> MemberStanding:
    claim = claims[standing.member.name]
    if not standing.holds(claim) or standing.is_recalled(claim) or standing.member.slots.isdisjoint(waited_for):
        return standing
    return replace(standing, grant=replace(standing.grant, recalled=standing.grant.granted), recalled_at_s=now_s)


def _slots(standings: Iterable[MemberStanding]) -> set[str]:
    return {slot for standing in standings for slot in standing.member.slots}

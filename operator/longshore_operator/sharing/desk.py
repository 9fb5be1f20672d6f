"""The shell of sharing groups: each is one ConfigMap, which is written only in the version that was read."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import structlog
from pydantic import TypeAdapter

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore.policy.sharing_group import Claim, MemberStage, SharingGroup
from longshore_operator.informer import Key
from longshore_operator.kube import KubeClient
from longshore_operator.observed import PodView
from longshore_operator.sharing.membership import EMPTY, MemberFacts, advanced, left, obstacle, view
from longshore_operator.sharing.view import SharingView

_DATA_KEY: Final = "group.json"
_MAX_TRIES: Final = 5
_LATEST_S: Final = 1e11
"""Unix time of the year 5138."""
_GROUPS: Final = TypeAdapter(SharingGroup)
GroupKey = tuple[str, str]
"""(namespace, name) of a sharing group."""

log = structlog.get_logger(__name__)


class GroupUnreadable(Exception):
    """The ConfigMap of a group holds something else; the message says what to do."""


@dataclass
class _Group:
    """A group as it was read or written last."""

    content: SharingGroup = EMPTY
    version: str = ""
    """Resource version; empty: the object does not exist."""
    is_read: bool = False
    claims: dict[str, Claim] = field(default_factory=dict)
    """Newest claims of members, as far as their jobs were looked at."""
    waiting: set[Key] = field(default_factory=set)
    """Jobs that cannot join."""
    obstacle: str = ""
    """What keeps it from its next turn, as its members were shown."""
    jobs: frozenset[Key] = frozenset()
    """Jobs of its members, and those that wait."""
    num_users: int = 0
    """Passes that are looking at it, or about to."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharingDesk:
    """Decides turns, once per pass; `wake(key)` is called for jobs whose turns or chances to join have changed.

    Of two operators that both believe to lead, one fails to write.
    """

    def __init__(
        self,
        kube: KubeClient,
        pods_of_group: Callable[[str, str], Iterable[PodView]],
        wake: Callable[[Key], None],
    ) -> None:
        """`pods_of_group(namespace, token)`: all pods with the label of a group."""
        self._kube = kube
        self._pods_of_group = pods_of_group
        self._wake = wake
        self._groups: dict[GroupKey, _Group] = {}
        """Those with members or jobs that wait."""
        self._groups_of: defaultdict[Key, set[GroupKey]] = defaultdict(set)
        """Groups that a job is a member of, or waits to join."""

    async def look(self, job: RLJob, pods: Sequence[PodView], now: datetime) -> SharingView | None:
        """A pass looks at a job; None: it shares nothing."""
        key: Key = (job.metadata["namespace"], job.metadata["name"])
        sharing = job.spec.sharing
        wanted = (key[0], sharing.group) if sharing is not None else None
        for other in self._known_of(key) - {wanted}:
            await self._leave(other, key, MemberFacts.of(job, other[1]), pods, now)
        if wanted is None:
            return None
        facts = MemberFacts.of(job, wanted[1])
        async with self._using(wanted) as group:
            try:
                await self._advance(wanted, group, facts, pods, now)
            except GroupUnreadable as error:
                # Jobs that run go on as they are; none starts.
                why = str(error)
                return SharingView(wanted[1], facts.turns, refusal="" if facts.attempt else why, mistake=why)
            found = view(group.content, wanted[1], facts, group.claims, group.obstacle)
            (group.waiting.add if found.refusal else group.waiting.discard)(key)
            return found

    async def leave(self, key: Key, pods: Sequence[PodView], now: datetime) -> None:
        """The job is deleted or cannot be read; it stays a member until its pods are gone."""
        facts = MemberFacts(key[1], "", 0, None, None, is_current=False, turns=None)
        for group in self._known_of(key):
            await self._leave(group, key, facts, pods, now)

    def _known_of(self, key: Key) -> frozenset[GroupKey]:
        return frozenset(self._groups_of.get(key, ()))

    async def _leave(self, name: GroupKey, key: Key, job: MemberFacts, pods: Sequence[PodView], now: datetime) -> None:
        async with self._using(name) as group:
            group.waiting.discard(key)
            try:
                await self._advance(name, group, job, pods, now)
            except GroupUnreadable as error:
                # Nothing is left to look at the job again once its pods are gone, so it is forgotten here already. If
                # the object can be read one day and names the job, the job is woken.
                log.warning("a job leaves a sharing group that cannot be read", job=key, error=str(error))
                self._set(name, group, left(group.content, job, pods))

    @asynccontextmanager
    async def _using(self, name: GroupKey) -> AsyncIterator[_Group]:
        """One pass at a time; a group without members and jobs that wait is forgotten afterwards."""
        group = self._groups.setdefault(name, _Group())
        group.num_users += 1
        try:
            async with group.lock:
                yield group
        finally:
            group.num_users -= 1
            self._index(name, group)
            if not (group.num_users or group.jobs):
                del self._groups[name]

    def _index(self, name: GroupKey, group: _Group) -> None:
        """Note which jobs the group has to do with."""
        jobs = frozenset((name[0], member.job) for member in group.content.members) | group.waiting
        for key in jobs - group.jobs:
            self._groups_of[key].add(name)
        for key in group.jobs - jobs:
            self._groups_of[key].discard(name)
            if not self._groups_of[key]:
                del self._groups_of[key]
        group.jobs = jobs

    async def _advance(
        self, name: GroupKey, group: _Group, job: MemberFacts, pods: Sequence[PodView], now: datetime
    ) -> None:
        for _ in range(_MAX_TRIES):
            if not group.is_read:
                await self._read(name, group)
            if job.attempt:
                before = group.claims.get(job.member_name, Claim())
                group.claims[job.member_name] = before.merged(job.claim)
            in_group = tuple(self._pods_of_group(name[0], names.sharing_token(*name)))
            after = advanced(group.content, job, group.claims, pods, in_group, now.timestamp())
            if after == group.content or await self._write(name, group, after):
                self._show_obstacle(name, group, in_group)
                return
        raise TimeoutError(f"sharing group {name[1]} in {name[0]}: somebody else writes {names.sharing_group(name[1])}")

    def _show_obstacle(self, name: GroupKey, group: _Group, in_group: Sequence[PodView]) -> None:
        """Wake the members if what they wait for has changed: their statuses say so."""
        found = obstacle(group.content, group.claims, in_group)
        if found != group.obstacle:
            group.obstacle = found
            self._wake_jobs(name, {member.job for member in group.content.members})

    async def _read(self, name: GroupKey, group: _Group) -> None:
        found = await self._kube.get("ConfigMap", name[0], names.sharing_group(name[1]))
        if found is None:
            # What is remembered stays valid: the object may have been deleted with the last job that it names.
            group.version, group.is_read = "", True
            return
        try:
            content = _GROUPS.validate_json((found.get("data") or {}).get(_DATA_KEY, ""))
            _require_times(content)
        except ValueError as error:
            what = f"ConfigMap {names.sharing_group(name[1])} does not hold a sharing group"
            raise GroupUnreadable(f"{what}, so no turn is granted: delete it") from error
        group.version, group.is_read = found["metadata"]["resourceVersion"], True
        self._set(name, group, content)
        # Claims and ends of members are known once their jobs have been looked at, also of those that were deleted.
        self._wake_jobs(name, {member.job for member in content.members})

    async def _write(self, name: GroupKey, group: _Group, after: SharingGroup) -> bool:
        """Write the group if nobody else has; return whether it was written.

        A group of nobody needs no object, nor do attempts that are over: that of a deleted group is not made again.
        """
        if group.version or any(one.stage is not MemberStage.LEAVING for one in after.standings):
            written = await self._written(name, group.version, manifest(name, after))
            if written is None:
                group.is_read = False
                return False
            group.version = written["metadata"]["resourceVersion"]
        before = group.content
        self._set(name, group, after)
        self._wake_changed(name, before, after)
        return True

    async def _written(self, name: GroupKey, version: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Write the object in the version that was read; None: it is another."""
        if not version:
            return await self._kube.create(body)
        body["metadata"]["resourceVersion"] = version
        return await self._kube.merge("ConfigMap", name[0], body["metadata"]["name"], body)

    def _set(self, name: GroupKey, group: _Group, content: SharingGroup) -> None:
        group.content = content
        known = {member.name for member in content.members}
        group.claims = {member: claim for member, claim in group.claims.items() if member in known}
        self._index(name, group)

    def _wake_changed(self, name: GroupKey, before: SharingGroup, after: SharingGroup) -> None:
        """Wake jobs whose turns changed, and those that wait to join if there is another chance."""
        turns = {one.member.name: (one.grant, one.stage) for one in before.standings}
        changed = [one for one in after.standings if turns.get(one.member.name) != (one.grant, one.stage)]
        self._wake_jobs(name, {one.member.job for one in changed})
        if set(before.members) != set(after.members):
            for key in sorted(self._groups[name].waiting):
                self._wake(key)

    def _wake_jobs(self, name: GroupKey, jobs: Iterable[str]) -> None:
        for job in sorted(jobs):
            self._wake((name[0], job))


def _require_times(content: SharingGroup) -> None:
    """Raise ValueError for times that no operator writes, with which none can calculate."""
    for standing in content.standings:
        for time_s in (standing.recalled_at_s, standing.member.limit_s):
            if not 0 <= time_s <= _LATEST_S:
                raise ValueError(f"{standing.member.name} has a time of {time_s} s")


def manifest(name: GroupKey, content: SharingGroup) -> dict[str, Any]:
    """Return the ConfigMap of a group. The garbage collector deletes it when the last job that it names is deleted."""
    metadata: dict[str, Any] = {
        "namespace": name[0],
        "name": names.sharing_group(name[1]),
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SHARING: names.sharing_token(*name)},
    }
    jobs = sorted({tuple(member.name.split("/")[:2]) for member in content.members})
    if jobs:
        metadata["ownerReferences"] = [
            {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": uid} for job, uid in jobs
        ]
    data = {_DATA_KEY: _GROUPS.dump_json(content).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

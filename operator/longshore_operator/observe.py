"""Read what a decision about one job depends on besides its pods, which the informer knows.

Nothing is written here, neither in the cluster nor in the memory of the job.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from longshore.api import names
from longshore.api.limits import too_large
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.scheduling import PodGroupKind
from longshore.api.spec import RLJobSpec
from longshore.api.status import FINISHED_PHASES
from longshore_kube.errors import Unreadable
from longshore_operator.children import secrets
from longshore_operator.config import OperatorConfig
from longshore_operator.context import ClaimView, Observed, Reads
from longshore_operator.identity import Identity, Key
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.kueue_client import KueueClient
from longshore_operator.kueue.view import KueueView
from longshore_operator.pod_group_api import APIS, PodGroupView
from longshore_operator.pod_informer import PodInformer
from longshore_operator.pod_view import PodView
from longshore_operator.stored_job import StoredJob


class Observer:
    """Reads the state of one job from the API server."""

    def __init__(self, kube: KubeClient, config: OperatorConfig, pods: PodInformer, kueue: KueueClient) -> None:
        self._kube = kube
        self._config = config
        self._pods = pods
        self._kueue = kueue

    async def read_job(self, key: Key) -> dict[str, Any] | None:
        """Return the job, or, if it cannot be read, its metadata with the reason in place of the spec."""
        try:
            return await self._kube.get(names.KIND, *key)
        except Unreadable as error:
            found = await self._kube.get(names.KIND, *key, metadata_only=True)
            return None if found is None else {"metadata": found["metadata"], "spec": too_large(str(error))}

    async def read(self, key: Key, memory: JobMemory, stored: StoredJob, now: datetime) -> Reads:
        """Return what a decision reads besides the job and its pods.

        Args:
            memory: tells which of these reads are needed.
        """
        pod_group = await self._read_pod_group(stored)
        claim = await self._read_claim(memory, stored, self._pods.pods(key), now)
        kueue = await self._read_kueue(key, stored)
        found = await self._look_for_secrets(memory, stored, self._pods.pods(key))
        is_searched = _may_have_unlabelled(stored, self._pods.pods(key), memory.searched_for)
        if is_searched:
            await self._pods.find_unlabelled(key)
        return Reads(claim, pod_group, kueue, found, is_searched)

    async def _read_claim(
        self, memory: JobMemory, stored: StoredJob, pods: Sequence[PodView], now: datetime
    ) -> ClaimView | None:
        """Return the volume claim, which is read only while pods wait for long, or are refused by the scheduler."""
        if isinstance(stored.spec, ValidationError) or stored.status.phase in FINISHED_PHASES:
            return None
        if not memory.needs_claim(pods, now):
            return None
        namespace, job = stored.metadata["namespace"], stored.metadata["name"]
        name = stored.spec.storage.claim_name or names.storage_claim(job)
        if memory.bound_claim is not None and memory.bound_claim.name == name:
            return memory.bound_claim
        claim = await self._kube.get("PersistentVolumeClaim", namespace, name)
        if claim is None:
            return ClaimView(name, exists=False)
        return ClaimView(name, exists=True, phase=claim.get("status", {}).get("phase", ""))

    async def _read_pod_group(self, stored: StoredJob) -> PodGroupView | None:
        """Return the state of the PodGroup of a job; None: it wants none, or needs none any more."""
        if "deletionTimestamp" in stored.metadata or isinstance(stored.spec, ValidationError):
            return None
        kind = stored.spec.scheduling.pod_group
        if kind is None or stored.spec.runs_elsewhere:
            return None
        if kind not in self._config.pod_groups:
            return PodGroupView(mistake=_not_allowed(kind))
        api, identity = APIS[kind], Identity.of(RLJob(metadata=stored.metadata, spec=stored.spec))
        name = names.pod_group(identity.name)
        found = await self._kube.get(api.resource, identity.namespace, name, metadata_only=True)
        if found is None and api.version not in await self._kube.served_versions(api.group):
            missing = f"the cluster serves no PodGroups of {api.group}/{api.version}"
            return PodGroupView(mistake=f"{missing}: {api.install}, or remove scheduling.podGroup")
        owners = found["metadata"].get("ownerReferences") or () if found is not None else ()
        if found is not None and not any(owner["uid"] == identity.uid for owner in owners):
            return PodGroupView(
                mistake=f"PodGroup {name} exists and does not belong to this job: delete it, or rename the job"
            )
        return PodGroupView(found)

    async def _read_kueue(self, key: Key, stored: StoredJob) -> KueueView | None:
        """Return the state of Kueue for a job with a queue."""
        status = stored.status
        if isinstance(stored.spec, ValidationError):
            queue = status.admission.queue if status.admission is not None else ""
            return await self._kueue.read_unreadable(key, queue) if queue else None
        return await self._kueue.read(RLJob(metadata=stored.metadata, spec=stored.spec, status=status))

    async def _look_for_secrets(
        self, memory: JobMemory, stored: StoredJob, pods: Sequence[PodView]
    ) -> dict[tuple[str, str], bool]:
        """Return whether Secrets of a job exist, while a pod beside a running coordinator starts."""
        runs = any(pod.component is Component.COORDINATOR and pod.phase == "Running" for pod in pods)
        if isinstance(stored.spec, ValidationError) or not (runs and memory.num_starting_looks):
            return {}
        wanted = secrets(RLJob(metadata=stored.metadata, spec=stored.spec), Observed())
        return {
            one.key: not await self._kube.is_missing(one.manifest) for one in wanted if one.key not in memory.applied
        }


def _may_have_unlabelled(stored: StoredJob, pods: Sequence[PodView], searched_for: int) -> bool:
    """Return whether to search for pods without labels: once in each attempt, if its coordinator is missing.

    Without a search, an attempt could begin beside a pod of an earlier one that nobody sees.

    Args:
        searched_for: the attempt of the previous search of this job.
    """
    status, spec = stored.status, stored.spec
    if searched_for == status.attempt or status.phase in FINISHED_PHASES or "deletionTimestamp" in stored.metadata:
        return False
    if not isinstance(spec, RLJobSpec) or spec.suspend or spec.runs_elsewhere:
        return False
    return not any(pod.component is Component.COORDINATOR for pod in pods)


def _not_allowed(kind: PodGroupKind) -> str:
    return (
        f"the operator was installed without PodGroups of {kind.value}: add {kind.value} to the chart's podGroups, "
        "or remove scheduling.podGroup"
    )

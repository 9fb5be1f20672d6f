"""Read the volume claim of a job, which its pods may be waiting for."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import ValidationError

from longshore.api import names
from longshore.api.status import FINISHED_PHASES
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient
from longshore_operator.observed import ClaimView, PodView
from longshore_operator.stored_job import StoredJob


async def read_claim(
    kube: KubeClient, memory: JobMemory, stored: StoredJob, pods: Sequence[PodView], now: datetime
) -> ClaimView | None:
    """Return the volume claim, which is read only while pods wait for long, or are refused by the scheduler."""
    if isinstance(stored.spec, ValidationError) or stored.status.status.phase in FINISHED_PHASES:
        return None
    if not memory.needs_claim(pods, now):
        return None
    namespace, job = stored.metadata["namespace"], stored.metadata["name"]
    name = stored.spec.storage.claim_name or names.storage_claim(job)
    if memory.bound_claim is not None and memory.bound_claim.name == name:
        return memory.bound_claim
    claim = await kube.get("PersistentVolumeClaim", namespace, name)
    if claim is None:
        return ClaimView(name, exists=False)
    view = ClaimView(name, exists=True, phase=claim.get("status", {}).get("phase", ""))
    memory.bound_claim = view if view.phase == "Bound" else None
    return view

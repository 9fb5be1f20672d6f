"""The shell of PodGroups: reads the one of a job, and whether the API server knows its kind."""

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore.api.scheduling import PodGroupKind
from longshore_operator.identity import Identity
from longshore_operator.kube import KubeClient
from longshore_operator.plan import OperatorConfig
from longshore_operator.pod_group.api import APIS
from longshore_operator.pod_group.view import PodGroupView


class PodGroupDesk:
    """Reads the PodGroup of a job, once per pass."""

    def __init__(self, kube: KubeClient, config: OperatorConfig) -> None:
        self._kube = kube
        self._config = config

    async def look(self, job: RLJob) -> PodGroupView | None:
        """Return the state of the PodGroup of a job; None: it wants none."""
        kind = job.spec.scheduling.pod_group
        if kind is None:
            return None
        if kind not in self._config.pod_groups:
            return PodGroupView(mistake=_not_allowed(kind))
        api = APIS[kind]
        identity = Identity.of(job)
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


def _not_allowed(kind: PodGroupKind) -> str:
    return (
        f"the operator was installed without PodGroups of {kind.value}: add {kind.value} to the chart's podGroups, "
        "or remove scheduling.podGroup"
    )

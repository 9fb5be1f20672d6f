"""Find pods of a job that the watch of the informer does not show, because they have lost the label that it selects by.

The API server is asked only about pods that the watch showed before, and, once in each attempt, where the coordinator
is missing: the operator may have been down while somebody edited the labels.
"""

from typing import Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore.api.status import FINISHED_PHASES
from longshore_operator.informer import Key, PodInformer
from longshore_operator.kube import KubeClient
from longshore_operator.observed import PodView, is_of_job
from longshore_operator.stored_job import StoredJob

LOOK_EVERY_S: Final = 10.0
"""Interval at which a hidden pod is read again, since no event tells what becomes of it."""
_WITHOUT_LABEL: Final = f"!{names.LABEL_JOB}"
_LIKE_OURS: Final = "spec.restartPolicy=Never"
"""Labels that pods of all jobs have, and pods of services do not have."""


def has_hidden(pods: tuple[PodView, ...]) -> bool:
    """Return whether some of the pods have to be looked for again."""
    return any(pod.is_hidden for pod in pods)


class HiddenPods:
    """Reads hidden pods and tells the informer of them."""

    def __init__(self, kube: KubeClient, informer: PodInformer) -> None:
        self._kube = kube
        self._informer = informer

    async def look(self, key: Key) -> None:
        """Read the pods that the watch shows no more."""
        for pod in self._informer.pods(key):
            if pod.is_hidden:
                found = await self._kube.get("Pod", key[0], pod.name)
                if found is None or found["metadata"]["uid"] != pod.uid:
                    self._informer.mark_gone(key, pod)
                if found is not None:
                    self._informer.mark_found(found)

    async def search(self, key: Key, stored: StoredJob, searched_for: int) -> int:
        """Search the namespace for pods of a job that has none of its own coordinator, once in each attempt.

        Without it, an attempt could begin beside a pod of an earlier one that nobody sees.

        Args:
            searched_for: the attempt of the previous search of this job.

        Returns:
            The attempt of the newest search.
        """
        status, spec = stored.status.status, stored.spec
        if searched_for == status.attempt or status.phase in FINISHED_PHASES or "deletionTimestamp" in stored.metadata:
            return searched_for
        if not isinstance(spec, RLJobSpec) or spec.suspend or spec.runs_elsewhere:
            return searched_for
        if any(pod.component is Component.COORDINATOR for pod in self._informer.pods(key)):
            return searched_for
        pages = self._kube.client.pages(
            self._kube.path("Pod", key[0]), labels=_WITHOUT_LABEL, fields=_LIKE_OURS, metadata_only=True
        )
        async for page in pages:
            for item in page.get("items") or ():
                if is_of_job(item["metadata"], key[1]):
                    found = await self._kube.get("Pod", key[0], item["metadata"]["name"])
                    if found is not None:
                        self._informer.mark_found(found)
        return status.attempt

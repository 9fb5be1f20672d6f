"""Which jobs exist, by lists of the API server: what admission waits for, and deletions that the watch has missed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import structlog

from longshore.api import names
from longshore_kube.errors import KubeError
from longshore_operator.admission.desk import AdmissionDesk
from longshore_operator.informer import Key
from longshore_operator.kube import KubeClient

_RELIST_PAUSE_S = 5.0
_DELETIONS_EVERY_S = 600.0

log = structlog.get_logger(__name__)


class ExistingJobs:
    """Lists jobs of one namespace, or of all."""

    def __init__(self, kube: KubeClient, namespace: str | None) -> None:
        self._kube = kube
        self._namespace = namespace

    async def admit_once_known(self, desk: AdmissionDesk) -> None:
        """Have the desk expect all of them, if it admits jobs; never return."""
        while desk.is_open:
            try:
                await desk.expect(self._pages())
                break
            except KubeError as error:
                log.warning("jobs could not be listed; none is admitted until they are", error=repr(error))
                await asyncio.sleep(_RELIST_PAUSE_S)
        await asyncio.Event().wait()

    async def find_deletions(self, known: Callable[[], Collection[Key]], wake: Callable[[Key], None]) -> None:
        """Wake those of the known jobs that are not there any more, every few minutes; never return.

        A deletion between two streams of the watch is missed. Nothing else tells of it if the job had ended before.
        """
        while True:
            await asyncio.sleep(_DELETIONS_EVERY_S)
            missing = set(known())
            try:
                async for page in self._pages():
                    missing.difference_update(page)
            except KubeError as error:
                log.warning("jobs could not be listed; deletions are looked for later", error=repr(error))
                continue
            for key in sorted(missing):
                wake(key)

    async def _pages(self) -> AsyncIterator[list[Key]]:
        path = self._kube.path(names.KIND, self._namespace)
        async for page in self._kube.client.pages(path, metadata_only=True):
            found = (item["metadata"] for item in page.get("items") or ())
            yield [(metadata["namespace"], metadata["name"]) for metadata in found]

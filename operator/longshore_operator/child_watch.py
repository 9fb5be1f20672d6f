"""Notice when somebody deletes what a job owns besides pods, so that it comes back at once and not at the next resync.

One watch for each kind, of metadata only and with the label of jobs. Nothing is kept of the objects: what a job should
have is in its memory. Secrets and ConfigMaps are not watched, because the operator may not list what others keep in
them; each attempt makes them again, and so does a look at a pod that does not start.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from longshore.api import names
from longshore_kube.reflector import Listed, Reflector
from longshore_operator.identity import Key, controller
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient, Object
from longshore_operator.pod_view import is_of_job

_KINDS: Final = ("Service", "ServiceAccount", "Role", "RoleBinding")
_NETWORK_POLICY: Final = "NetworkPolicy"


class _Child(NamedTuple):
    """A child of a job."""

    key: Key
    name: str
    owner_uid: str


class ChildWatch:
    """Forgets that a child was applied when it is gone, and calls `wake(key)` for its job."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str | None,
        memories: Mapping[Key, JobMemory],
        wake: Callable[[Key], None],
        *,
        network_policies: bool,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._memories = memories
        self._wake = wake
        self._kinds = (*_KINDS, _NETWORK_POLICY) if network_policies else _KINDS

    async def run(self) -> None:
        """Follow the children of all jobs; never return."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: str) -> None:
        path = self._kube.path(kind, self._namespace)
        reflector = Reflector(self._kube.client, path, _child, labels=names.LABEL_JOB, metadata_only=True)
        async for news in reflector.changes():
            if isinstance(news, Listed):
                self.compare(kind, news.items)
            elif news.kind == "DELETED":
                self.forget(kind, news.item)

    def compare(self, kind: str, listed: list[_Child]) -> None:
        """Forget children of a kind that a list of all lacks."""
        present = {(child.key, child.name) for child in listed}
        for key, memory in tuple(self._memories.items()):
            for applied_kind, name in tuple(memory.applied):
                if applied_kind == kind and (key, name) not in present:
                    self.forget(kind, _Child(key, name, memory.uid))

    def forget(self, kind: str, child: _Child) -> None:
        """Have a child that is gone, or has lost its label, applied again."""
        memory = self._memories.get(child.key)
        if memory is not None and memory.uid == child.owner_uid and memory.lose(kind, child.name):
            self._wake(child.key)


def _child(found: Object) -> _Child | None:
    metadata = found["metadata"]
    owner = controller(metadata)
    name = str(owner.get("name", ""))
    return _Child((metadata["namespace"], name), metadata["name"], owner["uid"]) if is_of_job(metadata, name) else None

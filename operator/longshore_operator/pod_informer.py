"""The pods of all jobs, as slim views: listed in pages, followed by a resumable watch, never stored whole."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from longshore.api import names
from longshore_kube.reflector import Listed, Reflector
from longshore_kube.resources import PODS
from longshore_operator.identity import Key
from longshore_operator.kube import KubeClient
from longshore_operator.pod_view import PodView, comes_up, is_of_job, pod_view

SELECTOR = names.LABEL_JOB
"""Label by which the watch selects the pods of jobs.

It is one that only this operator uses. A pod that loses it is read by its name (`PodInformer.read_hidden`).
"""
LOOK_EVERY_S: Final = 10.0
"""Interval at which a hidden pod is read again, since no event tells what becomes of it."""
_WITHOUT_LABEL: Final = f"!{names.LABEL_JOB}"
_LIKE_OURS: Final = "spec.restartPolicy=Never"
"""Field that pods of all jobs have, and pods of services do not have."""
_REMEMBERED = 1024


class _Created(NamedTuple):
    """A pod as the API server returned it after its creation."""

    view: PodView
    version: int


class _Unowned(NamedTuple):
    """A pod that no RLJob controls, for example because its job was deleted with `--cascade=orphan`."""

    uid: str


class PodInformer:
    """Keeps the `PodView`s of all jobs.

    It calls `on_change(key)` when a job's pods change, `on_progress(key)` instead while they come up one after the
    other, and `on_listed(key)` when they were listed, and may have changed or not.

    To a watch with a selector, a pod that loses its label looks deleted. So a pod that the watch shows no more, and
    that nobody was deleting, is kept as hidden until somebody has looked for it.
    """

    def __init__(
        self,
        kube: KubeClient,
        namespace: str | None,
        on_change: Callable[[Key], None],
        on_progress: Callable[[Key], None],
        on_listed: Callable[[Key], None],
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._reflector: Reflector[PodView | _Unowned] = Reflector(
            kube.client, PODS.path(namespace), _view, labels=SELECTOR
        )
        self._on_change = on_change
        self._on_progress = on_progress
        self._on_listed = on_listed
        self._on_synced = on_synced
        self._sorted: dict[Key, tuple[PodView, ...]] = {}
        """Results of `pods`, until they change."""
        self._pods: dict[Key, dict[str, PodView]] = {}
        self._created: dict[tuple[Key, str], _Created] = {}
        """Pods that were created here and that the watch has not reported yet."""
        self._jobs: dict[str, Key] = {}
        """Jobs of the pods, by the uid of the pod: its owner may change."""
        self._deleted: deque[str] = deque(maxlen=_REMEMBERED)
        """uids of pods that were deleted recently."""

    @property
    def last_contact_s(self) -> float:
        """Monotonic time of the last answer of the API server."""
        return self._reflector.last_contact_s

    def pods(self, key: Key) -> tuple[PodView, ...]:
        """Return the pods of a job, in a stable order."""
        answer = self._sorted.get(key)
        if answer is None:
            found = self._pods.get(key)
            if not found:
                return ()
            answer = self._sorted[key] = tuple(sorted(found.values(), key=lambda pod: (pod.component, pod.index)))
        return answer

    def mark_created(self, key: Key, pod: dict[str, Any]) -> None:
        """Add a created pod to the view before the watch reports it, and ignore older news of that name."""
        view = pod_view(pod)
        known = self._pods.get(key, {}).get(view.name)
        if view.uid in self._deleted or (known is not None and known.uid == view.uid):
            return
        self._pods.setdefault(key, {})[view.name] = view
        self._jobs[view.uid] = key
        self._sorted.pop(key, None)
        self._created[key, view.name] = _Created(view, int(pod["metadata"]["resourceVersion"]))

    def mark_deleting(self, key: Key, name: str, uid: str) -> None:
        """Mark a pod as being deleted in the view before the watch reports it."""
        pod = self._pods.get(key, {}).get(name)
        if pod is not None and pod.uid == uid:
            self._pods[key][name] = replace(pod, deleting=True)
            self._sorted.pop(key, None)

    def mark_found(self, pod: dict[str, Any]) -> None:
        """Take note of a pod that was read by its name; the watch shows it again as soon as it has its label."""
        view = _view(pod)
        if view.uid in self._deleted:
            return
        if isinstance(view, PodView):
            view = replace(view, is_hidden=names.LABEL_JOB not in (pod["metadata"].get("labels") or {}))
        self.take("MODIFIED", view)

    def has_hidden(self, key: Key) -> bool:
        """Return whether some pods of a job have to be read again, because the watch does not show them."""
        return any(pod.is_hidden for pod in self.pods(key))

    async def read_hidden(self, key: Key) -> None:
        """Read the pods of a job that the watch shows no more."""
        for pod in self.pods(key):
            if pod.is_hidden:
                found = await self._kube.get("Pod", key[0], pod.name)
                if found is None or found["metadata"]["uid"] != pod.uid:
                    self._forget(key, pod)
                if found is not None:
                    self.mark_found(found)

    async def find_unlabelled(self, key: Key) -> None:
        """Search the namespace for pods of a job that have lost the label that the watch selects by.

        The operator may have been down while somebody edited the labels, so the watch has never shown these pods.
        """
        path = self._kube.path("Pod", key[0])
        pages = self._kube.client.pages(path, labels=_WITHOUT_LABEL, fields=_LIKE_OURS, metadata_only=True)
        async for page in pages:
            for item in page.get("items") or ():
                if is_of_job(item["metadata"], key[1]):
                    found = await self._kube.get("Pod", key[0], item["metadata"]["name"])
                    if found is not None:
                        self.mark_found(found)

    def _forget(self, key: Key, pod: PodView) -> None:
        """Forget a pod that was hidden and does not exist any more."""
        self._deleted.append(pod.uid)
        self._jobs.pop(pod.uid, None)
        siblings = self._pods.get(key, {})
        if pod.name in siblings and siblings[pod.name].uid == pod.uid:
            self._remove(key, pod.name)

    async def run(self) -> None:
        """List and watch for ever."""
        async for news in self._reflector.changes():
            if isinstance(news, Listed):
                self.take_list(news)
                self._on_synced()
            else:
                self.take(news.kind, news.item)

    def take_list(self, given: Listed[PodView | _Unowned]) -> None:
        """Apply a list of all pods."""
        # A list may be older than a pod whose creation was answered while it was on its way.
        self._created = {place: one for place, one in self._created.items() if one.version > given.version}
        views: dict[Key, dict[str, PodView]] = {}
        found = [view for view in given.items if isinstance(view, PodView)]
        for view in (*found, *(one.view for one in self._created.values())):
            views.setdefault((view.namespace, view.job), {})[view.name] = view
        listed = {view.uid for view in given.items}
        for key, of_job in self._pods.items():
            for pod in of_job.values():
                if pod.uid not in listed and not pod.deleting:
                    views.setdefault(key, {}).setdefault(pod.name, replace(pod, is_hidden=True))
        self._jobs = {view.uid: key for key, of_job in views.items() for view in of_job.values()}
        listed_or_gone = self._pods.keys() | views.keys()
        self._pods = views
        self._sorted.clear()
        for key in listed_or_gone:
            self._on_listed(key)

    def take(self, kind: str, view: PodView | _Unowned) -> None:
        """Apply one change of the watch."""
        if isinstance(view, _Unowned):
            self._leave_job(view.uid)
            return
        key = (view.namespace, view.job)
        if self._jobs.get(view.uid, key) != key:
            self._leave_job(view.uid)
        created = self._created.get((key, view.name))
        if created is not None and created.view.uid != view.uid:
            return  # The change is about an earlier pod of this name.
        self._created.pop((key, view.name), None)
        self._sorted.pop(key, None)
        siblings = self._pods.setdefault(key, {})
        known = siblings.get(view.name)
        if kind == "DELETED" and known is not None and known.uid == view.uid and not (known.deleting or view.deleting):
            kind, view = "HIDDEN", replace(known, is_hidden=True)
        if kind == "DELETED":
            self._jobs.pop(view.uid, None)
            self._deleted.append(view.uid)
            if known is not None and known.uid == view.uid:
                del siblings[view.name]
            if not siblings:
                del self._pods[key]
        else:
            # An older event that arrives later must not undo an accepted delete.
            leaving = known is not None and known.uid == view.uid and known.deleting
            view = replace(view, deleting=view.deleting or leaving)
            siblings[view.name] = view
            self._jobs[view.uid] = key
        if kind == "DELETED" or known != view:
            is_progress = kind != "DELETED" and known is not None and comes_up(known, view)
            is_complete = all(pod.ready or pod.deleting or pod.terminal for pod in siblings.values())
            (self._on_progress if is_progress and not is_complete else self._on_change)(key)

    def _leave_job(self, uid: str) -> None:
        """Forget a pod that is no longer one of the job that it was of."""
        key = self._jobs.pop(uid, None)
        siblings = self._pods.get(key, {}) if key is not None else {}
        name = next((pod.name for pod in siblings.values() if pod.uid == uid), None)
        if key is None or name is None:
            return
        self._remove(key, name)
        self._on_change(key)

    def _remove(self, key: Key, name: str) -> None:
        del self._pods[key][name]
        if not self._pods[key]:
            del self._pods[key]
        self._sorted.pop(key, None)


def _view(pod: dict[str, Any]) -> PodView | _Unowned:
    try:
        return pod_view(pod)
    except ValueError:
        return _Unowned(pod["metadata"]["uid"])

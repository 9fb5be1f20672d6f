"""What the operator knows of its pods before the watch tells."""

from typing import Any

from longshore_kube.access import Access
from longshore_kube.reflector import Listed
from longshore_operator.informer import PodInformer
from longshore_operator.kube import KubeClient
from longshore_operator.observed import pod_view
from longshore_operator.plan import CreatePod
from tests.unit.operator.model import Cluster

KEY = ("team", "demo")


def coordinator(uid: str, version: str = "1") -> dict[str, Any]:
    """The coordinator pod as the API server has it."""
    created = next(action for action in Cluster().plan().actions if isinstance(action, CreatePod))
    metadata = created.manifest["metadata"] | {"uid": uid, "resourceVersion": version}
    return created.manifest | {"metadata": metadata, "status": {"phase": "Pending"}}


def informer() -> PodInformer:
    return PodInformer(KubeClient(Access("http://nowhere.invalid")), None, lambda key: None, lambda key: None)


def take(pods: PodInformer, kind: str, pod: dict[str, Any]) -> None:
    pods.take(kind, pod_view(pod))


def uids(pods: PodInformer) -> list[str]:
    return [pod.uid for pod in pods.pods(KEY)]


def test_a_pod_is_known_as_soon_as_it_is_created() -> None:
    pods = informer()
    pods.mark_created(KEY, coordinator("new"))
    assert uids(pods) == ["new"]


def test_late_news_of_an_earlier_pod_of_that_name_changes_nothing() -> None:
    pods = informer()
    pods.mark_created(KEY, coordinator("new"))
    take(pods, "MODIFIED", coordinator("old", "7"))
    take(pods, "DELETED", coordinator("old", "8"))
    assert uids(pods) == ["new"]
    take(pods, "ADDED", coordinator("new", "9"))
    take(pods, "DELETED", coordinator("new", "10"))
    assert uids(pods) == []


def relist(pods: PodInformer, version: int, *found: dict[str, Any]) -> None:
    pods.take_list(Listed([pod_view(pod) for pod in found], version))


def test_a_list_that_is_older_than_a_pod_does_not_hide_it() -> None:
    pods = informer()
    pods.mark_created(KEY, coordinator("new", "7"))
    relist(pods, 6)
    assert uids(pods) == ["new"], "its GPUs are taken"
    take(pods, "MODIFIED", coordinator("old", "5"))
    assert uids(pods) == ["new"]
    relist(pods, 7)
    assert uids(pods) == [], "the list knows that it has gone"


def test_an_older_list_with_an_earlier_pod_of_that_name_does_not_replace_the_new_one() -> None:
    pods = informer()
    pods.mark_created(KEY, coordinator("new", "7"))
    relist(pods, 6, coordinator("old", "3"))
    assert uids(pods) == ["new"]


def test_a_pod_that_was_gone_before_its_creation_was_answered_does_not_come_back() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("quick"))
    take(pods, "DELETED", coordinator("quick", "2"))
    pods.mark_created(KEY, coordinator("quick"))
    assert uids(pods) == []

"""What the operator knows of its pods before the watch reports it, and which news may wait for others."""

from typing import Any

from longshore.api import names
from longshore_kube.access import Access
from longshore_kube.reflector import Listed
from longshore_operator.informer import PodInformer, _view
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
    return PodInformer(
        KubeClient(Access("http://nowhere.invalid")), None, lambda key: None, lambda key: None, lambda key: None
    )


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


def relabelled(pod: dict[str, Any], **labels: str) -> dict[str, Any]:
    names_of = {"job": names.LABEL_JOB, "attempt": names.LABEL_ATTEMPT}
    more = {names_of[name]: value for name, value in labels.items()}
    return pod | {"metadata": pod["metadata"] | {"labels": pod["metadata"]["labels"] | more}}


def test_a_pod_that_somebody_gives_to_another_job_leaves_its_own() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("one"))
    given_away = relabelled(coordinator("one", "2"), job="other")
    take(pods, "MODIFIED", given_away)
    assert uids(pods) == []
    assert [pod.uid for pod in pods.pods(("team", "other"))] == ["one"]
    take(pods, "DELETED", given_away)
    assert pods.pods(("team", "other")) == ()
    take(pods, "ADDED", coordinator("two", "3"))
    assert uids(pods) == ["two"]


def test_a_pod_whose_labels_are_damaged_is_of_no_job_any_more() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("one"))
    damaged = _view(relabelled(coordinator("one", "2"), attempt="first"))
    for kind in ("MODIFIED", "DELETED"):
        pods.take(kind, damaged)
        assert uids(pods) == []
    take(pods, "ADDED", coordinator("two", "3"))
    pods.take_list(Listed([pod_view(coordinator("two", "3")), damaged], 4))
    assert uids(pods) == ["two"]


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


class Heard:
    """Which news are passed on, as `change` or `progress`."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.pods = PodInformer(
            KubeClient(Access("http://nowhere.invalid")),
            None,
            on_change=lambda key: self.news.append("change"),
            on_progress=lambda key: self.news.append("progress"),
            on_listed=lambda key: None,
        )
        self.take("worker-0")
        self.take("worker-1")
        self.news.clear()

    def take(self, name: str, node: str = "", **status: Any) -> list[str]:
        """A pod becomes so; returns what was passed on."""
        pod, self.news = coordinator(name), []
        component = name.split("-")[0]
        labels = pod["metadata"]["labels"] | {names.LABEL_COMPONENT: component, names.LABEL_INDEX: name[-1]}
        metadata = pod["metadata"] | {"name": name, "labels": labels}
        self.pods.take("MODIFIED", pod_view({"metadata": metadata, "spec": {"nodeName": node}, "status": status}))
        return self.news


READY = [{"type": "Ready", "status": "True"}]
NO_NODE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]


def waits(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "longshore", "state": {"waiting": {"reason": reason}}}]}


def test_pods_that_come_up_one_after_the_other_are_progress_until_all_are_ready() -> None:
    heard = Heard()
    assert heard.take("worker-0", "node-0") == ["progress"]
    assert heard.take("worker-0", "node-0", **waits("ContainerCreating")) == ["progress"]
    assert heard.take("worker-0", "node-0", phase="Running", podIP="10.0.0.2") == ["progress"]
    assert heard.take("worker-0", "node-0", phase="Running", podIP="10.0.0.2", conditions=READY) == ["progress"]
    assert heard.take("worker-1", "node-0", phase="Running", podIP="10.0.0.3", conditions=READY) == ["change"]


def test_an_address_of_the_coordinator_is_a_change_since_other_pods_need_it() -> None:
    heard = Heard()
    heard.take("coordinator-0", "node-0")
    assert heard.take("coordinator-0", "node-0", phase="Running", podIP="10.0.0.1") == ["change"]


def test_whatever_goes_wrong_with_a_pod_is_a_change() -> None:
    heard = Heard()
    assert heard.take("worker-0", conditions=NO_NODE) == ["change"]
    assert heard.take("worker-0", "node-0", **waits("ImagePullBackOff")) == ["change"]
    heard.take("worker-0", "node-0", phase="Running", conditions=READY)
    assert heard.take("worker-0", "node-0", phase="Running") == ["change"], "it was ready"
    assert heard.take("worker-0", "node-0", phase="Failed") == ["change"]

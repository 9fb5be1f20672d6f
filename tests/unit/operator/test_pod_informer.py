"""What the operator knows of its pods before the watch reports it, and which news may wait for others."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api import names
from longshore_kube.access import Access
from longshore_kube.reflector import Listed
from longshore_operator.kube import KubeClient
from longshore_operator.plan import CreatePod
from longshore_operator.pod_informer import PodInformer, _view
from longshore_operator.pod_view import pod_view
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
    """What the watch says; a pod that goes was asked to go."""
    view = pod_view(pod)
    pods.take(kind, replace(view, deleting=True) if kind == "DELETED" else view)


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


LABELS = {"job": names.LABEL_JOB, "attempt": names.LABEL_ATTEMPT, "index": names.LABEL_INDEX}


def relabelled(pod: dict[str, Any], **labels: str) -> dict[str, Any]:
    more = {LABELS[name]: value for name, value in labels.items()}
    return pod | {"metadata": pod["metadata"] | {"labels": pod["metadata"]["labels"] | more}}


def unlabelled(pod: dict[str, Any]) -> dict[str, Any]:
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != names.LABEL_JOB}
    return pod | {"metadata": pod["metadata"] | {"labels": labels}}


@pytest.mark.parametrize("label", [{"job": "other"}, {"attempt": "first"}, {"attempt": "7"}, {"index": "70000"}])
def test_a_pod_stays_with_its_job_and_attempt_whatever_its_labels_say(label: dict[str, str]) -> None:
    heard = Heard()
    take(heard.pods, "ADDED", coordinator("one"))
    heard.news.clear()
    take(heard.pods, "MODIFIED", relabelled(coordinator("one", "2"), **label))
    (pod,) = (pod for pod in heard.pods.pods(KEY) if pod.uid == "one")
    assert (heard.news, pod.attempt, pod.index, pod.job) == (["change"], 1, 0, "demo")
    assert dict(pod.wrong_labels).keys() == {LABELS[name] for name in label}


def test_a_pod_that_was_orphaned_is_of_no_job_any_more() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("one"))
    orphan = coordinator("one", "2")
    orphan["metadata"] = {name: value for name, value in orphan["metadata"].items() if name != "ownerReferences"}
    pods.take("MODIFIED", _view(orphan))
    assert uids(pods) == []
    pods.take_list(Listed([_view(orphan)], 4))
    assert uids(pods) == []


def test_a_pod_that_leaves_the_watch_undeleted_is_kept_until_it_is_looked_for() -> None:
    heard = Heard()
    take(heard.pods, "ADDED", coordinator("one"))
    heard.news.clear()
    heard.pods.take("DELETED", pod_view(coordinator("one", "2")))
    assert [(pod.uid, pod.is_hidden) for pod in heard.pods.pods(KEY) if pod.uid == "one"] == [("one", True)]
    assert heard.news == ["change"]


def test_a_hidden_pod_that_does_not_exist_is_forgotten() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("one"))
    pods.take("DELETED", pod_view(coordinator("one", "2")))
    pods._forget(KEY, pods.pods(KEY)[0])
    assert uids(pods) == []
    pods.mark_found(coordinator("one"))
    assert uids(pods) == [], "an answer that was on its way does not bring it back"


def test_a_pod_that_was_found_is_hidden_for_as_long_as_it_lacks_its_label() -> None:
    pods = informer()
    pods.mark_found(unlabelled(coordinator("one")))
    assert [pod.is_hidden for pod in pods.pods(KEY)] == [True]
    take(pods, "ADDED", coordinator("one", "2"))
    assert [pod.is_hidden for pod in pods.pods(KEY)] == [False]


def test_a_pod_that_a_new_list_lacks_is_hidden_unless_it_was_being_deleted() -> None:
    pods = informer()
    take(pods, "ADDED", coordinator("one"))
    relist(pods, 7)
    assert [pod.is_hidden for pod in pods.pods(KEY)] == [True]
    pods.mark_deleting(KEY, "demo-coordinator", "one")
    relist(pods, 8)
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
    assert [pod.is_hidden for pod in pods.pods(KEY)] == [True], "the list knows that it has gone, or lost its label"


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
        metadata = pod["metadata"] | {"name": f"demo-{name}"}
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
    heard.take("coordinator", "node-0")
    assert heard.take("coordinator", "node-0", phase="Running", podIP="10.0.0.1") == ["change"]


def test_whatever_goes_wrong_with_a_pod_is_a_change() -> None:
    heard = Heard()
    assert heard.take("worker-0", conditions=NO_NODE) == ["change"]
    assert heard.take("worker-0", "node-0", **waits("ImagePullBackOff")) == ["change"]
    heard.take("worker-0", "node-0", phase="Running", conditions=READY)
    assert heard.take("worker-0", "node-0", phase="Running") == ["change"], "it was ready"
    assert heard.take("worker-0", "node-0", phase="Failed") == ["change"]

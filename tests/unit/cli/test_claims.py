"""A claim that stays unbound is explained in one sentence."""

from typing import Any

import pytest

from longshore_cli.watch import claims
from longshore_cli.watch.claims import why_unbound
from longshore_kube.resources import Json


def claim(phase: str = "Pending", **spec: Any) -> Json:
    return {
        "metadata": {"name": "shared", "uid": "7", "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteMany"], **spec},
        "status": {"phase": phase},
    }


def storage_class(name: str, *, mode: str = "Immediate", default: bool = False) -> Json:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    metadata = {"name": name, "annotations": annotations}
    return {"metadata": metadata, "provisioner": "disks.example", "volumeBindingMode": mode}


def failed(message: str, time: str) -> Json:
    return {"reason": "ProvisioningFailed", "message": message, "lastTimestamp": time}


FAST = storage_class("fast")
LATE = storage_class("late", mode="WaitForFirstConsumer")
QUOTA, NO_RWX = failed("quota", "2026-01-01T00:00:01Z"), failed("no\n RWX here", "2026-01-01T00:00:02Z")


@pytest.mark.parametrize(
    ("pending", "classes", "events", "found"),
    [
        pytest.param(
            claim(), [FAST, LATE], [], "no default one; set storageClassName of the claim to one of fast, late.",
            id="no default",
        ),
        pytest.param(claim(), [], [], "to a StorageClass, of which the cluster has none.", id="no class"),
        pytest.param(
            claim(storageClassName="fsat"), [FAST], [QUOTA], "no StorageClass 'fsat' (there are fast); correct",
            id="misspelt",
        ),
        pytest.param(
            claim(storageClassName="late"), [LATE], [], "waits until a pod that mounts it has a node",
            id="first consumer",
        ),
        pytest.param(
            claim(storageClassName="fast"), [FAST], [], "disks.example has not made a volume with ReadWriteMany yet",
            id="provisioner",
        ),
        pytest.param(
            claim(storageClassName="fast"), [FAST], [NO_RWX, QUOTA], "cannot be provisioned: no RWX here", id="failed"
        ),
        pytest.param(claim(), None, [], "`kubectl describe pvc shared` shows what it waits for", id="may not look"),
        pytest.param(
            claim(storageClassName=""), [storage_class("fast", default=True)], [], "no volume fits it", id="static"
        ),
    ],
)  # fmt: skip
def test_the_sentence_names_what_the_claim_waits_for(
    pending: Json, classes: list[Json] | None, events: list[Json], found: str
) -> None:
    sentence = why_unbound(pending, classes, events)
    assert sentence.startswith("The claim shared is not bound: ")
    assert found in sentence


def test_the_claim_of_a_job_is_the_one_that_it_names_or_gets() -> None:
    job: Json = {"metadata": {"name": "demo"}, "spec": {"storage": {"claimName": "shared"}}}
    assert claims.claim_name(job) == "shared"
    job["spec"]["storage"] = {"create": {"size": "1Gi"}}
    assert claims.claim_name(job).startswith("demo")

"""A job that ends gives its turn back in the pass that ends it: nothing may wake it afterwards."""

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from longshore.api import names
from longshore_kube.reflector import Listed
from longshore_operator.controller import Controller
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.observed import PodView
from longshore_operator.plan import OperatorConfig
from tests.unit.operator.model import SPEC as BASE
from tests.unit.operator.model import START, running_cluster
from tests.unit.operator.sharing.test_concern import SPEC
from tests.unit.operator.sharing.test_desk import Api, Found

KEY = ("team", "b")


class OneJob(Api):
    """An API server with a job besides the group."""

    def __init__(self, status: Found) -> None:
        super().__init__()
        self.version = 1
        metadata = {"name": "b", "namespace": "team", "uid": "b-uid", "generation": 1, "resourceVersion": "1"}
        self.job = {"metadata": metadata, "spec": BASE | SPEC | {"backoffLimit": 0}, "status": status}

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Found | None:
        if kind != names.KIND:
            return await super().get(kind, namespace, name, metadata_only=metadata_only)
        return copy.deepcopy(self.job)

    async def apply(self, manifest: Found, subresource: str = "") -> Found:
        if manifest["kind"] != names.KIND:
            return manifest | {"metadata": manifest["metadata"] | {"uid": "child", "resourceVersion": "1"}}
        self.write(manifest["status"] | {"runtime": self.job["status"].get("runtime")})
        return copy.deepcopy(self.job)

    async def create(self, manifest: Found, kind: str = "") -> Found | None:
        return manifest if (kind or manifest["kind"]) == "Event" else await super().create(manifest, kind)

    def write(self, status: Found) -> None:
        self.version += 1
        self.job["status"] = copy.deepcopy(status)
        self.job["metadata"]["resourceVersion"] = str(self.version)

    def reports(self, asked: int) -> None:
        sharing = {"asked": asked, "returned": 0}
        self.write(self.job["status"] | {"runtime": {"attempt": 1, "sharing": sharing}})

    def grants(self) -> list[Any]:
        """Of the members, as the object of the group has them."""
        assert self.stored is not None
        return [one["grant"] for one in json.loads(self.stored["data"]["group.json"])["standings"]]


def of_b(pods: Iterable[PodView]) -> list[PodView]:
    return [replace(pod, name=pod.name.replace("demo", "b"), job="b", owner_uid="b-uid") for pod in pods]


async def test_a_job_that_fails_when_its_pods_have_ended_already_leaves_its_group() -> None:
    running = running_cluster(**SPEC)
    api = OneJob(running.status.model_dump(mode="json", by_alias=True, exclude_none=True))
    config = OperatorConfig(runtime_image="runtime:1")
    controller = Controller(api, config, OperatorMetrics(), "team", clock=lambda: START)
    pods = of_b(running.pods.values())
    controller.informer.take_list(Listed(pods, 1))
    api.reports(asked=1)
    await controller._pass(KEY)
    assert [grant["granted"] for grant in api.grants()] == [1]
    controller.informer.take_list(Listed([replace(pod, phase="Failed", ready=False, exit_code=1) for pod in pods], 2))
    await controller._pass(KEY)
    assert api.job["status"]["phase"] == "Failed"
    assert api.grants() == []
    await controller.close()

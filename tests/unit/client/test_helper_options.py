"""As whom the pod of a copy runs, and with what it pulls its image."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.transfer.pod import IDS
from longshore_kube.errors import ApiError
from longshore_kube.resources import Json

USER = dict.fromkeys(IDS, 1000)


@dataclass
class Cluster:
    """As much of `Kube` as a claim is looked up with."""

    command: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    may_see_operator: bool = True
    namespace: str = "team"

    def find(self, path: str) -> Json:
        return {}

    def items(self, path: str, **_: Any) -> list[Json]:
        if not self.may_see_operator:
            raise ApiError(403, "Forbidden", "deployments are forbidden")
        spec = {"containers": [{"command": self.command}]}
        return [{"spec": {"template": {"spec": spec}}}] if self.command else []

    def request(self, method: str, path: str) -> Json:
        assert (method, path) == ("GET", "/apis"), "every API server answers this"
        return {"groups": [{"name": name} for name in self.groups]}


def helper_of(cluster: Cluster, image: str | None = "own:1") -> Any:
    return jobs.claim_named(cast(Kube, cluster), "data", image).helper


@pytest.mark.parametrize(("option", "ids"), [("1000", USER), ("7", dict.fromkeys(IDS, 7)), ("assigned", {})])
def test_it_runs_like_the_pods_of_the_installed_operator(option: str, ids: dict[str, int]) -> None:
    secrets = ["--image-pull-secret=a", "--image-pull-secret=b"]
    found = helper_of(Cluster(["--runtime-image=longshore:2", f"--pod-user={option}", *secrets]), None)
    assert (found.image, found.ids, found.pull_secrets) == ("longshore:2", ids, ("a", "b"))


@pytest.mark.parametrize("may_see_operator", [False, True])
def test_where_no_operator_is_seen_openshift_assigns_users_and_others_do_not(may_see_operator: bool) -> None:
    for groups, ids in ((["apps"], USER), (["apps", "security.openshift.io"], {})):
        assert helper_of(Cluster(groups=groups, may_see_operator=may_see_operator)).ids == ids

"""Environments with pods of their own, on a cluster in memory: what such a pod has, and what a hostile one can cost."""

import base64
from typing import Any, Final

import pytest

from longshore.api import contract
from longshore.api.environment import Environment
from longshore.api.status import Phase
from longshore_operator.children import children
from longshore_operator.pods import coordinator_pod, environment_pod
from tests.unit.operator.model import CONFIG, make_job, running_cluster
from tests.unit.operator.test_pods import environment, mount_paths, secrets

Json = dict[str, Any]

SHELL: Final = {"name": "shell", "kind": "Python", "importPath": "shells:Shell", "domains": ["code"]}
GAME: Final = {"name": "game", "kind": "Python", "importPath": "games:Game"}
IP: Final = "10.0.0.9"
FULL_DISK: Final = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."


def playing(**pods: Any) -> Json:
    """Two pods for one environment and one for another; `pods`: what else the first says of its pods."""
    data = {"path": "a", "chat": {}, "domainField": "domain"}
    functions = [{"name": "won", "kind": "Environment"}]
    environments = [SHELL | {"pods": {"count": 2, **pods}}, GAME]
    return {"data": data, "environments": environments, "reward": {"pods": 1, "functions": functions}}


def test_every_environment_has_pods_which_are_counted_and_found_by_the_coordinator() -> None:
    running = running_cluster(**playing())
    names = running.names(lambda pod: "environment" in pod.name)
    assert names == ["demo-environment-0", "demo-environment-1", "demo-environment-2"]
    labels = [running.manifests["Pod", name]["metadata"]["labels"]["longshore.dev/environment"] for name in names]
    assert labels == ["shell", "shell", "game"]
    counts = running.status.environments
    assert (counts.desired, counts.ready, counts.addresses) == (3, 3, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    assert running.plan().actions == ()
    running.exit("demo-environment-1", 1)
    running.step()
    assert running.status.environments.addresses == ["10.0.0.1", "", "10.0.0.3"]
    assert running.condition("Ready")[0] == "False"


def test_the_pod_of_an_environment_has_nothing_of_the_job_but_that_environment() -> None:
    job = make_job(**playing(), modules={"configMap": "code", "files": ["shells.py"]})
    pod = environment_pod(job, CONFIG, 3, 1, IP)
    assert secrets(pod) == {("demo.shell-environment-token-job-uid", contract.ENVIRONMENT_TOKEN_KEY)}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes.keys() == {"scratch", "shm", "environment", "environment-token", "modules"}
    (item,) = volumes["environment"]["configMap"]["items"]
    (config_map,) = [one.manifest["data"] for one in children(job, CONFIG) if one.manifest["kind"] == "ConfigMap"]
    assert Environment.model_validate_json(config_map[item["key"]]) == Environment.model_validate(SHELL)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod["spec"]
    env = environment(pod)
    assert not {contract.ENV_CONFIG, contract.ENV_STORAGE, contract.ENV_REWARD_TOKEN} & env.keys()
    token = f"{mount_paths(pod)['environment-token']}/{contract.ENVIRONMENT_TOKEN_KEY}"
    assert env[contract.ENV_ENVIRONMENT_TOKEN] == token
    assert env[contract.ENV_ENVIRONMENT] == f"{mount_paths(pod)['environment']}/{item['path']}"


def test_each_environment_has_a_token_of_its_own_and_the_coordinator_has_all() -> None:
    cluster = running_cluster(**playing())
    made = {name: one["data"] for (kind, name), one in cluster.manifests.items() if kind == "Secret"}
    tokens = [made[f"demo.{name}-environment-token-job-uid"]["token"] for name in ("shell", "game")]
    assert len({base64.b64decode(token) for token in tokens}) == 2
    assert not set(tokens) & {value for name, data in made.items() if "demo." not in name for value in data.values()}
    coordinator = coordinator_pod(cluster.job, CONFIG, 1)
    assert {(f"demo.{name}-environment-token-job-uid", "token") for name in ("shell", "game")} < secrets(coordinator)
    assert environment(coordinator)[contract.ENV_ENVIRONMENT_TOKENS] == mount_paths(coordinator)["environment-tokens"]


def test_an_environment_that_a_suspended_job_is_given_gets_a_token() -> None:
    cluster = running_cluster(**playing())
    added = [SHELL, GAME | {"domains": ["games"]}, GAME | {"name": "other"}]
    for spec in ({"suspend": True}, {"suspend": False, "environments": added}):
        cluster.spec, cluster.generation = cluster.spec | spec, cluster.generation + 1
        cluster.reconcile_until_stable()
    assert cluster.status.phase is Phase.RUNNING
    assert ("Secret", "demo.other-environment-token-job-uid") in cluster.manifests


def test_an_environment_whose_grants_a_suspended_job_takes_back_reaches_nothing() -> None:
    egress = [{"cidr": "203.0.113.0/24", "ports": [443]}]
    cluster, reached = running_cluster(**playing(egress=egress)), []
    for spec in ({}, {"suspend": True}, {"suspend": False, **playing()}):
        cluster.spec, cluster.generation = cluster.spec | spec, cluster.generation + 1
        cluster.reconcile_until_stable()
        reached.append(cluster.manifests["NetworkPolicy", "demo.shell-environment"]["spec"]["egress"])
    granted, _, revoked = reached
    assert [{"ipBlock": {"cidr": "203.0.113.0/24"}}] in [rule["to"] for rule in granted]
    assert (cluster.status.phase, revoked) == (Phase.RUNNING, [])


def test_memory_of_an_environment_is_requested_and_limited_by_what_episodes_take() -> None:
    (container,) = environment_pod(make_job(**playing()), CONFIG, 1, 0, IP)["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "3072Mi"}, "limits": {"memory": "3072Mi"}}
    assert container["command"] == ["python", "-m", "longshore_runtime", "environment"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": contract.ENVIRONMENT_PORT}


def test_the_pods_of_an_environment_are_as_it_says_and_those_of_others_are_not() -> None:
    template = {"spec": {"containers": [{"name": "longshore", "env": [{"name": "MODE", "value": "safe"}]}]}}
    requests = {"memory": "1Gi", "ephemeral-storage": "2Gi"}
    job = make_job(**playing(image="shell:2", resources=requests, runtimeClassName="gvisor", template=template))
    shell, game = (environment_pod(job, CONFIG, 1, index, IP) for index in (0, 2))
    (container,) = shell["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]) == ("shell:2", requests)
    assert (shell["spec"]["runtimeClassName"], environment(shell)["MODE"]) == ("gvisor", "safe")
    assert game["spec"]["containers"][0]["image"] == CONFIG.runtime_image
    assert "runtimeClassName" not in game["spec"] and "MODE" not in environment(game)


def test_pods_without_the_volume_of_the_job_do_not_have_to_be_on_its_node() -> None:
    volume = {"create": {"size": "1Gi", "accessMode": "ReadWriteOnce"}}
    job = make_job(**playing(), storage=volume, workers={"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    pod = environment_pod(job, CONFIG, 1, 0, IP)
    assert "affinity" not in pod["spec"]
    assert "gpu" not in [one["key"] for one in pod["spec"]["tolerations"]]


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ({"exit_code": 137, "is_out_of_memory": True}, "raise environments[].pods.resources.memory"),
        ({"reason": "Evicted", "termination_message": FULL_DISK}, FULL_DISK),
    ],
    ids=["memory", "disk"],
)
def test_an_environment_that_takes_more_than_its_pod_has_is_no_failure_of_the_job(end: Json, shown: str) -> None:
    running = running_cluster(**playing(), backoffLimit=1)
    for _ in range(3):
        running.change("demo-environment-0", phase="Failed", ready=False, **end)
        running.reconcile_until_stable()
        assert running.pods["demo-environment-0"].terminal, "its replacement waits"
        assert shown in running.events[-1].message
        running.pass_time(60)
        running.reconcile_until_stable()
        assert not running.pods["demo-environment-0"].terminal
    assert (running.status.phase, running.status.attempt, running.status.failures) == (Phase.RUNNING, 1, 0)

"""Environments with pods of their own, on a cluster in memory: what such a pod has, and what a hostile one can cost."""

import base64
from dataclasses import replace
from typing import Any, Final

import pytest

from longshore.api import contract
from longshore.api.environment import Environment
from longshore.api.status import Phase
from longshore_kube.times import rfc3339
from longshore_operator.children import children
from longshore_operator.plan import Event
from longshore_operator.pod_view import ServerEnd
from longshore_operator.pods import SCRATCH_MOUNT, coordinator_pod, environment_pod
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


def served(**server: Any) -> Json:
    """Two pods, each with a server of its own."""
    environment = {"name": "game", "kind": "OpenEnv", "server": {"image": "game:1", **server}, "pods": {"count": 2}}
    return playing() | {"environments": [environment]}


def test_a_server_is_a_sidecar_with_nothing_of_the_job_and_limits_of_its_own() -> None:
    job = make_job(**served(command=["serve", "it"], env={"LEVEL": "3"}, port=9_000))
    spec = environment_pod(job, CONFIG, 1, 0, IP)["spec"]
    ours, server = *spec["containers"], *spec["initContainers"]
    assert (server["name"], server["image"], server["command"]) == ("server", "game:1", ["serve", "it"])
    assert server["restartPolicy"] == "Always", "it runs beside ours, and starts again after it has ended"
    assert server["securityContext"] == ours["securityContext"]
    assert server["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert [one["name"] for one in server["volumeMounts"]] == ["server-scratch"]
    assert "server-scratch" not in [one["name"] for one in ours["volumeMounts"]]
    (address,) = [one for one in server["env"] if "valueFrom" in one]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    values = {one["name"]: one["value"] for one in server["env"] if one is not address}
    assert values == {"HOME": SCRATCH_MOUNT, "TMPDIR": SCRATCH_MOUNT, "LEVEL": "3"}
    assert (spec["automountServiceAccountToken"], server["ports"][0]["containerPort"]) == (False, 9_000)


def test_a_server_may_request_more_which_is_also_its_limit() -> None:
    requested = {"memory": "4Gi", "ephemeral-storage": "2Gi", "nvidia.com/gpu": 1}
    (server,) = environment_pod(make_job(**served(resources=requested)), CONFIG, 1, 0, IP)["spec"]["initContainers"]
    limits = {"memory": "4Gi", "ephemeral-storage": "2Gi", "nvidia.com/gpu": "1"}
    assert server["resources"] == {"requests": {"cpu": "500m", **limits}, "limits": limits}


def test_a_pod_with_a_server_has_one_episode_unless_the_job_says_how_many_it_takes() -> None:
    (environment,) = make_job(**served()).spec.environments
    assert environment.most_episodes == 1
    assert environment.model_copy(update={"episodes_per_pod": 8}).most_episodes == 8


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ServerEnd(3, message="ImportError: no game"), "container server exited with code 3: ImportError: no game"),
        (ServerEnd(137, is_out_of_memory=True), "(OOMKilled); raise environments[].server.resources.memory"),
    ],
)
def test_a_server_that_ends_is_told_once_with_its_cause_and_the_job_goes_on(end: ServerEnd, said: str) -> None:
    running = running_cluster(**served(), backoffLimit=0)
    end = replace(end, finished_at=rfc3339(running.now))
    running.change("demo-environment-1", ready=False, server_end=end)
    running.step()
    assert running.condition("Ready")[:2] == ("False", "ServerEnded")
    assert running.condition("Ready")[2].startswith("demo-environment-1: container server ")
    assert running.condition("Ready")[2].endswith(said)
    running.change("demo-environment-1", ready=True)
    running.step()
    assert (running.condition("Ready")[0], running.status.phase, running.status.failures) == ("True", Phase.RUNNING, 0)
    assert len({(one.key, one.message) for one in running.events if one.reason == "ServerEnded"}) == 1
    running.pass_time(301)
    assert not [one for one in running.step().actions if isinstance(one, Event)]


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

"""The pods that the operator makes keep the contract with the programs in them, and the restricted standard."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from longshore.api import contract
from longshore_operator.config import OperatorConfig
from longshore_operator.pods import (
    coordinator_pod,
    environment_pod,
    judge_pod,
    reward_pod,
    trainer_pod,
    worker_pod,
)
from tests.unit.operator.model import CONFIG, SPEC, make_job

Pod = dict[str, Any]


def all_pods(config: OperatorConfig = CONFIG, **spec: Any) -> list[Pod]:
    job = make_job(**spec)
    return [
        coordinator_pod(job, config, 3),
        worker_pod(job, config, 3, 1, "10.0.0.9", 2),
        reward_pod(job, config, 3, 0, "10.0.0.9"),
    ]


def environment(pod: Pod) -> dict[str, str]:
    entries = pod["spec"]["containers"][0]["env"]
    return {
        entry["name"]: entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
    }


def mount_paths(pod: Pod) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}


def test_each_component_runs_its_own_command() -> None:
    commands = [pod["spec"]["containers"][0]["command"] for pod in all_pods()]
    assert commands == [
        ["python", "-m", "longshore_runtime", component] for component in ("coordinator", "worker", "reward")
    ]


def test_pods_that_run_programs_of_models_do_not_write_to_the_storage() -> None:
    mounts = [pod["spec"]["containers"][0]["volumeMounts"] for pod in all_pods()]
    assert [one["readOnly"] for of_pod in mounts for one in of_pod if one["name"] == "storage"] == [False, False, True]


def secrets(pod: Pod) -> set[tuple[str, str]]:
    """Secrets that a pod mounts, with the keys."""
    mounted = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    own = {(secret["secretName"], item["key"]) for secret in mounted for item in secret["items"]}
    sources = [one for volume in pod["spec"]["volumes"] for one in volume.get("projected", {}).get("sources", ())]
    projected = [source["secret"] for source in sources if "secret" in source]
    return own | {(secret["name"], item["key"]) for secret in projected for item in secret["items"]}


def test_pods_of_the_ray_cluster_have_its_token_and_reward_pods_only_their_own() -> None:
    coordinator, worker, reward = all_pods()
    for pod in (coordinator, worker):
        env, mounts = environment(pod), mount_paths(pod)
        assert env[contract.ENV_RAY_AUTH_MODE] == "token"
        assert env[contract.ENV_RAY_TOKEN_PATH] == f"{mounts['ray-token']}/{contract.RAY_TOKEN_KEY}"
    for pod in (coordinator, reward):
        env, mounts = environment(pod), mount_paths(pod)
        assert env[contract.ENV_REWARD_TOKEN] == f"{mounts['reward-token']}/{contract.REWARD_TOKEN_KEY}"
    ray, own = (
        ("demo-ray-token-job-uid", contract.RAY_TOKEN_KEY),
        ("demo-reward-token-job-uid", contract.REWARD_TOKEN_KEY),
    )
    assert [secrets(pod) for pod in (coordinator, worker, reward)] == [{ray, own}, {ray}, {own}]
    assert not any(name.startswith("RAY_") for name in environment(reward))
    assert reward["spec"]["automountServiceAccountToken"] is False


def test_a_job_without_reward_pods_has_no_token_for_them() -> None:
    coordinator = coordinator_pod(make_job(reward={"pods": 0}), CONFIG, 1)
    assert contract.ENV_REWARD_TOKEN not in environment(coordinator)
    assert secrets(coordinator) == {("demo-ray-token-job-uid", contract.RAY_TOKEN_KEY)}
    growing = coordinator_pod(make_job(reward={"pods": 0, "maxPods": 2}), CONFIG, 1)
    assert contract.ENV_REWARD_TOKEN in environment(growing)


def test_ray_nodes_are_asked_for_readiness_on_the_health_port() -> None:
    coordinator, worker, _ = all_pods()
    for pod in (coordinator, worker, disaggregated_trainer()):
        probe = pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]
        assert probe == {"path": "/readyz", "port": contract.HEALTH_PORT}


def test_a_reward_pod_is_ready_once_it_serves() -> None:
    *_, reward = all_pods()
    (container,) = reward["spec"]["containers"]
    assert container["ports"] == [{"name": "reward", "containerPort": contract.REWARD_PORT}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": contract.REWARD_PORT}


def disaggregated_trainer() -> Pod:
    job = make_job(placement="Disaggregated", trainerWorkers={"replicas": 2, "gpusPerPod": 8})
    return trainer_pod(job, CONFIG, 3, 0, "10.0.0.9")


def host() -> Pod:
    """A pod of an environment."""
    world = {"name": "world", "kind": "Python", "importPath": "games:Guess"}
    return environment_pod(make_job(environments=[world]), CONFIG, 3, 0, "10.0.0.9")


@pytest.mark.parametrize(
    "pod", [*all_pods(), disaggregated_trainer(), host()], ids=lambda pod: str(pod["metadata"]["name"])
)
class TestEveryPod:
    def test_the_environment_is_the_contract(self, pod: Pod) -> None:
        env = environment(pod)
        assert env[contract.ENV_JOB_NAME] == "demo"
        assert env[contract.ENV_JOB_NAMESPACE] == "team"
        assert env[contract.ENV_JOB_UID] == "job-uid"
        assert env[contract.ENV_ATTEMPT] == "3"
        assert env[contract.ENV_POD_IP] == "status.podIP"
        assert env[contract.ENV_POD_NAME] == "metadata.name"

    def test_every_path_in_the_environment_lies_in_a_mounted_volume(self, pod: Pod) -> None:
        env, mounts = environment(pod), mount_paths(pod)
        if env[contract.ENV_COMPONENT] != "environment":
            assert env[contract.ENV_CONFIG] == f"{mounts['config']}/{contract.CONFIG_KEY}"
            assert env[contract.ENV_STORAGE] == mounts["storage"]
        assert env["HOME"] == env["TMPDIR"] == mounts["scratch"]
        assert env[contract.ENV_TERMINATION_LOG] == pod["spec"]["containers"][0]["terminationMessagePath"]
        assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}

    def test_a_pod_runs_once_and_autoscalers_leave_its_node_alone(self, pod: Pod) -> None:
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"

    def test_service_meshes_leave_a_pod_alone(self, pod: Pod) -> None:
        labels = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"

    def test_shared_memory_lies_in_memory(self, pod: Pod) -> None:
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"]
        assert mount_paths(pod)["shm"] == "/dev/shm"


def test_only_the_coordinator_has_a_service_account_token() -> None:
    coordinator, *others = all_pods()
    assert coordinator["spec"]["serviceAccountName"] == "demo-coordinator"
    assert coordinator["spec"]["automountServiceAccountToken"] is True
    for pod in others:
        assert "serviceAccountName" not in pod["spec"]
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_coordinator_has_time_for_a_last_checkpoint() -> None:
    assert [pod["spec"]["terminationGracePeriodSeconds"] for pod in all_pods()] == [120, 30, 30]


def test_workers_ask_for_their_gpus_and_nobody_else_does() -> None:
    workers = {"replicas": 2, "gpusPerPod": 8, "gpuResourceName": "amd.com/gpu", "resources": {"memory": "64Gi"}}
    coordinator, worker, reward = all_pods(workers=workers)
    assert worker["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "64Gi", "amd.com/gpu": "8"},
        "limits": {"amd.com/gpu": "8", "memory": "64Gi"},
    }
    for pod in (coordinator, reward):
        resources = pod["spec"]["containers"][0]["resources"]
        assert not {name for kind in resources.values() for name in kind} - {"cpu", "memory"}


class TestRequests:
    def test_no_pod_is_without_cpu_and_memory_requests(self) -> None:
        pool = {"name": "critic", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "judge", "pool": {}}}
        job = make_job(
            placement="Disaggregated", trainerWorkers={"replicas": 2, "gpusPerPod": 8}, reward={"functions": [pool]}
        )
        pods = [
            coordinator_pod(job, CONFIG, 3),
            worker_pod(job, CONFIG, 3, 1, "10.0.0.9", 2),
            trainer_pod(job, CONFIG, 3, 0, "10.0.0.9"),
            reward_pod(job, CONFIG, 3, 0, "10.0.0.9"),
            judge_pod(job, CONFIG, 3, 0, "10.0.0.9"),
        ]
        for pod in pods:
            assert pod["spec"]["containers"][0]["resources"]["requests"].keys() >= {"cpu", "memory"}

    def test_a_reward_pod_asks_for_a_share_of_a_cpu_for_every_worker_and_every_request(self) -> None:
        computes, waits = (
            {"name": "maths", "kind": "Maths"},
            {"name": "ask", "kind": "HTTP", "http": {"url": "http://a"}},
        )
        beside = {"name": "judge", "kind": "Judge", "judge": {"modelPath": "judge"}}
        for functions, cpu in (
            ([computes], "1500m"),
            ([computes, waits], "2300m"),
            ([waits], "800m"),
            ([beside], "250m"),
        ):
            resources = reward_resources(functions=functions, workersPerPod=6, requestsPerPod=100)
            assert resources["requests"] == {"cpu": cpu, "memory": "1Gi"}

    def test_what_the_job_asks_for_comes_first(self) -> None:
        *_, pod = all_pods(coordinator={"resources": {"cpu": "4"}})[:1]
        requests = {"cpu": "4", "memory": "2Gi"}
        assert pod["spec"]["containers"][0]["resources"] == {"requests": requests, "limits": {"memory": "2Gi"}}

    def test_a_limit_in_a_template_is_not_exceeded_by_a_request(self) -> None:
        limited = {"resources": {"limits": {"memory": "512Mi"}}}
        template = {"spec": {"containers": [{"name": contract.CONTAINER, **limited}]}}
        coordinator, _, reward = all_pods(coordinator={"template": template}, reward={"template": template})
        assert coordinator["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "500m"},
            "limits": {"memory": "512Mi"},
        }
        assert "memory" not in reward["spec"]["containers"][0]["resources"]["requests"]

    def test_a_template_can_remove_all_of_them(self) -> None:
        template = {"spec": {"containers": [{"name": contract.CONTAINER, "resources": None}]}}
        assert "resources" not in all_pods(coordinator={"template": template})[0]["spec"]["containers"][0]


class TestMemoryLimits:
    REAL: ClassVar = {"gpusPerPod": 1, "gpuResourceName": "nvidia.com/gpu"}

    @pytest.mark.parametrize(
        ("workers", "limit"),
        [
            ({"gpusPerPod": 0}, "4Gi"),
            ({"gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"}, "4Gi"),
            (REAL, None),
            (REAL | {"resources": {"memory": "64Gi"}}, "64Gi"),
        ],
        ids=["without-gpus", "pretended-gpus", "real-gpus", "requested"],
    )
    def test_pods_that_sample_train_or_judge_are_limited(self, workers: dict[str, Any], limit: str | None) -> None:
        judge = {"placement": "Pool", "modelPath": "judge", "pool": workers}
        job = make_job(
            placement="Disaggregated",
            workers=workers,
            trainerWorkers=workers,
            reward={"functions": [{"name": "critic", "kind": "Judge", "judge": judge}]},
        )
        for pod in (
            worker_pod(job, CONFIG, 3, 1, "10.0.0.9", 1),
            trainer_pod(job, CONFIG, 3, 0, "10.0.0.9"),
            judge_pod(job, CONFIG, 3, 0, "10.0.0.9"),
        ):
            assert pod["spec"]["containers"][0]["resources"].get("limits", {}).get("memory") == limit

    @pytest.mark.parametrize(
        ("resources", "requested", "limit"),
        [
            ({"requests": {"memory": "6Gi"}}, "6Gi", "6Gi"),
            ({"limits": {"memory": "6Gi"}}, "3Gi", "6Gi"),
            ({"limits": {"memory": None}}, "3Gi", None),
            ({"requests": {"memory": None}}, "2Gi", "3Gi"),
        ],
        ids=["requests-more", "limits-more", "no-limit", "requests-the-default"],
    )
    def test_template_changes_the_limit(self, resources: dict[str, Any], requested: str, limit: str | None) -> None:
        template = {"spec": {"containers": [{"name": contract.CONTAINER, "resources": resources}]}}
        pod = all_pods(coordinator={"resources": {"memory": "3Gi"}, "template": template})[0]
        found = pod["spec"]["containers"][0]["resources"]
        assert (found["requests"]["memory"], found.get("limits", {}).get("memory")) == (requested, limit)

    def test_limit_of_a_whole_pod_replaces_that_of_its_container(self) -> None:
        template = {"spec": {"resources": {"limits": {"memory": "3Gi"}}}}
        pod = all_pods(coordinator={"template": template})[0]
        assert "limits" not in pod["spec"]["containers"][0]["resources"]


def reward_resources(**reward: Any) -> dict[str, Any]:
    *_, pod = all_pods(reward=reward)
    resources: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return resources


def test_the_memory_of_reward_pods_is_limited_to_what_they_ask_for() -> None:
    assert reward_resources(resources={"cpu": 2, "memory": "6Gi"}) == {
        "requests": {"cpu": "2", "memory": "6Gi"},
        "limits": {"memory": "6Gi"},
    }


def test_without_a_request_the_limit_leaves_room_for_a_program_of_every_worker() -> None:
    code = [
        {"name": "tests", "kind": "Code", "code": {"memory": "256Mi"}},
        {"name": "more-tests", "kind": "Code", "code": {"memory": "2Gi"}},
        {"name": "maths", "kind": "Maths", "code": {"memory": "64Gi"}},
    ]
    assert reward_resources() == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4096Mi"}}
    limits = reward_resources(functions=code, workersPerPod=3)["limits"]
    assert limits == {"memory": f"{(2 + 3 * (1 + 2)) * 1024}Mi"}


def test_reward_pods_are_placed_and_patched_as_the_job_says() -> None:
    tolerations = [{"key": "spot", "operator": "Exists"}]
    template = {"metadata": {"labels": {"team": "rl"}}, "spec": {"priorityClassName": "low"}}
    *_, pod = all_pods(
        reward={
            "nodeSelector": {"pool": "cpu"},
            "tolerations": tolerations,
            "template": template,
            "runtimeClassName": "gvisor",
        }
    )
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert tolerations[0] in pod["spec"]["tolerations"]
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert (pod["spec"]["priorityClassName"], pod["spec"]["runtimeClassName"]) == ("low", "gvisor")


def test_the_operators_options_say_as_whom_pods_run_and_with_what_they_pull_images() -> None:
    ids, assigned = ("runAsUser", "runAsGroup", "fsGroup"), replace(CONFIG, pod_user=None)
    for config, found in ((CONFIG, [1000] * 3), (replace(CONFIG, pod_user=7), [7] * 3), (assigned, [None] * 3)):
        for pod in all_pods(config):
            security = pod["spec"]["securityContext"]
            assert [security.get(name) for name in ids] == found
            assert security["runAsNonRoot"] is True
    template = {"spec": {"imagePullSecrets": [{"name": "mine"}]}}
    pulling = all_pods(replace(CONFIG, image_pull_secrets=("registry",)), coordinator={"template": template})
    secrets = [[one["name"] for one in pod["spec"]["imagePullSecrets"]] for pod in pulling]
    assert secrets == [["registry", "mine"], *[["registry"]] * (len(pulling) - 1)]


def test_labels_say_what_a_worker_is_and_does() -> None:
    labels = all_pods()[1]["metadata"]["labels"]
    expected = {"job": "demo", "component": "worker", "index": "1", "attempt": "3", "role": "rollout", "tp-size": "2"}
    assert {name: labels[f"longshore.dev/{name}"] for name in expected} == expected


def seconds_on_a_lost_node(*tolerations: dict[str, Any]) -> list[int | None]:
    """How long a pod stays on a node that is not ready, and on one that is unreachable: the first toleration counts."""

    def seconds(key: str) -> int | None:
        for entry in pod["spec"]["tolerations"]:
            if entry.get("key", key) == key and (entry.get("effect") or "NoExecute") == "NoExecute":
                found: int | None = entry.get("tolerationSeconds")
                return found
        raise AssertionError(f"{key} is not tolerated")

    pod = all_pods(coordinator={"tolerations": list(tolerations)})[0]
    return [seconds(f"node.kubernetes.io/{condition}") for condition in ("not-ready", "unreachable")]


class TestLostNode:
    UNREACHABLE = "node.kubernetes.io/unreachable"

    def test_its_pods_are_given_up_after_a_minute(self) -> None:
        assert seconds_on_a_lost_node() == [60, 60]
        assert seconds_on_a_lost_node({"key": "spot", "operator": "Exists"}) == [60, 60]

    @pytest.mark.parametrize("effect", [{}, {"effect": "NoExecute"}], ids=["every effect", "NoExecute"])
    def test_pods_that_tolerate_every_taint_are_given_up_after_a_minute_too(self, effect: dict[str, Any]) -> None:
        assert seconds_on_a_lost_node({"operator": "Exists", **effect}) == [60, 60]

    def test_a_user_who_names_the_taint_decides_how_long(self) -> None:
        named = {"key": self.UNREACHABLE, "operator": "Exists"}
        assert seconds_on_a_lost_node({**named, "effect": "NoExecute", "tolerationSeconds": 600}) == [60, 600]
        for every in ({}, {"effect": None}, {"effect": ""}):
            assert seconds_on_a_lost_node(named | every) == [60, None], "without an effect: every effect"
        assert seconds_on_a_lost_node(
            {"operator": "Exists"}, {**named, "effect": "NoExecute", "tolerationSeconds": 600}
        ) == [60, None], "the first one counts"

    def test_a_toleration_of_noschedule_alone_does_not_change_the_minute(self) -> None:
        named = {"key": self.UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}
        assert seconds_on_a_lost_node(named) == [60, 60]


def test_a_template_lets_autoscalers_remove_the_node_of_a_pod() -> None:
    chosen = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "karpenter.sh/do-not-disrupt": None}
    *_, reward = all_pods(reward={"template": {"metadata": {"annotations": chosen}}})
    annotations = reward["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert "karpenter.sh/do-not-disrupt" not in annotations


def test_a_template_adds_a_pod_to_a_service_mesh_and_changes_no_label_of_the_job() -> None:
    labels = {"sidecar.istio.io/inject": "true", "istio.io/dataplane-mode": None, "longshore.dev/job": "other"}
    template = {"metadata": {"labels": labels, "annotations": {"linkerd.io/inject": "enabled"}}}
    coordinator = all_pods(coordinator={"template": template})[0]["metadata"]
    assert coordinator["labels"]["sidecar.istio.io/inject"] == "true"
    assert "istio.io/dataplane-mode" not in coordinator["labels"]
    assert coordinator["annotations"]["linkerd.io/inject"] == "enabled"
    assert coordinator["labels"]["longshore.dev/job"] == "demo"


def test_a_container_that_a_template_adds_is_restricted_too() -> None:
    template = {"spec": {"containers": [{"name": "sidecar", "image": "x"}], "priorityClassName": "high"}}
    pod = all_pods(coordinator={"template": template})[0]
    main, sidecar = pod["spec"]["containers"]
    assert main["name"] == contract.CONTAINER
    assert sidecar["securityContext"] == main["securityContext"]
    assert pod["spec"]["priorityClassName"] == "high"


def test_the_jobs_own_image_comes_first() -> None:
    assert all_pods()[0]["spec"]["containers"][0]["image"] == "runtime:1"
    assert all_pods(image="mine:2")[0]["spec"]["containers"][0]["image"] == "mine:2"


MODULES = {"configMap": "demo-modules-1", "files": ["mine.py"]}


OWN_ALGORITHM = SPEC["algorithm"] | {"objective": {"name": "Custom", "importPath": "mine:loss"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"reward": {"pods": 0}}, {"coordinator"}),
        ({"algorithm": OWN_ALGORITHM}, {"worker"}),
    ],
    ids=["rewards", "rewards without pods", "objective"],
)
def test_modules_are_mounted_where_they_are_imported_and_nowhere_else(
    changes: dict[str, Any], expected: set[str]
) -> None:
    made = all_pods(modules=MODULES, **changes)
    for component, pod in zip(("coordinator", "worker", "reward"), made, strict=True):
        volumes = [one for one in pod["spec"]["volumes"] if one["name"] == "modules"]
        assert bool(volumes) is (contract.ENV_MODULES in environment(pod)) is (component in {"reward", *expected})
        for volume in volumes:
            assert volume["configMap"] == {"name": "demo-modules-1", "items": [{"key": "mine.py", "path": "mine.py"}]}
            assert environment(pod)[contract.ENV_MODULES] == mount_paths(pod)["modules"]


def test_pods_that_only_train_alone_have_the_files_of_an_objective() -> None:
    split = {"placement": "Disaggregated", "trainerWorkers": {"replicas": 1, "gpusPerPod": 1}}
    job = make_job(modules=MODULES, algorithm=OWN_ALGORITHM, **split)
    assert contract.ENV_MODULES in environment(trainer_pod(job, CONFIG, 1, 0, "10.0.0.1"))
    assert contract.ENV_MODULES not in environment(worker_pod(job, CONFIG, 1, 0, "10.0.0.1", 1))


def test_the_token_of_the_hub_reaches_the_coordinator_alone_and_only_if_it_downloads() -> None:
    hub = {"tokenSecret": {"name": "hf", "key": "read"}}
    maths = {"functions": [{"name": "maths", "kind": "Maths"}]}
    coordinator, *others = all_pods(hub=hub, data={"hub": "openai/gsm8k"}, reward=maths)
    assert ("hf", "read") in secrets(coordinator)
    path = environment(coordinator)[contract.ENV_HUB_TOKEN]
    assert path == f"{mount_paths(coordinator)['hub-token']}/{contract.HUB_TOKEN_KEY}"
    assert not any(("hf", "read") in secrets(other) for other in others)
    assert not any(("hf", "read") in secrets(pod) for pod in all_pods(hub=hub))


def test_the_token_of_a_teacher_reaches_the_coordinator_alone() -> None:
    endpoint = {"url": "https://teacher/v1", "modelName": "large", "tokenSecret": {"name": "teacher", "key": "read"}}
    algorithm = SPEC["algorithm"] | {"objective": {"name": "Distillation", "teacher": {"endpoint": endpoint}}}
    coordinator, *others = all_pods(algorithm=algorithm)
    assert ("teacher", "read") in secrets(coordinator)
    path = environment(coordinator)[contract.ENV_TEACHER_TOKEN]
    assert path == f"{mount_paths(coordinator)['teacher-token']}/{contract.TEACHER_TOKEN_KEY}"
    assert not any(("teacher", "read") in secrets(other) for other in others)


def test_the_page_of_a_job_listens_for_others_only_where_policies_say_who_they_are() -> None:
    peers = ({"namespaceSelector": {}},)
    job = make_job()
    for config, is_open in (
        (OperatorConfig("runtime:1"), False),
        (OperatorConfig("runtime:1", page_peers=peers), True),
        (OperatorConfig("runtime:1", page_peers=peers, network_policies=False), False),
    ):
        assert (contract.ENV_PAGE_OPEN in environment(coordinator_pod(job, config, 1))) is is_open


@pytest.mark.parametrize(
    ("chosen", "grace_s"),
    [({}, 120), ({"terminationGracePeriodSeconds": 600}, 600), ({"terminationGracePeriodSeconds": None}, 30)],
)
def test_a_coordinator_knows_how_long_it_may_take_to_stop(chosen: dict[str, Any], grace_s: int) -> None:
    """A template may give a job with large checkpoints more time; Kubernetes gives a pod that names none 30 s."""
    pod = coordinator_pod(make_job(coordinator={"template": {"spec": chosen}}), OperatorConfig("runtime:1"), 1)
    assert pod["spec"].get("terminationGracePeriodSeconds", 30) == grace_s
    assert environment(pod)[contract.ENV_GRACE] == str(grace_s)


@pytest.mark.parametrize(("chosen", "grace_s"), [(-5, "0"), (60, "60")])
def test_a_coordinator_gets_its_grace_period_once_and_as_a_number_that_it_can_read(chosen: int, grace_s: str) -> None:
    container = {"name": contract.CONTAINER, "env": [{"name": contract.ENV_GRACE, "value": "soon"}]}
    template = {"spec": {"terminationGracePeriodSeconds": chosen, "containers": [container]}}
    pod = coordinator_pod(make_job(coordinator={"template": template}), OperatorConfig("runtime:1"), 1)
    (main,) = pod["spec"]["containers"]
    assert [one["value"] for one in main["env"] if one["name"] == contract.ENV_GRACE] == [grace_s]


def test_tokens_of_trackers_reach_the_coordinator_alone_each_as_a_file_of_its_own() -> None:
    tracking = {
        "wandb": {"tokenSecret": {"name": "wb", "key": "api-key"}},
        "mlflow": {"address": "http://mlflow:5000", "tokenSecret": {"name": "ml"}},
        "openTelemetry": {"endpoint": "http://collector:4318"},
    }
    coordinator, *others = all_pods(tracking=tracking)
    assert {("wb", "api-key"), ("ml", "token")} <= set(secrets(coordinator))
    (volume,) = [one for one in coordinator["spec"]["volumes"] if one["name"] == "tracking-tokens"]
    files = [item["path"] for source in volume["projected"]["sources"] for item in source["secret"]["items"]]
    assert files == ["wandb", "mlflow"]
    assert environment(coordinator)[contract.ENV_TRACKING_TOKENS] == mount_paths(coordinator)["tracking-tokens"]
    for other in others:
        assert not {("wb", "api-key"), ("ml", "token")} & set(secrets(other))
        assert contract.ENV_TRACKING_TOKENS not in environment(other)
    assert not any(contract.ENV_TRACKING_TOKENS in environment(pod) for pod in all_pods())

"""Reward code sees the variables of its image and template, and none that lead to a token of the job."""

from typing import Any

import pytest

from longshore.api import contract
from longshore_operator.pods import coordinator_pod, reward_pod
from longshore_runtime.rewards.child_process import child_environment
from tests.unit.operator.model import CONFIG, make_job

SECRET = {"name": "tokens", "key": "token"}
SERVICE = {"name": "service", "kind": "HTTP", "http": {"url": "http://scores/"}, "tokenSecret": SECRET}
SPEC: dict[str, Any] = {
    "reward": {"functions": [SERVICE], "pods": 1},
    "modules": {"configMap": "rewards", "files": ["a.py"]},
    "hub": {"tokenSecret": SECRET},
    "tracking": {"wandb": {"tokenSecret": SECRET}},
}


def test_reward_code_sees_of_what_the_operator_sets_only_its_directories() -> None:
    job = make_job(**SPEC)
    for pod in (coordinator_pod(job, CONFIG, 1), reward_pod(job, CONFIG, 1, 0, "10.0.0.1")):
        environment = {one["name"]: "secret" for one in pod["spec"]["containers"][0]["env"]}
        assert contract.ENV_REWARD_TOKEN in environment
        assert child_environment(environment).keys() == {"HOME", "TMPDIR"}


@pytest.mark.parametrize("name", [value for name, value in vars(contract).items() if name.startswith("ENV_")])
def test_reward_code_sees_no_variable_of_the_contract(name: str) -> None:
    assert child_environment({name: "secret"}) == {}


@pytest.mark.parametrize("name", ["KUBERNETES_SERVICE_HOST", "KUBECONFIG", "RAY_ADDRESS"])
def test_reward_code_does_not_learn_where_the_cluster_is(name: str) -> None:
    assert child_environment({name: "10.0.0.1"}) == {}


def test_reward_code_sees_what_the_template_and_the_image_set() -> None:
    of_users = {"OPENAI_API_KEY": "sk", "HTTPS_PROXY": "http://proxy:3128", "OMP_NUM_THREADS": "1", "PATH": "/bin"}
    assert child_environment(of_users) == of_users

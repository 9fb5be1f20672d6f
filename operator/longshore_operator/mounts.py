"""Files in the pods of a job: its storage, settings and tokens, and the Python files of the user."""

from collections.abc import Iterator
from typing import Any, Final

from longshore.api import contract, names
from longshore.api.hub import Hub
from longshore.api.objectives.distillation import TeacherEndpoint
from longshore.api.rljob import RLJob
from longshore.api.spec import Modules
from longshore.api.tracking import Tracking
from longshore_operator.identity import Identity

Json = dict[str, Any]

_TOKEN_MODE: Final = 0o440
"""Tokens are readable for the user and the group of the runtime, and for nobody else."""


def job_files(pod: Json, job: RLJob, *, read_only: bool) -> None:
    """Add the storage and the settings of the job."""
    name = Identity.of(job).name
    claim = job.spec.storage.claim_name or names.storage_claim(name)
    _mount(pod, "storage", {"persistentVolumeClaim": {"claimName": claim}}, contract.STORAGE_MOUNT, read_only=read_only)
    _mount(pod, "config", {"configMap": {"name": names.config_map(name)}}, contract.CONFIG_MOUNT)
    _set(pod, contract.ENV_STORAGE, contract.STORAGE_MOUNT)
    _set(pod, contract.ENV_CONFIG, f"{contract.CONFIG_MOUNT}/{contract.CONFIG_KEY}")


def environment(pod: Json, job: RLJob, name: str) -> None:
    """Add the settings of one environment to a pod that hosts it."""
    items = [{"key": environment_key(name), "path": contract.ENVIRONMENT_FILE}]
    source = {"configMap": {"name": names.config_map(Identity.of(job).name), "items": items}}
    _mount(pod, "environment", source, contract.CONFIG_MOUNT)
    _set(pod, contract.ENV_ENVIRONMENT, f"{contract.CONFIG_MOUNT}/{contract.ENVIRONMENT_FILE}")


def environment_key(name: str) -> str:
    """Return the key of an environment in the ConfigMap of its job."""
    return f"environment-{name}.json"


def ray_token(pod: Json, job: RLJob) -> None:
    """Add the token that a Ray node needs to join the cluster of the job."""
    secret = Identity.of(job).ray_token_secret
    path = _token(pod, "ray-token", secret, contract.RAY_TOKEN_KEY, contract.RAY_TOKEN_KEY, contract.RAY_TOKEN_MOUNT)
    _set(pod, contract.ENV_RAY_AUTH_MODE, "token")
    _set(pod, contract.ENV_RAY_TOKEN_PATH, path)


def reward_pod_token(pod: Json, job: RLJob) -> None:
    """Add the token with which the coordinator authenticates at reward pods."""
    secret, key = Identity.of(job).reward_token_secret, contract.REWARD_TOKEN_KEY
    path = _token(pod, "reward-token", secret, key, key, contract.REWARD_TOKEN_MOUNT)
    _set(pod, contract.ENV_REWARD_TOKEN, path)


def environment_token(pod: Json, job: RLJob, environment: str) -> None:
    """Add the token that a pod of an environment asks of the coordinator."""
    secret, key = Identity.of(job).environment_token_secret(environment), contract.ENVIRONMENT_TOKEN_KEY
    path = _token(pod, "environment-token", secret, key, key, contract.ENVIRONMENT_TOKEN_MOUNT)
    _set(pod, contract.ENV_ENVIRONMENT_TOKEN, path)


def environment_tokens(pod: Json, job: RLJob) -> None:
    """Add the tokens of the pods of all environments, one file each, to the pod that connects to them."""
    identity, key = Identity.of(job), contract.ENVIRONMENT_TOKEN_KEY
    secrets = {one.name: (identity.environment_token_secret(one.name), key) for one in job.spec.environments}
    _tokens(pod, "environment-tokens", secrets, contract.ENVIRONMENT_TOKENS_MOUNT, contract.ENV_ENVIRONMENT_TOKENS)


def judge_token(pod: Json, job: RLJob) -> None:
    """Add the token that a judge pod asks of those who question it."""
    secret, key = Identity.of(job).ray_token_secret, contract.JUDGE_TOKEN_KEY
    path = _token(pod, "judge-token", secret, key, key, contract.JUDGE_TOKEN_MOUNT)
    _set(pod, contract.ENV_JUDGE_TOKEN, path)


def reward_function_tokens(pod: Json, job: RLJob) -> None:
    """Add the bearer tokens of reward functions, one file each, to a pod that scores."""
    secrets = dict(_reward_function_secrets(job))
    _tokens(pod, "reward-tokens", secrets, contract.REWARD_TOKENS_MOUNT, contract.ENV_REWARD_TOKENS)


def modules(pod: Json, modules: Modules | None) -> None:
    """Add the user's Python files to a pod that imports them."""
    if modules is None:
        return
    items = [{"key": name, "path": name} for name in modules.files]
    source = {"configMap": {"name": modules.config_map, "items": items}}
    _mount(pod, "modules", source, contract.MODULES_MOUNT)
    _set(pod, contract.ENV_MODULES, contract.MODULES_MOUNT)


def hub_token(pod: Json, hub: Hub) -> None:
    """Add the token of the Hub to the pod that downloads."""
    if hub.token_secret is None:
        return
    secret, key = hub.token_secret.name, hub.token_secret.key
    path = _token(pod, "hub-token", secret, key, contract.HUB_TOKEN_KEY, contract.HUB_TOKEN_MOUNT)
    _set(pod, contract.ENV_HUB_TOKEN, path)


def teacher_token(pod: Json, endpoint: TeacherEndpoint | None) -> None:
    """Add the token of the server of the teacher to the pod that asks it."""
    if endpoint is None or endpoint.token_secret is None:
        return
    secret, key = endpoint.token_secret.name, endpoint.token_secret.key
    path = _token(pod, "teacher-token", secret, key, contract.TEACHER_TOKEN_KEY, contract.TEACHER_TOKEN_MOUNT)
    _set(pod, contract.ENV_TEACHER_TOKEN, path)


def tracking_tokens(pod: Json, tracking: Tracking) -> None:
    """Add the tokens of trackers, one file each, to the pod that sends them metrics."""
    secrets = {name: (secret.name, secret.key) for name, secret in tracking.secrets.items()}
    _tokens(pod, "tracking-tokens", secrets, contract.TRACKING_TOKENS_MOUNT, contract.ENV_TRACKING_TOKENS)


def _reward_function_secrets(job: RLJob) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the reward functions that need a token, with the name and the key of its Secret."""
    for function in job.spec.reward.functions:
        if function.pool is not None:
            yield function.name, (Identity.of(job).ray_token_secret, contract.JUDGE_TOKEN_KEY)
        elif function.token_secret is not None:
            yield function.name, (function.token_secret.name, function.token_secret.key)


def _token(pod: Json, volume: str, secret: str, key: str, file: str, directory: str) -> str:
    """Mount one token of a Secret; return the path of its file."""
    items = [{"key": key, "path": file}]
    _mount(pod, volume, {"secret": {"secretName": secret, "items": items, "defaultMode": _TOKEN_MODE}}, directory)
    return f"{directory}/{file}"


def _tokens(pod: Json, volume: str, secrets: dict[str, tuple[str, str]], directory: str, variable: str) -> None:
    """Mount a file for each name, with the token of its (Secret, key); `variable` holds the directory."""
    if not secrets:
        return
    sources = [
        {"secret": {"name": secret, "items": [{"key": key, "path": name}]}} for name, (secret, key) in secrets.items()
    ]
    _mount(pod, volume, {"projected": {"sources": sources, "defaultMode": _TOKEN_MODE}}, directory)
    _set(pod, variable, directory)


def _mount(pod: Json, volume: str, source: Json, directory: str, *, read_only: bool = True) -> None:
    pod["spec"]["volumes"].append({"name": volume, **source})
    mount = {"name": volume, "mountPath": directory, "readOnly": read_only}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)


def _set(pod: Json, variable: str, value: str) -> None:
    pod["spec"]["containers"][0]["env"].append({"name": variable, "value": value})

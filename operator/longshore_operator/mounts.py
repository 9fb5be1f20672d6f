"""What the user brings to the pods of a job, as read-only files: reward modules, tokens of the Hub and of trackers."""

from typing import Any

from longshore.api import contract
from longshore.api.hub import Hub
from longshore.api.reward import Reward
from longshore.api.tracking import Tracking

Json = dict[str, Any]


def reward_modules(pod: Json, reward: Reward) -> None:
    """Python files, for the pods that score and no others."""
    if reward.modules is None:
        return
    items = [{"key": name, "path": name} for name in reward.modules.files]
    source = {"configMap": {"name": reward.modules.config_map, "items": items}}
    _mount(pod, "reward-modules", source, contract.REWARD_MODULES_MOUNT)
    _set(pod, contract.ENV_REWARD_MODULES, contract.REWARD_MODULES_MOUNT)


def hub_token(pod: Json, hub: Hub) -> None:
    """The token, for the pod that downloads."""
    if hub.token_secret is None:
        return
    items = [{"key": hub.token_secret.key, "path": contract.HUB_TOKEN_KEY}]
    source = {"secret": {"secretName": hub.token_secret.name, "items": items, "defaultMode": 0o440}}
    _mount(pod, "hub-token", source, contract.HUB_TOKEN_MOUNT)
    _set(pod, contract.ENV_HUB_TOKEN, f"{contract.HUB_TOKEN_MOUNT}/{contract.HUB_TOKEN_KEY}")


def tracking_tokens(pod: Json, tracking: Tracking) -> None:
    """A file for each tracker that has a token, for the pod that speaks to trackers."""
    secrets = tracking.secrets
    if not secrets:
        return
    sources = [
        {"secret": {"name": secret.name, "items": [{"key": secret.key, "path": name}]}}
        for name, secret in secrets.items()
    ]
    source = {"projected": {"sources": sources, "defaultMode": 0o440}}
    _mount(pod, "tracking-tokens", source, contract.TRACKING_TOKENS_MOUNT)
    _set(pod, contract.ENV_TRACKING_TOKENS, contract.TRACKING_TOKENS_MOUNT)


def _mount(pod: Json, name: str, source: Json, path: str) -> None:
    pod["spec"]["volumes"].append({"name": name, **source})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})


def _set(pod: Json, variable: str, value: str) -> None:
    pod["spec"]["containers"][0]["env"].append({"name": variable, "value": value})

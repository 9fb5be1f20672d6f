"""Build everything that a job owns besides pods as plain data, from the spec alone."""

import base64
import hmac
from dataclasses import replace
from typing import Any

from longshore.api import contract, names
from longshore.api.names import Component
from longshore.api.pods import ClaimTemplate
from longshore.api.rljob import RLJob
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Context, Observed
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Identity, fingerprint
from longshore_operator.mounts import environment_key
from longshore_operator.network import network_policies
from longshore_operator.plan import Apply, CreateOnce, Outcome


def reconcile_children(context: Context) -> Outcome:
    """Apply children whose fingerprint has changed; Secrets are created once and never changed.

    The ConfigMap of an attempt that has begun is kept, so that all pods of the attempt read the same settings.
    It is only written again if somebody has deleted it. Its Secrets are there, too, once its coordinator runs, which
    has mounted them; to create them again would only show that, and fails in a namespace whose quota is used up. Each
    later attempt makes ConfigMap and Secrets again, in case that somebody has deleted them: they are not watched.
    """
    job, observed = context.job, context.observed
    generation = Identity.of(job).generation
    if not context.progress.active or (generation and observed.applied_for == (generation, context.progress.attempt)):
        return Outcome()
    applied = observed.children
    wanted = children(job, context.config, keeps_settings=context.has_coordinator)
    is_new = job.status.attempt == 0
    is_next = observed.applied_for[1] not in (0, context.progress.attempt)
    again = {"ConfigMap"} if is_next else set()
    changed = [
        replace(apply, is_new=is_new)
        for apply in wanted
        if apply.key[0] in again or _is_due(apply, applied.get(apply.key))
    ]
    if any(pod.component is Component.COORDINATOR and pod.phase == "Running" for pod in context.pods):
        return Outcome(actions=tuple(changed))
    is_again = context.has_coordinator or context.progress.attempt > 1
    made = [replace(secret, is_again=is_again) for secret in secrets(job, observed)]
    missing = [secret for secret in made if is_next or secret.key not in applied]
    return Outcome(actions=(*changed, *missing))


def _is_due(apply: Apply, applied: str | None) -> bool:
    """Return whether a child must be applied. One that is kept is only applied if it is missing."""
    return applied is None if apply.is_kept else applied != apply.fingerprint


def children(job: RLJob, config: OperatorConfig, *, keeps_settings: bool = False) -> tuple[Apply, ...]:
    """Build every child except the Secrets."""
    identity = Identity.of(job)
    manifests = [
        _headless_service(identity),
        *_coordinator_rights(identity),
        *(network_policies(job, config) if config.network_policies else ()),
    ]
    if job.spec.storage.create is not None:
        manifests.append(_claim(job.spec.storage.create, identity))
    settings = replace(_child(_config_map(job, identity)), is_kept=keeps_settings)
    return (settings, *(_child(manifest) for manifest in manifests))


def secrets(job: RLJob, observed: Observed) -> tuple[CreateOnce, ...]:
    """Build the Secrets with the tokens for the Ray cluster and judges of a job, its reward pods and environments."""
    identity = Identity.of(job)
    tokens = {contract.RAY_TOKEN_KEY: observed.ray_token, contract.JUDGE_TOKEN_KEY: observed.judge_token}
    made = [_secret(identity, identity.ray_token_secret, tokens)]
    if job.spec.reward.most_pods:
        own = {contract.REWARD_TOKEN_KEY: observed.reward_token}
        made.append(_secret(identity, identity.reward_token_secret, own))
    for one in job.spec.environments:
        token = hmac.digest(observed.environments_token.encode(), one.name.encode(), "sha256").hex()
        own = {contract.ENVIRONMENT_TOKEN_KEY: token}
        made.append(_secret(identity, identity.environment_token_secret(one.name), own))
    return tuple(made)


def _secret(identity: Identity, name: str, tokens: dict[str, str]) -> CreateOnce:
    return CreateOnce(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": identity.metadata(name),
            "type": "Opaque",
            "immutable": True,
            "data": {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()},
        }
    )


def _child(manifest: dict[str, Any]) -> Apply:
    digest = fingerprint(manifest)
    annotated = manifest | {"metadata": manifest["metadata"] | {"annotations": {ANNOTATION_FINGERPRINT: digest}}}
    return Apply(annotated, digest)


def _config_map(job: RLJob, identity: Identity) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": identity.metadata(names.config_map(identity.name)),
        "data": {
            contract.CONFIG_KEY: job.spec.model_dump_json(by_alias=True, indent=2),
            # Of its own: those who host an environment read nothing else.
            **{
                environment_key(one.name): one.model_dump_json(by_alias=True, exclude={"pods"})
                for one in job.spec.environments
            },
        },
    }


def _headless_service(identity: Identity) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(names.headless_service(identity.name)),
        "spec": {
            "clusterIP": "None",
            # Ray nodes must find one another before they can be ready.
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: identity.name},
            "ports": [{"name": "health", "port": contract.HEALTH_PORT, "targetPort": contract.HEALTH_PORT}],
        },
    }


def _coordinator_rights(identity: Identity) -> list[dict[str, Any]]:
    """Build the account of the coordinator, which may watch its own RLJob and write its status, and nothing else."""
    name = names.service_account(identity.name)
    metadata = identity.metadata(name, Component.COORDINATOR)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [
                {
                    "apiGroups": [names.GROUP],
                    "resources": [names.PLURAL],
                    "resourceNames": [identity.name],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": [names.GROUP],
                    "resources": [f"{names.PLURAL}/status"],
                    "resourceNames": [identity.name],
                    "verbs": ["patch"],
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": identity.namespace}],
        },
    ]


def _claim(template: ClaimTemplate, identity: Identity) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [template.access_mode.value],
        "resources": {"requests": {"storage": str(template.size)}},
    }
    if template.storage_class_name is not None:
        spec["storageClassName"] = template.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": identity.metadata(names.storage_claim(identity.name)),
        "spec": spec,
    }

"""Who a job is, and what marks everything that belongs to it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob

Key = tuple[str, str]
"""(namespace, name) of an RLJob."""
ANNOTATION_FINGERPRINT = "longshore.dev/fingerprint"
"""Fingerprint of a child's manifest."""
ANNOTATION_GENERATION = "longshore.dev/generation"
"""Newest generation of the job's spec that asks for a child as it is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Name, namespace, uid and generation of an RLJob."""

    name: str
    namespace: str
    uid: str
    generation: int

    @classmethod
    def of(cls, job: RLJob) -> "Identity":
        """Return the identity from the metadata that the API server filled in."""
        metadata = job.metadata
        return cls(metadata["name"], metadata["namespace"], metadata["uid"], metadata.get("generation", 0))

    @property
    def ray_token_secret(self) -> str:
        """Name of the Secret with the tokens of the Ray cluster and the judges."""
        return names.ray_token_secret(self.name, self.uid)

    @property
    def reward_token_secret(self) -> str:
        """Name of the Secret with the token of the reward pods."""
        return names.reward_token_secret(self.name, self.uid)

    def environment_token_secret(self, environment: str) -> str:
        """Return the name of the Secret with the token of the pods of an environment."""
        return names.environment_token_secret(self.name, environment, self.uid)

    def owner_reference(self) -> dict[str, Any]:
        """Return the owner reference of a child.

        It makes the garbage collector delete the child with the job, also while the operator is down.
        """
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def labels(self, component: Component | None = None) -> dict[str, str]:
        """Return the labels of a child."""
        labels = {
            "app.kubernetes.io/name": "longshore",
            "app.kubernetes.io/instance": self.name,
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_JOB: self.name,
        }
        if component is not None:
            labels["app.kubernetes.io/component"] = component.value
            labels[names.LABEL_COMPONENT] = component.value
        return labels

    def pod_labels(self, component: Component, index: int, attempt: int) -> dict[str, str]:
        """Return the labels that say which pod of the job a pod is."""
        return self.labels(component) | {names.LABEL_ATTEMPT: str(attempt), names.LABEL_INDEX: str(index)}

    def metadata(self, name: str, component: Component | None = None) -> dict[str, Any]:
        """Return the metadata of a child."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(component),
            "ownerReferences": [self.owner_reference()],
        }


def controller(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference to the controlling owner; empty without one."""
    return next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), {})


def fingerprint(value: Any) -> str:
    """Return sixteen hexadecimal digits that depend on the JSON value alone."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]

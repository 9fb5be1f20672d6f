"""The RLJob resource."""

from typing import Any, Final, Literal

from pydantic import Field

from longshore.api import names
from longshore.api.base import ApiModel
from longshore.api.rules import Rule
from longshore.api.spec import RLJobSpec
from longshore.api.status import RLJobStatus

_RULES: Final = (
    Rule(
        "",
        f"!has(self.metadata.name) || size(self.metadata.name) <= {names.MAX_JOB_NAME_LENGTH}",
        f"metadata.{names.JOB_NAME_LENGTH_RULE}",
    ),
    Rule(
        "",
        f"!has(self.metadata.name) || self.metadata.name.matches('{names.JOB_NAME_PATTERN}')",
        f"metadata.{names.JOB_NAME_FORM_RULE}",
    ),
)


class RLJob(ApiModel, rules=_RULES):
    """Reinforcement-learning training of a language model.

    Longshore samples responses, scores them and trains the model on them.
    """

    api_version: Literal["longshore.dev/v1alpha1"] = names.API_VERSION
    """API version, longshore.dev/v1alpha1."""
    kind: Literal["RLJob"] = names.KIND
    """Kind of the object, RLJob."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Name, namespace, labels and annotations of the job."""
    spec: RLJobSpec
    """What the job trains, on which prompts and rewards, with which pods, and where its files are."""
    status: RLJobStatus = Field(default_factory=RLJobStatus)
    """What the job does now and what it has done so far, as the operator and the coordinator report it."""

    def _written(self) -> Any:
        """Return what the rules read: not the status, in which others may write anything."""
        return {"metadata": {} if self.name is None else {"name": self.name}}

    @property
    def name(self) -> str | None:
        """Name of the job; None where its metadata has none."""
        return str(self.metadata["name"]) if "name" in self.metadata else None

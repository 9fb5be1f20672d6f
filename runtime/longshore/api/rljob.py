"""The RLJob resource."""

from typing import Any, Literal

from pydantic import Field, field_validator

from longshore.api.base import ApiModel
from longshore.api.names import API_VERSION, KIND, job_name_mistake
from longshore.api.spec import RLJobSpec
from longshore.api.status import RLJobStatus


class RLJob(ApiModel):
    """A reinforcement-learning job as stored in the API server."""

    api_version: Literal["longshore.dev/v1alpha1"] = API_VERSION
    """longshore.dev/v1alpha1"""
    kind: Literal["RLJob"] = KIND
    """RLJob"""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Name, namespace, labels and so on."""
    spec: RLJobSpec
    """What a user asks for."""
    status: RLJobStatus = Field(default_factory=RLJobStatus)
    """What is."""

    @field_validator("metadata")
    @classmethod
    def _check_name(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        """Refuse names that the job's children cannot have."""
        mistake = job_name_mistake(str(metadata["name"])) if "name" in metadata else None
        if mistake is not None:
            raise ValueError(mistake)
        return metadata

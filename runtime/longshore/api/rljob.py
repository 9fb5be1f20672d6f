"""The RLJob resource."""

from typing import Literal

from pydantic import Field

from longshore.api.base import ApiModel, Freeform
from longshore.api.names import API_VERSION, KIND
from longshore.api.spec import RLJobSpec
from longshore.api.status import RLJobStatus


class RLJob(ApiModel):
    """A reinforcement-learning job as stored in the API server."""

    api_version: Literal["longshore.dev/v1alpha1"] = API_VERSION
    """longshore.dev/v1alpha1"""
    kind: Literal["RLJob"] = KIND
    """RLJob"""
    metadata: Freeform = Field(default_factory=dict)
    """Name, namespace, labels and so on."""
    spec: RLJobSpec
    """What a user asks for."""
    status: RLJobStatus = Field(default_factory=RLJobStatus)
    """What is."""

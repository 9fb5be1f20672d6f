"""Services that get the metrics and traces of a job. Only the coordinator connects to them."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field

from longshore.api.addresses import HttpAddress
from longshore.api.base import ApiModel
from longshore.api.rules import Rule
from longshore.api.secrets import SecretKey

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_WANDB: Final = "https://api.wandb.ai"


class WandbMode(StrEnum):
    """Whether Weights & Biases is reached while the job runs."""

    ONLINE = "Online"
    OFFLINE = "Offline"


_WANDB_RULES: Final = (
    Rule(
        "tokenSecret",
        "self.mode != 'Online' || has(self.tokenSecret)",
        "tokenSecret is required with mode Online: name a Secret with an API key, or set mode to Offline",
    ),
)


class Wandb(ApiModel, rules=_WANDB_RULES):
    """Weights & Biases. Its package must be in the image of the coordinator (`longshore[trackers]`)."""

    address: HttpAddress | None = None
    """Address of your own server. Unset: https://api.wandb.ai."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """User or team that owns the run. Unset: the default of the token."""
    mode: WandbMode = WandbMode.ONLINE
    """When the run is sent. Offline: it is written to `wandb/` in the output, for `wandb sync`."""
    token_secret: SecretKey | None = None
    """Secret with the API key."""


class Mlflow(ApiModel):
    """MLflow. Its package must be in the image of the coordinator (`longshore[trackers]`)."""

    address: HttpAddress
    """Address of the tracking server."""
    user: str | None = Field(default=None, min_length=1, max_length=128)
    """User name for basic authentication; the token is the password. Unset: the token is a bearer token."""
    token_secret: SecretKey | None = None
    """Secret with the bearer token, or with the password of `user`."""


class OpenTelemetry(ApiModel):
    """Collector that gets traces by OTLP over HTTP: a span for every step, its phases and its longest responses."""

    endpoint: HttpAddress
    """Base address of the collector, such as http://collector:4318."""
    token_secret: SecretKey | None = None
    """Secret with the bearer token."""


class Tracking(ApiModel):
    """Trackers that get the metrics and traces of the job.

    A tracker that cannot be reached never stops or slows the training.
    """

    project: str = Field(default="longshore", min_length=1, max_length=128)
    """Project of Weights & Biases, and experiment of MLflow."""
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run in the trackers. Unset: the name of the job."""
    group: str | None = Field(default=None, min_length=1, max_length=128)
    """Group of the run in Weights & Biases and MLflow. Unset: no group."""
    tensor_board: bool = True
    """Whether files for TensorBoard are written into `tensorboard/` of the output."""
    wandb: Wandb | None = None
    """Weights & Biases, where metrics are sent. Unset: it is not used."""
    mlflow: Mlflow | None = None
    """MLflow, where metrics are sent. Unset: it is not used."""
    open_telemetry: OpenTelemetry | None = None
    """Collector to which traces are sent. Unset: no traces are sent."""

    @property
    def secrets(self) -> dict[str, SecretKey]:
        """Secrets by the name of the file that the coordinator finds them in."""
        parts = {"wandb": self.wandb, "mlflow": self.mlflow, "openTelemetry": self.open_telemetry}
        return {
            name: part.token_secret
            for name, part in parts.items()
            if part is not None and part.token_secret is not None
        }

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages that the coordinator needs for it."""
        return tuple(name for name in ("wandb", "mlflow") if getattr(self, name) is not None)

    @property
    def ports(self) -> list[int]:
        """Ports of the trackers that the coordinator connects to."""
        return sorted({_port(address) for address in self._addresses()})

    def _addresses(self) -> Iterator[str]:
        if self.wandb is not None and self.wandb.mode is WandbMode.ONLINE:
            yield self.wandb.address or _WANDB
        if self.mlflow is not None:
            yield self.mlflow.address
        if self.open_telemetry is not None:
            yield self.open_telemetry.endpoint


def _port(address: str) -> int:
    parts = urlsplit(address)
    return parts.port or _DEFAULT_PORTS[parts.scheme]

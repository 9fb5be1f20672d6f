"""Where models and data sets come from that are not in the storage yet: the Hugging Face Hub, or a mirror of it."""

from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from longshore.api.addresses import HttpAddress
from longshore.api.base import ApiModel
from longshore.api.secrets import SecretKey

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def _is_no_address(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        raise PydanticCustomError("repository", "write OWNER/NAME, without the address of the Hub")
    return value


Repository = Annotated[
    str,
    Field(max_length=193, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}$"),
    BeforeValidator(_is_no_address),
]
"""A repository of the Hub, as `Qwen/Qwen2.5-1.5B`."""
Revision = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")]
"""A branch, a tag or a commit."""


class Hub(ApiModel):
    """Hugging Face Hub, or a mirror of it.

    `model.hub` and `data.hub` are downloaded from it once, into the storage of the job.
    """

    endpoint: HttpAddress | None = None
    """Address of a mirror of the Hub. Unset: `HF_ENDPOINT` of the coordinator, or else https://huggingface.co."""
    token_secret: SecretKey | None = None
    """Secret with the token for private and gated repositories. Only the coordinator pod mounts it."""

    @property
    def port(self) -> int:
        """Port at which the Hub listens."""
        parts = urlsplit(self.endpoint or DEFAULT_ENDPOINT)
        return parts.port or _DEFAULT_PORTS[parts.scheme]

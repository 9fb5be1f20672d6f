"""References to Secrets: a spec never holds a token itself."""

from pydantic import Field

from longshore.api.base import ApiModel


class SecretKey(ApiModel):
    """Key of a Secret in the namespace of the job."""

    name: str = Field(min_length=1, max_length=253)
    """Name of the Secret."""
    key: str = Field(default="token", min_length=1, max_length=253)
    """Key in the Secret."""

"""What a job keeps of its rounds besides metrics: responses as text, and who did what when."""

from pydantic import Field

from longshore.api.base import ApiModel, Quantity
from longshore.api.quantity import parse_bytes


class Records(ApiModel):
    """Responses of every step in the output of the job: `samples/` and `held-out/`. `rounds/` keeps 1 GiB."""

    sample_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the prompts whose responses are kept as text, in whole groups. 0: none."""
    max_samples_size: Quantity = "4Gi"
    """Largest size of `samples/`, and of `held-out/`. The oldest steps are deleted first."""

    @property
    def max_samples_bytes(self) -> int:
        """Largest size of all samples, in bytes."""
        return parse_bytes(self.max_samples_size)

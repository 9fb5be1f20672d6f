"""The slice of a job's spec that a judge needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

POOL_WAIT_S: Final = 900.0
MAX_ASKS: Final = 2
"""Times that a judge is asked about one response: again if its reply holds no score."""


@dataclass(frozen=True)
class StreamedJudgeOptions:
    """A judge in this process, most of whose layers may lie in host memory."""

    model: Path
    """Path of a Hugging Face directory."""
    accelerator: bool
    """Whether a GPU is assigned; otherwise it runs on the CPU."""
    reserved_bytes: int | None = None
    """Bytes of GPU memory that the judge may take; None: what is free when a batch starts."""
    max_batch: int = 32
    """Largest number of samples that run together."""
    timeout_s: float | None = None
    """Limit of a call per prompt in it; None: no limit."""


@dataclass(frozen=True)
class RemoteJudgeOptions:
    """A judge, or a teacher, behind an OpenAI-compatible HTTP interface."""

    url: str
    """Address up to and including /v1 (chat completions), or a full one that ends in /completions."""
    model: str
    """Name of the model at the endpoint."""
    token_file: Path | None = None
    """File with a bearer token; read again for every call, so that the token may rotate."""
    timeout_s: float = 60.0
    """Limit of one try, from connecting to the last byte."""
    connect_timeout_s: float | None = None
    """Limit of connecting alone, if it has one."""
    num_tries: int = 3
    """Number of tries when the server does not answer in time, fails (5xx) or cannot be reached."""
    retry_wait_s: float = 0.5
    """Seconds before the second try; they double each time, up to 10 s."""
    max_parallel: int = 16
    """Largest number of requests at a time."""


@dataclass(frozen=True)
class PoolJudgeOptions:
    """A judge that pods of the job serve."""

    directory: Path
    """Directory in which the pods publish their addresses."""
    num_replicas: int
    attempt: int
    """Attempt of the job; addresses of other attempts are void."""
    model: str
    """Name of the model at the servers."""
    token_file: Path | None
    """File that holds the bearer token."""
    timeout_s: float = 60.0
    """Limit of one request."""
    wait_s: float = POOL_WAIT_S
    """Longest wait while no pod can be reached: at the start, and while a lost one is replaced."""


@dataclass(frozen=True)
class JudgeOptions:
    """A judge: its question, how its reply is read, and its model."""

    name: str
    """Name of the reward function in messages."""
    model: StreamedJudgeOptions | RemoteJudgeOptions | PoolJudgeOptions
    template: str
    """Template with {prompt}, {response} and {answer}; {{ and }} stand for braces."""
    score_pattern: str
    """Regular expression with one group, the number; its last match in a reply counts."""
    score_min: float
    """Score that becomes reward 0."""
    score_max: float
    """Score that becomes reward 1."""
    max_reply_tokens: int

"""What the page of a job shows. Texts in it were written by models and users: the page never reads them as HTML."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import RuntimeStatus

FORMAT: Final = 1
"""Grows when a page of this version cannot show what an older one sends."""


class PageModel(BaseModel):
    """Base of what is sent to the page. A newer sender may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Curves(PageModel):
    """Metrics by step, one column for each metric."""

    steps: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """Values by metric, one for each of `steps`; None where a step has no such metric."""
    steps_per_point: int = 1
    """Steps per point; a point is their mean."""


class Lengths(PageModel):
    """Distribution of response lengths, in tokens."""

    num: int
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    max: int


class RoundDigest(PageModel):
    """A round in one row."""

    step: int
    kind: RoundKind
    duration_s: float
    bubble_share: float
    queue_length: int
    """Draws in the long-prompt queue after the step."""
    num_responses: int
    outcomes: dict[str, int]
    """What became of responses: accepted, deferred and so on."""
    num_moved: int
    """Stays on an engine that ended because the response moved to another one."""
    num_aborted: int
    """Stays on an engine that ended because the response was aborted."""
    accepted: Lengths | None
    """Lengths of the responses that were trained on."""
    others: Lengths | None
    """Lengths of all other responses, as far as they had been sampled."""


class PageInterval(PageModel):
    """What a lane does for a while."""

    state: str
    start_s: float
    end_s: float


class PageStay(PageModel):
    """A response on an engine."""

    response: str
    row: int
    """Stays of a lane that overlap have different rows."""
    start_s: float
    end_s: float
    tokens: int
    end: str
    """finished, aborted, moved or lost."""
    outcome: str
    """What became of the response in this round."""
    reward: float | None = None
    """Reward of the response; None if it was not scored."""
    environment_s: float = 0.0
    """Seconds after the stay until the environment of an episode had answered its turn."""
    environment_share: float = 0.0
    """Share of the time of the whole episode that its environment took."""


class PageLane(PageModel):
    """A GPU, or a pod without GPUs, in a round."""

    label: str
    intervals: tuple[PageInterval, ...]
    stays: tuple[PageStay, ...] = ()
    num_rows: int = 0


class RoundView(PageModel):
    """The timeline of a round; times are seconds since the begin of its step."""

    step: int
    kind: RoundKind
    duration_s: float
    bubble_share: float
    phases: tuple[PageInterval, ...]
    """Parts of the step: rollout, train, publish and so on."""
    lanes: tuple[PageLane, ...]
    seconds: dict[str, float]
    """Time of all lanes together, by state."""
    num_stays: int
    """Stays of all responses; the lanes show the longest ones where these are too many."""


class SampleTurn(PageModel):
    """A message of an episode."""

    role: str
    text: str
    calls: str = ""
    """Tools that the model called, as JSON."""
    branch: int = 0
    """Number of the conversation that the message is of: an episode may have several."""


class SampleResponse(PageModel):
    """A response, and what became of it."""

    index: int
    text: str
    left_out_characters: int = 0
    """At the end of a very long text."""
    tokens: int
    finish_reason: str
    reward: float | None
    penalty: float
    advantage: float | None
    timed_out: bool
    rewards: dict[str, float | None]
    """By reward function, unweighted."""
    versions: tuple[tuple[int | None, int], ...]
    """(policy version, tokens), in the order in which they were sampled; None: an environment said them."""
    engines: tuple[int, ...]
    engine_s: float
    turns: tuple[SampleTurn, ...] = ()
    """Conversation of an episode, after the prompt; `text` is the last turn of the model."""
    environment_s: float | None = None
    """Time that the environment of an episode took."""
    state: str = ""
    """Beginning of the final state of an environment, as JSON."""

    @property
    def num_characters(self) -> int:
        """Number of characters of all its texts."""
        return len(self.text) + len(self.state) + sum(len(turn.text) + len(turn.calls) for turn in self.turns)


class SampleGroup(PageModel):
    """A prompt and the responses of its group."""

    draw: str
    prompt_index: int
    domain: str
    outcome: str
    prompt: str
    excerpt: str = ""
    """Begin of the part of the prompt that other prompts of the step do not have, without the chat template."""
    answer: str
    tokens: tuple[int, ...]
    """Tokens of each response."""
    scores: tuple[float | None, ...]
    """Rewards of each response."""
    responses: tuple[SampleResponse, ...] = ()
    """Empty in a list of groups."""


class ConditionView(PageModel):
    """A condition of the RLJob."""

    type: str
    status: str
    reason: str
    message: str
    time: str


class PageEvent(PageModel):
    """A Kubernetes event about the job."""

    time: str
    type: str
    reason: str
    message: str
    count: int = 1


class ClusterView(PageModel):
    """What the API server knows of the job, as far as the reader may see it."""

    name: str = ""
    phase: str
    is_finished: bool
    attempt: int
    failures: int
    gpus: dict[str, int]
    """By role."""
    conditions: tuple[ConditionView, ...]
    events: tuple[PageEvent, ...] | None
    """Oldest first; None: the reader may not list events."""


class JobHead(PageModel):
    """What a job is, and what the page needs of its configuration."""

    name: str
    namespace: str
    strategy: str
    steps: int
    max_response_tokens: int
    max_mismatch: float | None
    """Past this mean mismatch of log-probabilities a step is not trained on."""
    functions: tuple[str, ...]
    """Names of the reward functions."""
    spec: dict[str, Any]
    """The configuration, with all defaults."""


class JobPageView(PageModel):
    """Everything that the page shows at once; rounds and samples are read one by one unless they are inlined."""

    format: int = FORMAT
    written_s: float
    """Unix time."""
    job: JobHead
    runtime: RuntimeStatus | None
    """What the coordinator reports."""
    curves: Curves
    digests: tuple[RoundDigest, ...]
    """Digests of the last rounds, oldest first."""
    round_steps: tuple[int, ...]
    """Steps that have a timeline."""
    sample_steps: tuple[int, ...]
    """Steps that have samples."""
    held_out_steps: tuple[int, ...] = ()
    """Steps after which held-out prompts were evaluated, and that have samples of it."""
    cluster: ClusterView | None = None
    """In a report; a live page asks for it."""
    rounds: dict[int, RoundView] = Field(default_factory=dict)
    """In a report."""
    samples: dict[int, tuple[SampleGroup, ...]] = Field(default_factory=dict)
    """In a report."""
    held_out: dict[int, tuple[SampleGroup, ...]] = Field(default_factory=dict)
    """In a report."""

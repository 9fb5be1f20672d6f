"""What a response acts in: environments that answer the policy, turn by turn."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.base import ApiModel, ImportPath
from longshore.api.rules import Rule


class EnvironmentKind(StrEnum):
    """What an environment is made of."""

    TASK = "Task"
    PYTHON = "Python"


_IMPORTS_MEMORY_BYTES: Final = 1 << 30
"""Memory of the process that has an environment's imports, from which those of the episodes are forked."""
_EPISODE_MEMORY_BYTES: Final = 32 << 20

_ENVIRONMENT_RULES: Final = (
    Rule(
        "kind",
        "(self.kind == 'Python') == (has(self.importPath) || has(self.tools))",
        "importPath and tools belong to kind Python, which needs one of them: set kind and one of them, or neither",
    ),
    Rule(
        "tools",
        "!has(self.importPath) || !has(self.tools)",
        "tools are functions for an environment without a class: remove them, or importPath",
    ),
)


class Environment(ApiModel, rules=_ENVIRONMENT_RULES):
    """An environment in which the responses to its rows act: a response is then an episode of several turns.

    Each turn is sampled from the tokens of all before it. What the environment says is never trained on.
    """

    name: str = Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    """Name of the environment in metrics and messages."""
    kind: EnvironmentKind
    """What the environment is made of. Task: the built-in task. Python: a class at `importPath`, or functions in
    `tools`."""
    import_path: ImportPath | None = None
    """Python class as `package.module:Class`, for kind Python. An episode has an instance of its own, which begins with
    `reset(**row)`. Its public methods are tools, or `reply(message)` answers each turn and returns None at the end.
    `get_reward()`, if it has that, is the reward of the episode (kind Environment of reward functions)."""
    tools: Annotated[list[ImportPath], Field(min_length=1, max_length=64)] | None = None
    """Python functions as `package.module:function`, for kind Python, which the model may call. An episode ends with a
    turn that calls none."""
    domains: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=64)] = Field(default_factory=list)
    """Domains (`data.domainField`) whose rows act in the environment. Empty: all rows do. A row acts in the first
    environment that has its domain."""
    max_turns: int = Field(default=8, ge=1, le=1_000)
    """Largest number of turns of an episode, which ends after the last one."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of one turn. Unset: only the episode is limited, by `algorithm.maxResponseTokens`, which
    also counts what the environment says."""
    call_timeout_s: float = Field(default=10.0, gt=0, le=3_600, alias="callTimeoutSeconds")
    """Seconds after which `reset`, a tool, `reply` or `get_reward` is cut off. The episode then has failed."""
    episode_timeout_s: float = Field(default=3_600.0, gt=0, le=86_400, alias="episodeTimeoutSeconds")
    """Seconds that the environment may take for an episode, all calls together. The episode then has failed."""
    episodes_per_pod: int = Field(default=64, ge=1, le=4_096)
    """Largest number of episodes that a reward pod runs at once, each in a process of its own."""
    retries: int = Field(default=2, ge=0, le=100)
    """Number of further attempts after an episode has failed, each from its beginning. After the last one, a fresh draw
    replaces its group, which is counted."""

    @property
    def code_field(self) -> str:
        """Field that names its code, for messages."""
        return f"environments[{self.name}].{'tools' if self.tools else 'importPath'}"

    @property
    def pod_memory_bytes(self) -> int:
        """Memory that the environment takes in a reward pod with as many episodes as it may have."""
        return _IMPORTS_MEMORY_BYTES + self.episodes_per_pod * _EPISODE_MEMORY_BYTES


def environment_of(environments: Sequence[Environment], domain: str) -> Environment | None:
    """Return the environment in which responses to rows of a domain act; None: a response is one turn."""
    return next((one for one in environments if not one.domains or domain in one.domains), None)

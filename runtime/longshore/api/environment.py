"""What a response acts in: environments that answer the policy, turn by turn, and the pods that host them."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api.addresses import AddressBlock, HttpAddress
from longshore.api.base import ApiModel, Freeform, ImportPath, Requests
from longshore.api.pods import PodOptions
from longshore.api.rules import Rule, belongs


class EnvironmentKind(StrEnum):
    """What an environment is made of."""

    TASK = "Task"
    PYTHON = "Python"
    AGENT = "Agent"
    VERIFIERS = "Verifiers"
    OPEN_ENV = "OpenEnv"


_IMPORTS_MEMORY_BYTES: Final = 1 << 30
"""Memory of the process that has an environment's imports, from which those of the episodes are forked."""
_EPISODE_MEMORY_BYTES: Final = 32 << 20
PYTHON_TOOL: Final = "longshore_runtime.tools:python"
"""Tool that executes Python in the sandbox."""
INTERPRETER_MEMORY_BYTES: Final = 128 << 20
"""Memory that the programs of one episode with that tool may use together."""


class VerifiersEnvironment(ApiModel):
    """An environment of the `verifiers` package, which runs under a Python of its own."""

    id: str = Field(min_length=1, max_length=256)
    """Id of a taskset, such as `textarena`; before verifiers 0.4, name of the package of an environment."""
    arguments: Freeform = Field(default_factory=dict)
    """Fields of the configuration of the environment, such as `{taskset: {game: Wordle-v0}}`; before verifiers 0.4,
    arguments of its `load_environment`."""
    python: str = Field(default="python", min_length=1, max_length=4096)
    """Python of the environment that has `verifiers` and the package, in the image."""


_ENVIRONMENT_RULES: Final = (
    Rule(
        "kind",
        "self.kind == 'Python' ? (has(self.importPath) || has(self.tools)) : !has(self.tools)",
        "kind Python needs importPath or tools, which belongs to it alone: set one of them, or remove tools",
    ),
    Rule(
        "kind",
        "self.kind == 'Agent' ? has(self.importPath) != has(self.command) : !has(self.command)",
        "kind Agent needs either importPath or command, which belongs to it alone: set one of them, or remove command",
    ),
    Rule(
        "kind",
        "(self.kind == 'Verifiers') == has(self.verifiers)",
        "kind Verifiers and the field verifiers belong together: set both, or neither",
    ),
    Rule(
        "importPath",
        "!has(self.importPath) || self.kind in ['Python', 'Agent']",
        "importPath belongs to kinds Python and Agent: remove it, or set kind",
    ),
    Rule(
        "tools",
        "!has(self.importPath) || !has(self.tools)",
        "tools are functions for an environment without a class: remove them, or importPath",
    ),
    belongs("url", "kind", EnvironmentKind.OPEN_ENV),
)


class Egress(ApiModel):
    """Addresses that the pods of an environment may connect to."""

    cidr: AddressBlock
    """Block of IP addresses, such as 203.0.113.0/24. 0.0.0.0/0 is every IPv4 address. The addresses at which clouds
    tell their machines credentials are always left out."""
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65_535)]], Field(min_length=1, max_length=32)]
    """Ports of TCP."""


class EnvironmentPods(PodOptions):
    """Pods that host one environment. They have no volume and no token of the job, and reach nothing by default."""

    count: int = Field(default=1, ge=1, le=1_024)
    """Number of pods of the environment."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of the pods, which has the runtime of the same version of Longshore, and what the environment imports.
    Unset: the image of the job."""
    resources: Requests = Field(default_factory=dict)
    """Requests of a pod for CPU, memory and other resources; memory and ephemeral-storage are limited to what it
    requests. Unset: it requests 500m, and a memory of 1Gi and 32Mi for each of `episodesPerPod` (160Mi with the tool
    that executes Python), and its disk has no limit."""
    runtime_class_name: str | None = Field(default=None, max_length=253)
    """RuntimeClass of the pods, such as gvisor or kata. Unset: the default of the cluster."""
    egress: Annotated[list[Egress], Field(max_length=32)] = Field(default_factory=list)
    """What the pods may connect to, where network policies are enforced. With an entry or `url`, they may also ask the
    name servers of the cluster. Empty: nothing, or these and the port of `url`."""


class Environment(ApiModel, rules=_ENVIRONMENT_RULES):
    """An environment in which the responses to its rows act: a response is then an episode of several turns.

    Each turn is sampled from the tokens of all before it. What the environment says is never trained on.
    """

    name: str = Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    """Name of the environment in metrics and messages."""
    kind: EnvironmentKind
    """What the environment is made of. Task: the built-in task. Python: a class at `importPath`, or functions in
    `tools`. Agent: a program, or a function at `importPath`, that asks the model over an OpenAI-compatible API.
    Verifiers: an environment of the `verifiers` package. OpenEnv: a server at `url`."""
    import_path: ImportPath | None = None
    """Python class as `package.module:Class`, for kind Python. An episode has an instance of its own, which begins with
    `reset(**row)`. Its public methods are tools, or `reply(message)` answers each turn and returns None at the end.
    `get_reward()`, if it has that, is the reward of the episode (kind Environment of reward functions). For kind Agent,
    a function `run(row)` that returns the reward, or None."""
    command: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(min_length=1, max_length=64)] | None = None
    """Program with its arguments, for kind Agent. It finds the API in `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and the
    row as JSON in the file that `LONGSHORE_ROW` names. It may post `{"reward": 1.0}` to `$OPENAI_BASE_URL/finish`."""
    tools: Annotated[list[ImportPath], Field(min_length=1, max_length=64)] | None = None
    """Python functions as `package.module:function`, for kind Python, which the model may call. An episode ends with a
    turn that calls none. `longshore_runtime.tools:python` executes Python in a sandbox and keeps its state for the
    episode."""
    verifiers: VerifiersEnvironment | None = None
    """Environment of the `verifiers` package, for kind Verifiers."""
    url: HttpAddress | None = None
    """Address of an OpenEnv server, for kind OpenEnv. Each episode is a session there, and its reward is the sum of the
    rewards of all steps."""
    domains: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=64)] = Field(default_factory=list)
    """Domains (`data.domainField`) whose rows act in the environment. Empty: all rows do. A row acts in the first
    environment that has its domain."""
    max_turns: int = Field(default=8, ge=1, le=1_000)
    """Largest number of turns of an episode, which ends after the last one."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of one turn. Unset: only the episode is limited, by `algorithm.maxResponseTokens`, which
    also counts what the environment says."""
    call_timeout_s: float = Field(default=10.0, gt=0, le=3_600, alias="callTimeoutSeconds")
    """Seconds after which `reset`, a tool, `reply` or `get_reward` is cut off, or an agent that neither asks the model
    nor ends. The episode then has failed."""
    episode_timeout_s: float = Field(default=3_600.0, gt=0, le=86_400, alias="episodeTimeoutSeconds")
    """Seconds that the environment may take for an episode, all calls together. The episode then has failed."""
    episodes_per_pod: int = Field(default=64, ge=1, le=4_096)
    """Largest number of episodes that a pod of the environment runs at once, each in a process of its own."""
    pods: EnvironmentPods = Field(default_factory=EnvironmentPods)
    """Pods that host the environment and nothing else."""
    retries: int = Field(default=2, ge=0, le=100)
    """Number of further attempts after an episode has failed, each from its beginning. After the last one, a fresh draw
    replaces its group, which is counted."""

    @property
    def code_field(self) -> str:
        """Field that names its code, for messages."""
        fields = {
            EnvironmentKind.VERIFIERS: "verifiers",
            EnvironmentKind.OPEN_ENV: "url",
            EnvironmentKind.AGENT: "command",
            EnvironmentKind.PYTHON: "tools",
        }
        field = "importPath" if self.import_path else fields.get(self.kind, "kind")
        return f"environments[{self.name}].{field}"

    @property
    def is_agent(self) -> bool:
        """Whether it is a program that asks the model, instead of one that answers it."""
        return self.kind in (EnvironmentKind.AGENT, EnvironmentKind.VERIFIERS)

    @property
    def pod_memory_bytes(self) -> int:
        """Memory of a pod of the environment that requests none, with as many episodes as it may have."""
        interpreter_bytes = INTERPRETER_MEMORY_BYTES if PYTHON_TOOL in (self.tools or ()) else 0
        return _IMPORTS_MEMORY_BYTES + self.episodes_per_pod * (_EPISODE_MEMORY_BYTES + interpreter_bytes)


def environment_pods(environments: Sequence[Environment]) -> list[Environment]:
    """Return the environment of every environment pod of a job, by its index."""
    return [one for one in environments for _ in range(one.pods.count)]


def environment_of(environments: Sequence[Environment], domain: str) -> Environment | None:
    """Return the environment in which responses to rows of a domain act; None: a response is one turn."""
    return next((one for one in environments if not one.domains or domain in one.domains), None)

"""What a response acts in: environments that answer the policy, turn by turn, and the pods that host them."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from longshore.api import contract
from longshore.api.addresses import AddressBlock, HttpAddress
from longshore.api.base import ApiModel, Freeform, ImportPath, Requests
from longshore.api.pods import PodOptions
from longshore.api.rules import Rule


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
_EPISODES_PER_POD: Final = 64
PYTHON_TOOL: Final = "longshore_runtime.tools:python"
"""Tool that executes Python in the sandbox."""
INTERPRETER_MEMORY_BYTES: Final = 128 << 20
"""Memory that the programs of one episode with that tool may use together."""


class VerifiersEnvironment(ApiModel):
    """An environment of the `verifiers` package, which runs under a Python of its own."""

    id: str = Field(min_length=1, max_length=256)
    """Id of a taskset, such as `textarena`; before verifiers 0.4, name of a package."""
    arguments: Freeform = Field(default_factory=dict)
    """Configuration of the environment, such as `{taskset: {game: Wordle-v0}}`; before verifiers 0.4, arguments of
    `load_environment`."""
    python: str = Field(default="python", min_length=1, max_length=4096)
    """Python interpreter in the image that has `verifiers`."""


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
    Rule(
        "kind",
        "self.kind == 'OpenEnv' ? has(self.url) != has(self.server) : !has(self.url) && !has(self.server)",
        "kind OpenEnv needs either url or server, which belong to it alone: set one of them, or remove them",
    ),
)


_SERVER_RULES: Final = (
    Rule(
        "port",
        f"self.port != {contract.ENVIRONMENT_PORT}",
        f"port {contract.ENVIRONMENT_PORT} of the pods is Longshore's own: let the server listen at another",
    ),
)


class ServerContainer(ApiModel, rules=_SERVER_RULES):
    """An OpenEnv server that each pod of an environment runs, in the container `server` beside Longshore's.

    It has neither tokens nor files of the job, and reaches what `pods.egress` grants.
    """

    image: str = Field(min_length=1, max_length=512)
    """Image of the server."""
    command: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(min_length=1, max_length=64)] | None = None
    """Program with its arguments, in place of what the image starts."""
    port: int = Field(default=8_000, ge=1, le=65_535)
    """TCP port at which the server listens."""
    env: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Variables of the server by name."""
    resources: Requests = Field(default_factory=dict)
    """Requests of the server for CPU, memory and other resources; memory and ephemeral-storage are limited to what it
    requests. Unset: 500m and 1Gi, and no limit of its disk."""


class Egress(ApiModel):
    """Addresses that the pods of an environment may connect to."""

    cidr: AddressBlock
    """Block of IP addresses, such as 203.0.113.0/24. Metadata addresses of clouds are always left out."""
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65_535)]], Field(min_length=1, max_length=32)]
    """Ports of TCP."""


class EnvironmentPods(PodOptions):
    """Pods that host one environment. They have no volume and no token of the job, and reach nothing by default."""

    count: int = Field(default=1, ge=1, le=1_024)
    """Number of pods of the environment."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of the pods, with the runtime of the same version of Longshore. Unset: the image of the job."""
    resources: Requests = Field(default_factory=dict)
    """Requests of a pod; memory and ephemeral-storage are also limits. Unset: 500m, and 1Gi plus 32Mi for each of
    `episodesPerPod` (160Mi with the tool that executes Python)."""
    runtime_class_name: str | None = Field(default=None, max_length=253)
    """RuntimeClass of the pods, such as gvisor or kata. Unset: the default of the cluster."""
    egress: Annotated[list[Egress], Field(max_length=32)] = Field(default_factory=list)
    """What the pods may connect to, where network policies are enforced, besides `url` and the name servers that it
    needs. Empty: nothing else."""


class Environment(ApiModel, rules=_ENVIRONMENT_RULES):
    """An environment in which the responses to its rows act: a response is then an episode of several turns.

    Each turn is sampled from the tokens of all before it. What the environment says is never trained on.
    """

    name: str = Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    """Name of the environment in metrics and messages."""
    kind: EnvironmentKind
    """What the environment is. Task: the built-in task. Python: a class at `importPath`, or `tools`. Agent: a program
    or function that asks the model over an OpenAI-compatible API. Verifiers: an environment of the `verifiers` package.
    OpenEnv: a server at `url`, or a `server` of the pods."""
    import_path: ImportPath | None = None
    """Class as `package.module:Class` for kind Python, with `reset(**row)`, public methods as tools or
    `reply(message)`, and optionally `get_reward()` and `get_state()`. For kind Agent, a function `run(row)` that
    returns the reward, None, or a dictionary of `reward` and `state`."""
    command: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(min_length=1, max_length=64)] | None = None
    """Program with its arguments, for kind Agent. `OPENAI_BASE_URL` and `OPENAI_API_KEY` lead to the API; the file
    `LONGSHORE_ROW` has the row as JSON."""
    tools: Annotated[list[ImportPath], Field(min_length=1, max_length=64)] | None = None
    """Functions as `package.module:function` that the model may call, for kind Python. `longshore_runtime.tools:python`
    executes Python in a sandbox."""
    verifiers: VerifiersEnvironment | None = None
    """Environment of the `verifiers` package, for kind Verifiers."""
    url: HttpAddress | None = None
    """Address of an OpenEnv server, for kind OpenEnv. The reward is the sum over all steps."""
    server: ServerContainer | None = None
    """OpenEnv server that the pods run themselves, for kind OpenEnv in place of `url`."""
    domains: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=64)] = Field(default_factory=list)
    """Domains whose rows act in the environment; the first environment that has the domain counts. Empty: all rows."""
    max_turns: int = Field(default=8, ge=1, le=1_000)
    """Largest number of turns of an episode."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of one turn. Unset: only `algorithm.maxResponseTokens` limits the episode."""
    call_timeout_s: float = Field(default=10.0, gt=0, le=3_600, alias="callTimeoutSeconds")
    """Seconds after which one call of the environment, or an agent that neither asks the model nor ends, is cut off.
    The episode has then failed."""
    episode_timeout_s: float = Field(default=3_600.0, gt=0, le=86_400, alias="episodeTimeoutSeconds")
    """Seconds that all calls of an episode may take. The episode has then failed."""
    episodes_per_pod: int | None = Field(default=None, ge=1, le=4_096)
    """Largest number of episodes that a pod runs at once, each in its own process: the sessions of its `server`. Unset:
    64, or 1 with `server`."""
    pods: EnvironmentPods = Field(default_factory=EnvironmentPods)
    """Pods that host the environment and nothing else."""
    retries: int = Field(default=2, ge=0, le=100)
    """Number of further attempts after an episode has failed. After the last, a fresh draw replaces its group."""

    @property
    def code_field(self) -> str:
        """Field that names its code, for messages."""
        fields = {
            EnvironmentKind.VERIFIERS: "verifiers",
            EnvironmentKind.OPEN_ENV: "url" if self.server is None else "server",
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
    def most_episodes(self) -> int:
        """Largest number of episodes that a pod runs at once."""
        if self.episodes_per_pod is None:
            return _EPISODES_PER_POD if self.server is None else 1
        return self.episodes_per_pod

    @property
    def pod_memory_bytes(self) -> int:
        """Memory of a pod of the environment that requests none, with as many episodes as it may have."""
        interpreter_bytes = INTERPRETER_MEMORY_BYTES if PYTHON_TOOL in (self.tools or ()) else 0
        return _IMPORTS_MEMORY_BYTES + self.most_episodes * (_EPISODE_MEMORY_BYTES + interpreter_bytes)


def environment_pods(environments: Sequence[Environment]) -> list[Environment]:
    """Return the environment of every environment pod of a job, by its index."""
    return [one for one in environments for _ in range(one.pods.count)]


def environment_of(environments: Sequence[Environment], domain: str) -> Environment | None:
    """Return the environment in which responses to rows of a domain act; None: a response is one turn."""
    return next((one for one in environments if not one.domains or domain in one.domains), None)

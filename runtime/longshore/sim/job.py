"""The description of a job to simulate."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from longshore.api.environment import Environment, EnvironmentKind
from longshore.api.pods import Workers
from longshore.api.quantity import parse_bytes
from longshore.api.reward import Reward
from longshore.api.rollout import Handover, Parallelism, RepurposeTrigger, Rollout
from longshore.api.shapes import is_possible
from longshore.api.spec import Placement, RLJobSpec
from longshore.checks.model_limits import possible_tp_sizes
from longshore.policy import tail_batching
from longshore.policy.adaptive_timeout import TimeoutSettings
from longshore.policy.long_round_updates import divided, divides_long_rounds
from longshore.policy.old_log_probs import is_relative_to_trainer
from longshore.policy.round_policy import BatchShape
from longshore.sim.costs import Costs
from longshore.sim.hardware import GpuModel, ModelShape
from longshore.sim.lengths import Accuracy, LengthModel, LognormalEpisodes, LognormalLengths
from longshore.sim.profile import Profile
from longshore.sim.rewards import MathsRewards, RewardTimes

_MAX_TO_MEDIAN: Final = 28
"""Longest over median response; RollPacker, section 1: 25 to 32."""
_MAX_TO_P75: Final = 16
"""Longest over third quartile: RollPacker, section 2.2: 755 to 1,100 tokens of 16,384."""
_MEAN_PROMPT_TOKENS: Final = 256
_ANSWER_S: Final = 1.0
"""Median time of an environment to answer a turn, of which nothing is known."""
_TASK_ANSWER_S: Final = 0.001
"""The same of the built-in task."""


_CRITIC_FORWARDS: Final = 4
"""Forward passes that a critic costs: its values before the first update, a pass forward, and one back, which costs as
much as two."""


class Training(StrEnum):
    """When the trainer computes."""

    AFTER_ROUND = "AfterRound"
    """When the batch is complete and scored."""
    STREAMED = "Streamed"
    """On GPUs that the scale-down policy frees while the round runs; one update at the end."""
    PIPELINED = "Pipelined"
    """On GPUs of its own, U groups by U groups while the round runs."""


@dataclass(frozen=True)
class GpuPool:
    """GPUs of one kind, in pods of one size."""

    gpu: GpuModel
    num_gpus: int
    gpus_per_pod: int = 8

    @property
    def shape(self) -> tuple[int, int]:
        """GPUs of a pod, and number of pods."""
        pods = self.pods()
        return len(pods[0]), len(pods)

    def pods(self, first_gpu: int = 0) -> tuple[tuple[int, ...], ...]:
        """Return the GPU numbers of each pod."""
        return self.split(min(self.gpus_per_pod, self.num_gpus), first_gpu)

    def split(self, size: int, first_gpu: int = 0) -> tuple[tuple[int, ...], ...]:
        """Return GPU numbers in groups of `size`; what is left over stays unused."""
        starts = range(first_gpu, first_gpu + self.num_gpus - size + 1, size)
        return tuple(tuple(range(start, start + size)) for start in starts)


@dataclass(frozen=True)
class Rewards:
    """The reward stage."""

    times: RewardTimes = field(default_factory=MathsRewards)
    num_workers: int = 64
    while_rolling_out: bool = True
    """Responses are scored as they finish; False: when the rollout is over."""
    adaptive_timeout: TimeoutSettings | None = None
    """Time limits learned from correct responses (RollPacker, section 4.3); None: those of `times`."""
    knows_reference_times: bool = False
    """The time limits begin with what the data's own solutions take, as those of RollPacker's published code do."""
    decide_races: bool = False
    """A response takes part in a race once it is scored, as in RollPacker's published code, and not when it ends: what
    a slow verifier holds up is left behind. Longshore's own policies never do so."""
    num_requests: int = 512
    """Requests to verifiers that are endpoints, open at a time."""


@dataclass(frozen=True)
class TrainerLayout:
    """How the trainer is spread over its GPUs, and when it computes."""

    training: Training = Training.AFTER_ROUND
    pool: GpuPool | None = None
    """GPUs of its own; None: those of the rollout, in turns."""
    gpus_per_replica: int = 1
    """Tensor times pipeline times context parallel."""
    lora_rank: int | None = None
    """See `Costs`."""
    num_extra_forwards: int = 0
    """See `TrainerShape`."""
    compares_with_trainer: bool = False
    """Whether steps of several updates need old log-probabilities of the trainer (`policy.old_log_probs`)."""
    num_epochs: int = 1
    """See `TrainerShape`."""
    groups_per_update: int | None = None
    """U; None: all of the batch."""
    divided_in: frozenset[Training] = frozenset()
    """Ways to train in which a long round makes several updates (`policy.long_round_updates`)."""
    scale_down_at: float | None = None
    """Streamed: GPUs are freed when the batch has this share of its groups, whatever the KV caches hold (the fixed
    triggers of RollPacker, section 6.6); None: the scale-down policy decides."""
    weighs_benefit: bool = True
    """Streamed: GPUs are freed only where that is expected to pay (`BenefitGate`); False: whenever the KV caches of the
    others hold what runs, which is all that RollPacker's Algorithm 1 asks for."""
    fetched_once_share: float | None = None
    """Streamed: freed GPUs take the groups that are there when they wake, up to this share of the batch, and no later
    ones (RollPacker, section 6.6); None: they take groups as these become trainable."""

    @property
    def divides_long_rounds(self) -> bool:
        """Whether a long round makes several updates."""
        return self.training in self.divided_in


@dataclass(frozen=True)
class SimJob:
    """A job: what an RLJob says, and what it leaves to reality."""

    rollout: Rollout
    shape: BatchShape
    model: ModelShape
    gpus: GpuPool
    """All GPUs, or those of the rollout where the trainer has its own."""
    lengths: LengthModel
    trainer: TrainerLayout = field(default_factory=TrainerLayout)
    rewards: Rewards = field(default_factory=Rewards)
    accuracy: Accuracy = field(default_factory=Accuracy)
    profile: Profile = field(default_factory=Profile)
    trainer_profile: Profile = field(default_factory=Profile)
    dynamic_sampling: bool = False
    plans_parallelism: bool = False
    """The parallelism planner chooses the tensor-parallel size of the engines, round kind by round kind."""
    num_prompts: int = 16_384
    """Rows of the data."""
    num_episode_places: int | None = None
    """Episodes that the pods of environments run at once; None: all."""
    samples_with_sglang: bool = False
    """Its engines keep room for what requests may still add, as systems do that Longshore is compared with."""
    max_context_tokens: int | None = None
    """Engines start only where their KV cache holds so many tokens, as those of vLLM; None: it is not known."""
    seed: int = 0

    def __post_init__(self) -> None:
        trainer, tp_size = self.trainer, self.rollout.engine.tensor_parallel_size
        pod_size, num_pods = self.gpus.shape
        if not is_possible(pod_size, num_pods, tp_size):
            raise ValueError(
                f"rollout.engine.tensorParallelSize: {tp_size} must divide the {pod_size} GPUs of a pod, or be a "
                f"multiple that {num_pods} pods hold whole"
            )
        if tp_size not in self.possible_tp_sizes:
            raise ValueError(
                f"rollout.engine.tensorParallelSize: engines of {tp_size} GPUs cannot divide the attention heads of "
                f"{self.model.name} ({self.model.num_heads}); set {_either(self.possible_tp_sizes)}"
            )
        if self.max_context_tokens is not None and self.kv_capacity_tokens(tp_size) < self.max_context_tokens:
            raise ValueError(
                f"rollout.engine: a KV cache of {self.kv_capacity_tokens(tp_size):,} tokens is below "
                f"model.maxContextTokens, {self.max_context_tokens:,}, so no engine starts; raise {self.kv_fields}"
            )
        if trainer.training is Training.PIPELINED and trainer.pool is None:
            raise ValueError("trainer: pipelined training needs GPUs of its own")
        if trainer.training is Training.STREAMED and trainer.pool is not None:
            raise ValueError("trainer: streamed training takes GPUs of the rollout, so it cannot have its own")
        if trainer.training is Training.STREAMED and self.groups_per_update != self.shape.num_prompts:
            raise ValueError("algorithm.promptsPerUpdate: a streamed step makes one update, of promptsPerStep")
        if self.dynamic_sampling and not self.rewards.while_rolling_out:
            raise ValueError("algorithm.dynamicSampling: rewards decide when a round ends, so they cannot wait for it")
        if self.trainer_pool.num_gpus % trainer.gpus_per_replica:
            raise ValueError(
                f"trainer: replicas of {trainer.gpus_per_replica} GPUs do not fill {self.trainer_pool.num_gpus} GPUs"
            )

    @property
    def num_gpus(self) -> int:
        """GPUs that the job holds."""
        return self.gpus.num_gpus + (self.trainer.pool.num_gpus if self.trainer.pool else 0)

    @property
    def possible_tp_sizes(self) -> tuple[int, ...]:
        """Sizes that engines can have in these pods, as far as the model's heads are known."""
        configured = self.rollout.engine.tensor_parallel_size
        return possible_tp_sizes(self.model.heads, *self.gpus.shape, configured)

    @property
    def trainer_pool(self) -> GpuPool:
        """GPUs that the trainer runs on."""
        return self.trainer.pool or self.gpus

    @property
    def groups_per_update(self) -> int:
        """U."""
        return self.trainer.groups_per_update or self.shape.num_prompts

    def loses_old_log_probs(self, training: Training) -> bool:
        """Return whether updates that need those of the trainer follow others while the round runs."""
        several = self.groups_per_update < self.shape.num_prompts
        return self.trainer.compares_with_trainer and several and training is Training.PIPELINED

    def update_sizes(self, num_updates: int) -> tuple[int, ...]:
        """Return U of each update of a round that makes so many if it is divided."""
        is_divided = num_updates > 1 and self.trainer.divides_long_rounds
        return divided(self.shape.num_prompts, num_updates) if is_divided else (self.groups_per_update,)

    def kv_capacity_tokens(self, tp_size: int) -> int:
        """Return the tokens that the KV cache of an engine of this size holds; ValueError if the weights do not fit.

        As measured, or else as `kvCache` says of engines of the job's own size: each GPU holds as much in others.
        """
        engine = self.rollout.engine
        if engine.kv_cache is None or tp_size in self.profile.kv_capacity_tokens:
            return self.engine_costs.kv_capacity_tokens(tp_size, engine.gpu_memory_utilization)
        num_bytes = parse_bytes(engine.kv_cache) * tp_size // engine.tensor_parallel_size
        return num_bytes // self.model.kv_bytes_per_token

    @property
    def kv_fields(self) -> str:
        """Fields of `rollout.engine` to raise for a larger KV cache."""
        has_bytes = self.rollout.engine.kv_cache is not None
        return "kvCache" if has_bytes else "gpuMemoryUtilization or tensorParallelSize"

    @property
    def engine_costs(self) -> Costs:
        """Costs of the engines."""
        return Costs(self.gpus.gpu, self.model, self.profile, self.trainer.lora_rank)

    @property
    def trainer_costs(self) -> Costs:
        """Costs of the trainer."""
        profile = self.trainer_profile if self.trainer.pool else self.profile
        return Costs(self.trainer_pool.gpu, self.model, profile, self.trainer.lora_rank)

    def with_rollout(self, rollout: Rollout) -> "SimJob":
        """Return the same job under another strategy."""
        return replace(self, rollout=rollout)


def _either(sizes: Sequence[int]) -> str:
    *others, last = map(str, sizes)
    return f"{', '.join(others)} or {last}" if others else last


def job_of(
    spec: RLJobSpec, model: ModelShape, gpu: GpuModel, lengths: LengthModel, profile: Profile | None = None
) -> SimJob:
    """Return the job of a manifest; reward times and accuracy are the defaults.

    Trainers that have GPUs of their own train after the round unless the job pipelines.
    """
    algorithm = spec.algorithm
    training_gpus = _pool(gpu, spec.training_pods)
    return SimJob(
        rollout=spec.rollout,
        shape=BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt),
        model=model,
        gpus=_pool(gpu, spec.workers),
        lengths=lengths,
        trainer=TrainerLayout(
            training=training_of(spec),
            pool=training_gpus if spec.placement is Placement.DISAGGREGATED else None,
            gpus_per_replica=training_gpus.num_gpus // (spec.trainer.data_parallel_size or training_gpus.num_gpus),
            lora_rank=None if spec.trainer.lora is None else spec.trainer.lora.rank,
            num_extra_forwards=int(algorithm.has_reference) + _CRITIC_FORWARDS * algorithm.objective.has_critic,
            compares_with_trainer=is_relative_to_trainer(algorithm.objective, algorithm.rollout_correction),
            num_epochs=algorithm.epochs_per_step,
            groups_per_update=algorithm.groups_per_update,
            divided_in=_divided_in(spec),
            scale_down_at=_fixed_fraction(spec.rollout),
        ),
        rewards=_rewards(spec.reward),
        profile=profile or Profile(),
        trainer_profile=profile or Profile(),
        dynamic_sampling=algorithm.dynamic_sampling,
        plans_parallelism=spec.rollout.engine.parallelism is Parallelism.ADAPTIVE,
        num_episode_places=_num_episode_places(spec),
        seed=algorithm.seed,
    )


def _num_episode_places(spec: RLJobSpec) -> int | None:
    """Return the episodes that environments run at once, as if several environments shared their places."""
    return sum(one.pods.count * one.most_episodes for one in spec.environments) if spec.environments else None


def _rewards(reward: Reward) -> Rewards:
    """Return reward workers and requests; without reward pods, the coordinator's count as those of one pod."""
    num_pods = max(1, reward.pods)
    return Rewards(num_workers=num_pods * reward.workers_per_pod, num_requests=num_pods * reward.requests_per_pod)


def _pool(gpu: GpuModel, pods: Workers) -> GpuPool:
    """Return the GPUs of pods; a pod without GPUs stands for one."""
    return GpuPool(gpu, pods.replicas * max(1, pods.gpus_per_pod), max(1, pods.gpus_per_pod))


def training_of(spec: RLJobSpec) -> Training:
    """Return when the trainer of a manifest computes; on shared GPUs, a pipelined handover trains after the round."""
    is_colocated = spec.placement is Placement.COLOCATED
    if spec.rollout.is_pipelined and not is_colocated:
        return Training.PIPELINED
    return Training.STREAMED if spec.rollout.repurposes and is_colocated else Training.AFTER_ROUND


def _divided_in(spec: RLJobSpec) -> frozenset[Training]:
    """Return the trainings whose handovers divide long rounds; the present one has the manifest's own handover."""
    own, algorithm = training_of(spec), spec.algorithm
    others = {one for one in Training if one is not own and divides_long_rounds(algorithm, Handover(str(one)))}
    return frozenset(others | {own} if divides_long_rounds(algorithm, spec.rollout.effective_handover) else others)


def _fixed_fraction(rollout: Rollout) -> float | None:
    settings = rollout.repurposing
    return settings.fraction if rollout.repurposes and settings.trigger is RepurposeTrigger.FIXED else None


def default_lengths(spec: RLJobSpec, prompt_tokens: int | None = None) -> LognormalLengths:
    """Return a long tail up to maxResponseTokens; `prompt_tokens`: mean length of a prompt, if it is known."""
    longest, prompt_tokens = spec.algorithm.max_response_tokens, prompt_tokens or mean_prompt_tokens(spec)
    lengths = LognormalLengths.from_quantiles(
        longest / _MAX_TO_MEDIAN, longest / _MAX_TO_P75, longest, mean_prompt_tokens=prompt_tokens
    )
    return replace(lengths, episodes=default_episodes(spec.environments))


def default_episodes(environments: Sequence[Environment]) -> LognormalEpisodes | None:
    """Return made-up episodes; with several environments, those of the first."""
    if not environments:
        return None
    first = environments[0]
    answer_s = _TASK_ANSWER_S if first.kind is EnvironmentKind.TASK else _ANSWER_S
    return LognormalEpisodes(first.max_turns, min(answer_s, first.call_timeout_s), first.call_timeout_s)


def mean_prompt_tokens(spec: RLJobSpec) -> int:
    """Return the usual mean prompt length, or what `maxContextTokens` and `maxPromptTokens` leave if less."""
    room = spec.model.max_context_tokens - spec.algorithm.max_response_tokens
    return max(1, min(_MEAN_PROMPT_TOKENS, spec.data.max_prompt_tokens, room))


def period(spec: RLJobSpec) -> int:
    """Return the rounds of a period of tail batching, short and long ones."""
    return sum(tail_batching.period(spec.rollout.tail_batching.prompt_factor, spec.algorithm.prompts_per_step))

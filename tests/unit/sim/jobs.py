"""Small jobs for the tests of the simulator."""

from longshore.api.rollout import (
    EngineSettings,
    OnPolicy,
    PartialRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, Rewards, SimJob, TrainerLayout
from longshore.sim.lengths import Accuracy, LengthModel, LognormalLengths
from longshore.sim.profile import Profile

LENGTHS = LognormalLengths.from_quantiles(200, 330, 4096, capped_share=0.01)
SHAPE = BatchShape(num_prompts=16, num_responses=4)
POOL = GpuPool(GPUS["H800"], num_gpus=8, gpus_per_pod=2)
IN_TURNS = TrainerLayout(gpus_per_replica=2)
MATHS = Rewards()
HALF_RIGHT = Accuracy()


def rollout(strategy: Strategy, eta: float = 1.25) -> Rollout:
    relaxed = strategy is Strategy.PARTIAL_ROLLOUT
    return Rollout(
        on_policy=OnPolicy.RELAXED if relaxed else OnPolicy.STRICT,
        strategy=strategy,
        tail_batching=TailBatchingSettings(prompt_factor=eta, response_factor=eta),
        partial_rollout=PartialRolloutSettings(group_factor=2.0),
        engine=EngineSettings(tensor_parallel_size=1, max_num_seqs=16),
    )


def job(
    strategy: Strategy = Strategy.SYNCHRONOUS,
    *,
    chosen: Rollout | None = None,
    shape: BatchShape = SHAPE,
    pool: GpuPool = POOL,
    lengths: LengthModel = LENGTHS,
    trainer: TrainerLayout = IN_TURNS,
    rewards: Rewards = MATHS,
    accuracy: Accuracy = HALF_RIGHT,
    profile: Profile | None = None,
    dynamic_sampling: bool = False,
    plans_parallelism: bool = False,
) -> SimJob:
    """Qwen2.5-7B on eight H800 GPUs in four pods."""
    return SimJob(
        rollout=chosen or rollout(strategy),
        shape=shape,
        model=MODELS["Qwen2.5-7B"],
        gpus=pool,
        lengths=lengths,
        trainer=trainer,
        rewards=rewards,
        accuracy=accuracy,
        profile=profile or Profile(),
        dynamic_sampling=dynamic_sampling,
        plans_parallelism=plans_parallelism,
    )

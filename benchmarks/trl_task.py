"""Describe a Longshore job as a task for TRL: same prompts in the same order, same settings by TRL's names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from longshore.api.objectives.grpo import Grpo
from longshore.api.spec import RLJobSpec
from longshore.policy.draws import DrawCursor
from longshore.policy.learning_rate import ScheduleOptions, learning_rate
from longshore_runtime.backends.vllm_environment import vllm_environment
from longshore_runtime.tasks import counting
from longshore_runtime.tasks.rows import NUM_TRAIN_PROMPTS

ROOT: Final = Path(__file__).parents[1]
TRL_PYTHON: Final = ROOT / ".venv/trl/bin/python"
"""Interpreter of the environment that has TRL, which `make bench` installs."""


@dataclass(frozen=True)
class TrlSide:
    """Settings of how TRL generates, in how many processes, and with how many threads each."""

    settings: Mapping[str, Any]
    num_processes: int = 1
    num_threads: int | None = None
    """Number of threads of each process; None: as many as cores, in all processes together."""

    @property
    def launcher(self) -> tuple[str, ...]:
        """Arguments of the interpreter before the module."""
        if self.num_processes == 1:
            return ()
        return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.num_processes}")

    def environment(self, root: Path, inherited: Mapping[str, str], num_cores: int) -> dict[str, str]:
        """Return the environment of a process; vLLM gets that of engines that compile."""
        return {
            **inherited,
            **vllm_environment(accelerator=False, enforce_eager=False),
            "OMP_NUM_THREADS": str(self.num_threads or max(1, num_cores // self.num_processes)),
            "PYTHONPATH": f"{root}:{root / 'runtime'}",
            "HF_HUB_OFFLINE": "1",
        }


_VLLM: Final = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1}
TRL_SIDES: Final[Mapping[str, TrlSide]] = {
    "TRL": TrlSide({}),
    "TRL, one thread": TrlSide({}, num_threads=1),
    "TRL, two processes": TrlSide({}, num_processes=2),
    "TRL, vLLM": TrlSide(_VLLM),
    "TRL, vLLM, one thread": TrlSide(_VLLM, num_threads=1),
    "TRL, vLLM, two processes": TrlSide(_VLLM, num_processes=2),
}
MODEL_SIDES: Final[Mapping[str, TrlSide]] = {
    "TRL": TrlSide({"bf16": True}),
    "TRL, float32": TrlSide({}),
    "TRL, vLLM": TrlSide(_VLLM | {"bf16": True}),
}
"""Sides for a given model: TRL computes in bfloat16 by default."""


def task_of(spec: RLJobSpec, model: Path, side: TrlSide, evaluate_every_steps: int) -> dict[str, Any]:
    """Return the task that `trl_side` reads."""
    algorithm = spec.algorithm
    rows = counting.generate(NUM_TRAIN_PROMPTS, algorithm.seed)
    draws = DrawCursor(len(rows), algorithm.seed).take(algorithm.steps * algorithm.prompts_per_step)
    num_updates = algorithm.steps * algorithm.updates_per_step
    schedule = ScheduleOptions(
        learning_rate=algorithm.learning_rate,
        schedule=algorithm.learning_rate_schedule,
        warmup_steps=algorithm.warmup_steps,
        num_steps=num_updates,
        min_ratio=algorithm.min_learning_rate_ratio,
    )
    return {
        "model": str(model),
        "reward": spec.reward.functions[0].name,
        "train": _rows([rows[draw.index] for draw in draws]),
        "held_out": _rows(counting.held_out(spec.data.held_out_prompts, algorithm.seed)),
        "learning_rates": [learning_rate(schedule, update) for update in range(1, num_updates + 1)],
        "evaluate_every_steps": evaluate_every_steps,
        "settings": trl_settings(spec, side.num_processes) | dict(side.settings),
    }


def trl_settings(spec: RLJobSpec, num_processes: int = 1) -> dict[str, Any]:
    """Return the arguments of `GRPOConfig`; nothing but training happens in a step, as in that of the job."""
    algorithm, evaluation = spec.algorithm, spec.evaluation
    objective = algorithm.objective
    assert isinstance(objective, Grpo), "TRL trains with loss_type dapo"
    num_held_out = spec.data.held_out_prompts * evaluation.responses_per_prompt
    return {
        "max_steps": algorithm.steps,
        "per_device_train_batch_size": algorithm.prompts_per_step * algorithm.responses_per_prompt // num_processes,
        "gradient_accumulation_steps": 1,
        "num_generations": algorithm.responses_per_prompt,
        "max_completion_length": algorithm.max_response_tokens,
        "temperature": algorithm.temperature,
        "learning_rate": algorithm.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": algorithm.warmup_steps,
        "adam_beta1": algorithm.adam_beta1,
        "adam_beta2": algorithm.adam_beta2,
        "adam_epsilon": algorithm.adam_epsilon,
        "weight_decay": algorithm.weight_decay,
        "max_grad_norm": algorithm.max_grad_norm,
        "epsilon": objective.clip_low,
        "epsilon_high": objective.clip_high,
        "beta": algorithm.kl_coefficient,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "seed": algorithm.seed,
        "shuffle_dataset": False,  # The order is that of the task.
        "num_generations_eval": evaluation.responses_per_prompt,
        "per_device_eval_batch_size": num_held_out // num_processes,
        "vllm_max_model_length": spec.model.max_context_tokens,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _rows(rows: Sequence[counting.CountingRow]) -> list[dict[str, str]]:
    return [asdict(row) for row in rows]

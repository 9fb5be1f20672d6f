"""RolloutPipe (arXiv 2606.26997): Slime, complete-group pipelining, and frontier-group dispatch on top of it.

Stated: Qwen3-1.7B, two A100-40 PCIe with TP 2 that sample, eight RTX 4090 with TP 4 and DP 2 that train, K = 8, U = 2,
R = 32, 64 and 96, mean response lengths of 3.3k to 3.6k tokens, an exact-match verifier, and that every point is the
mean of four rounds (section 5.1). The four workloads differ by chance only (seeds), since nothing else is stated of
them.

The frontier is simulated twice. Taken by its equation 6, F_w = 2 groups are the only ones in service, and 16 requests
at once cannot sample R = 96 groups in the time that the paper measures. So the main predictions take it as a priority:
as many groups are in service as the KV cache holds, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from longshore.api.rollout import AdmissionSettings, EngineSettings, Rollout, Strategy
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, SimJob, TrainerLayout, Training
from longshore.sim.lengths import LognormalLengths
from longshore.sim.paper.calibration import CONVENTION, Constant, solve
from longshore.sim.paper.published import Baselines, span
from longshore.sim.paper.workload import mean_tokens, prompt_share
from longshore.sim.profile import Profile
from longshore.sim.result import StepRecord
from longshore.sim.simulate import simulate

_RESPONSES_PER_PROMPT: Final = 8
_GROUPS_PER_UPDATE: Final = 2
_ROLLOUT: Final = GpuPool(GPUS["A100-40"], 2, 2)
_TRAINER: Final = GpuPool(GPUS["RTX4090"], 8)
_TRAINER_TP: Final = 4
_NUM_ROUNDS: Final = 4
"""Rounds of which every point is the mean (section 5.1)."""
WORKLOADS: Final = ("LSAT-AR", "Sci-XW", "Sci-JL", "OlyPhys")
GROUPS: Final = (32, 64, 96)
SYSTEMS: Final = ("slime", "cgp", "cgp_fgd")
STRICT: Final = "F_w = 2 strictly"
_READ_TWICE: Final = ("5.2/dispatch/cgp_fgd", "5.2/main/all", "5.2/seconds/cgp_fgd", "5.3/waiting/cgp_fgd")
"""Figures that are also predicted with a strict frontier."""


@dataclass(frozen=True)
class RolloutPipeConstants:
    """One value each for all workloads, R and systems."""

    max_tokens: int = 4096
    sigma: float = 0.7
    memory_share: float = 0.8
    median_tokens: float = 3500.0
    prompt_share: float = 0.8
    step_overhead_s: float = 0.002
    train_tokens_per_s: float = 1000.0

    def listed(self) -> tuple[Constant, ...]:
        """Return the constants with what they were found from."""
        return (
            Constant("length limit", self.max_tokens, "tokens", CONVENTION),
            Constant("deviation of log length", self.sigma, "", CONVENTION),
            Constant("GPU memory of engines", self.memory_share, "share", CONVENTION),
            Constant("median length before the limit", self.median_tokens, "tokens", "mean length, section 5.3"),
            Constant("variance of log length that belongs to the prompt", self.prompt_share, "share",
                     "deviations within prompts and over batches, APRIL, section 3.2.3"),
            Constant("overhead of a decode step", self.step_overhead_s, "s", "first dispatch of Slime at R = 96"),
            Constant("training", self.train_tokens_per_s, "tokens/s/GPU", "Table 1, Slime"),
        )  # fmt: skip

    def lengths(self, seed: int) -> LognormalLengths:
        """Cut at the limit."""
        return LognormalLengths(
            self.median_tokens, self.sigma, self.max_tokens, prompt_share=self.prompt_share, seed=seed
        )


@dataclass(frozen=True)
class Cell:
    """A point of the paper: means over its rounds."""

    first_dispatch_s: float
    rollout_to_train_end_s: float
    trainer_compute_s: float
    trainer_waiting_ratio: float
    response_tokens: float

    @classmethod
    def of(cls, rounds: Sequence[StepRecord]) -> "Cell":
        """Return the means of rounds that were simulated."""
        return cls(
            fmean(each.first_dispatch_s for each in rounds),
            fmean(each.rollout_to_train_end_s for each in rounds),
            fmean(each.trainer_compute_s for each in rounds),
            fmean(each.trainer_waiting_ratio for each in rounds),
            fmean(each.num_trained_tokens / each.num_trained_samples for each in rounds),
        )


def job(constants: RolloutPipeConstants, system: str, num_groups: int, seed: int, *, strict: bool = False) -> SimJob:
    """Return the rounds of a system."""
    has_frontier = system == "cgp_fgd"
    sim_job = SimJob(
        rollout=Rollout(
            strategy=Strategy.GROUP_PIPELINE if has_frontier else Strategy.SYNCHRONOUS,
            engine=EngineSettings(
                tensor_parallel_size=2,
                max_num_seqs=num_groups * _RESPONSES_PER_PROMPT,
                gpu_memory_utilization=constants.memory_share,
            ),
        ),
        shape=BatchShape(num_groups, _RESPONSES_PER_PROMPT),
        model=MODELS["Qwen3-1.7B"],
        gpus=_ROLLOUT,
        lengths=constants.lengths(seed),
        trainer=TrainerLayout(
            Training.AFTER_ROUND if system == "slime" else Training.PIPELINED,
            _TRAINER,
            _TRAINER_TP,
            groups_per_update=_GROUPS_PER_UPDATE,
        ),
        profile=Profile(step_overhead_s=constants.step_overhead_s),
        trainer_profile=Profile(train_tokens_per_s=constants.train_tokens_per_s, optimizer_s=0.0),
        samples_with_sglang=True,
        seed=seed,
    )
    if not has_frontier:
        return sim_job
    width = AdmissionSettings(frontier_width=_GROUPS_PER_UPDATE if strict else _groups_in_kv_cache(sim_job))
    return sim_job.with_rollout(sim_job.rollout.model_copy(update={"admission": width}))


def _groups_in_kv_cache(sim_job: SimJob) -> int:
    engine, lengths = sim_job.rollout.engine, sim_job.lengths
    capacity = sim_job.engine_costs.kv_capacity_tokens(engine.tensor_parallel_size, engine.gpu_memory_utilization)
    return max(_GROUPS_PER_UPDATE, capacity // (_RESPONSES_PER_PROMPT * lengths.max_tokens))


def calibrate(baselines: Baselines, num_rounds: int = _NUM_ROUNDS) -> RolloutPipeConstants:
    """Calibrate lengths, then the engine, then the trainer, from means over `num_rounds` rounds."""

    def slime(constants: RolloutPipeConstants, num_groups: int) -> list[Cell]:
        return [cell(constants, "slime", num_groups, seed, num_rounds=num_rounds) for seed in range(len(WORKLOADS))]

    constants = RolloutPipeConstants()
    median = solve(
        lambda each: mean_tokens(replace(constants, median_tokens=each).lengths(0)),
        baselines["rolloutpipe/5.3/tokens"],
        1_000.0,
        20_000.0,
    )
    share = prompt_share(baselines, median, constants.sigma, constants.max_tokens)
    constants = replace(constants, median_tokens=median, prompt_share=share)
    dispatch_s = baselines["rolloutpipe/5.2/dispatch/slime"]
    overhead_s = solve(
        lambda each: fmean(one.first_dispatch_s for one in slime(replace(constants, step_overhead_s=each), 96)),
        dispatch_s,
        0.0,
        0.05,
    )
    constants = replace(constants, step_overhead_s=overhead_s)
    trainer_s = {
        num_groups: fmean(one.trainer_compute_s for one in slime(constants, num_groups)) for num_groups in GROUPS
    }
    ratios = [
        baselines[f"rolloutpipe/table1/{workload}/{num_groups}/slime"] / trainer_s[num_groups]
        for workload in WORKLOADS
        for num_groups in GROUPS
    ]
    return replace(constants, train_tokens_per_s=constants.train_tokens_per_s / fmean(ratios))


def cell(
    constants: RolloutPipeConstants,
    system: str,
    num_groups: int,
    seed: int,
    *,
    strict: bool = False,
    num_rounds: int = _NUM_ROUNDS,
) -> Cell:
    """Simulate a point."""
    sim_job = job(constants, system, num_groups, seed, strict=strict)
    return Cell.of(simulate(sim_job, num_rounds, keeps_spans=False).steps)


def predict(constants: RolloutPipeConstants, num_rounds: int = _NUM_ROUNDS) -> dict[str, float | tuple[float, float]]:
    """Return predictions by figure; ranges over workloads or settings. Pass fewer rounds only to see it run."""
    prefix = "rolloutpipe/"
    cells = {
        (workload, num_groups, system): cell(constants, system, num_groups, seed, num_rounds=num_rounds)
        for seed, workload in enumerate(WORKLOADS)
        for num_groups in GROUPS
        for system in SYSTEMS
    }
    strict = {
        (workload, num_groups, "cgp_fgd"): cell(
            constants, "cgp_fgd", num_groups, seed, strict=True, num_rounds=num_rounds
        )
        for seed, workload in enumerate(WORKLOADS)
        for num_groups in GROUPS
    }
    predicted: dict[str, float | tuple[float, float]] = {
        f"table1/{workload}/{num_groups}/{system}": cell.trainer_compute_s
        for (workload, num_groups, system), cell in cells.items()
    }
    predicted["5.3/tokens"] = span(cell.response_tokens for cell in cells.values())
    predicted["5.3/waiting/slime"] = span(100 * cell.trainer_waiting_ratio for cell in _of(cells, "slime"))
    for system in ("slime", "cgp"):
        predicted[f"5.2/dispatch/{system}"] = span(cell.first_dispatch_s for cell in _of(cells, system, 96))
    predicted["5.2/seconds/cgp"] = cells["Sci-XW", 96, "cgp"].rollout_to_train_end_s
    predicted |= _of_frontier(cells)
    read_strictly = _of_frontier(cells | strict)
    of_strict = {f"{key}#{STRICT}": read_strictly[key] for key in _READ_TWICE}
    return {prefix + key: value for key, value in (predicted | of_strict).items()}


Cells = Mapping[tuple[str, int, str], Cell]


def _of_frontier(cells: Cells) -> dict[str, float | tuple[float, float]]:
    """Return the figures that CGP+FGD has a part in."""
    settings = [(workload, num_groups) for workload in WORKLOADS for num_groups in GROUPS]

    def time_s(setting: tuple[str, int], system: str) -> float:
        return cells[*setting, system].rollout_to_train_end_s

    def saved(setting: tuple[str, int], slower: str, faster: str) -> float:
        return 100 * (1 - time_s(setting, faster) / time_s(setting, slower))

    def cgp_share(setting: tuple[str, int]) -> float:
        slime_s = time_s(setting, "slime")
        return 100 * (slime_s - time_s(setting, "cgp")) / (slime_s - time_s(setting, "cgp_fgd"))

    def waiting(setting: tuple[str, int], system: str) -> float:
        return 100 * cells[*setting, system].trainer_waiting_ratio

    predicted: dict[str, float | tuple[float, float]] = {
        "5.2/dispatch/cgp_fgd": span(cell.first_dispatch_s for cell in _of(cells, "cgp_fgd", 96)),
        "5.2/main/all": span(saved(setting, "slime", "cgp_fgd") for setting in settings),
        "5.2/fgd": span(saved(setting, "cgp", "cgp_fgd") for setting in settings),
        "5.2/seconds/cgp_fgd": time_s(("Sci-XW", 96), "cgp_fgd"),
        "5.3/waiting/cgp_fgd": span(waiting(setting, "cgp_fgd") for setting in settings),
        "abstract/waiting": span(
            100 * (1 - waiting(setting, "cgp_fgd") / waiting(setting, "slime")) for setting in settings
        ),
    }
    for num_groups in (32, 96):
        chosen = [setting for setting in settings if setting[1] == num_groups]
        predicted[f"5.2/main/{num_groups}"] = span(saved(setting, "slime", "cgp_fgd") for setting in chosen)
        predicted[f"5.2/cgp_share/{num_groups}"] = span(cgp_share(setting) for setting in chosen)
    for workload in WORKLOADS:
        predicted[f"5.3/waiting/cgp_fgd/{workload}"] = waiting((workload, 96), "cgp_fgd")
    return predicted


def _of(cells: Cells, system: str, num_groups: int | None = None) -> list[Cell]:
    return [cell for (_, count, name), cell in cells.items() if name == system and num_groups in (None, count)]

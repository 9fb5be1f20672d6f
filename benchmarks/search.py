"""Compare what the search finds on the settings of the papers with their baseline and tail batching's defaults.

    make bench NAME=search

What is found is simulated again on draws that the search has not seen. A gain is the smaller of two: at equal steps,
and at equal trained tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from benchmarks.report import report
from longshore.api.rollout import Handover, Strategy
from longshore.sim.choices import Choice, SearchBounds
from longshore.sim.job import SimJob
from longshore.sim.paper import april, rolloutpipe, rollpacker
from longshore.sim.paper.published import PUBLISHED_FILE, Baselines, Published
from longshore.sim.search import Prediction, prediction, search
from longshore.sim.simulate import simulate

_UNSEEN: Final = (11, 12)
"""Seeds of draws that no search has seen."""
_ROLLPACKER: Final = replace(
    rollpacker.ROLLPACKER,
    response_factor=1.0,
    plans_parallelism=False,
    scores_decide_races=False,
    weighs_benefit=True,
)
"""RollPacker with all that the paper adds, but Longshore's own factors and gate, and its races.

These races end when responses do.
"""


@dataclass(frozen=True)
class Setting:
    """A setting of a paper."""

    name: str
    paper_baseline: SimJob
    """Baseline of the paper: veRL or Slime."""
    job: SimJob
    """Job from which the search begins."""
    bounds: SearchBounds


def settings(baselines: Baselines) -> Iterator[Setting]:
    """Yield all settings; RollPacker's with the stated tensor-parallel size, and with any."""
    of_rollpacker = rollpacker.calibrate(baselines)
    for model, setting in rollpacker.SETTINGS.items():
        verl, full = (
            rollpacker.job(of_rollpacker, setting, variant, rollpacker.Task.MIXED, 0)
            for variant in (rollpacker.VERL, _ROLLPACKER)
        )
        yield Setting(f"RollPacker {model}", verl, full, SearchBounds())
        yield Setting(f"RollPacker {model}, any TP", verl, full, SearchBounds(tp_sizes=(1, 2, 4, 8)))
    of_april = april.calibrate(baselines)
    for model in april.MODEL_NAMES:
        one = april.job(of_april, model, "GRPO", 0)
        strict = one.with_rollout(one.rollout.model_copy(update={"strategy": Strategy.SYNCHRONOUS}))
        yield Setting(f"APRIL {model}", strict, _with_vllm(strict), SearchBounds())
    of_pipe = rolloutpipe.calibrate(baselines)
    for num_groups in rolloutpipe.GROUPS:
        slime = rolloutpipe.job(of_pipe, "slime", num_groups, 0)
        bounds = SearchBounds(handovers=(Handover.PIPELINED,), is_frontier_open=True)
        yield Setting(f"RolloutPipe R={num_groups}", slime, _with_vllm(slime), bounds)


def _with_vllm(job: SimJob) -> SimJob:
    """Return the job with the sampling of Longshore."""
    return replace(job, samples_with_sglang=False)


def compared(setting: Setting) -> dict[str, Any]:
    """Search once, and return what the result is worth on unseen draws."""
    found = search(setting.job, setting.bounds)
    present = found.present.choice
    defaults = present.under(Strategy.TAIL_BATCHING, prompt_factor=1.25, response_factor=1.0)
    best = _unseen(setting.job, found.best.choice)
    default, baseline = _unseen(setting.job, defaults), _unseen(setting.paper_baseline)
    return {
        "setting": setting.name,
        "found": str(best.choice),
        "handover": best.choice.handover,
        "tp_size": best.choice.tp_size,
        "step_s": round(best.step_s, 2),
        "baseline_step_s": round(baseline.step_s, 2),
        "over_baseline": round(1 / best.cost(baseline), 3),
        "defaults_over_baseline": round(1 / default.cost(baseline), 3),
        "cost_of_defaults": round(best.cost(default), 3),
        "num_choices": found.num_choices,
        "num_rounds": found.num_rounds,
    }


def _unseen(job: SimJob, choice: Choice | None = None) -> Prediction:
    chosen = choice or Choice.of(job)
    num_steps = 2 * chosen.num_rounds(job.shape)
    jobs = [replace(chosen.applied_to(job), seed=seed) for seed in _UNSEEN]
    return prediction(chosen, [simulate(one, num_steps, keeps_spans=False) for one in jobs])


def main() -> None:
    """Search every setting."""
    published = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8")))
    runs = []
    for setting in settings(published.baselines()):
        runs.append(compared(setting))
        print(runs[-1])
    ratios = {"cost_of_defaults": [run["cost_of_defaults"] for run in runs],
              "over_baseline": [run["over_baseline"] for run in runs]}  # fmt: skip
    report("search", ratios, {"unseen_seeds": list(_UNSEEN)}, runs)


if __name__ == "__main__":
    main()

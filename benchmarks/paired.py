"""Compare runs that are paired by seed: differences from the baseline of a seed, with intervals of the mean."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

KINDS: Final = ("reward", "long")
"""Kinds of held-out rewards: of all prompts, and of the quarter with the longest answers."""
_T_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Quantiles of Student's t for a 95 % interval, from one degree of freedom on; more than these use the last one."""
_NUM_MOMENTS: Final = 7
"""Number of moments of a curve by seconds."""

Run = Mapping[str, Any]
Interval = dict[str, float]


def baseline_of(runs: Sequence[Run]) -> str:
    """Return the variant that the others are compared with: the first one."""
    baseline: str = runs[0]["variant"]
    return baseline


def interval(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % interval; of a single value there is none."""
    mean = statistics.mean(values)
    if len(values) == 1:
        return {"mean": round(mean, 3)}
    degrees = min(len(values) - 1, len(_T_975))
    half = _T_975[degrees - 1] * statistics.stdev(values) / len(values) ** 0.5
    return {"low": round(mean - half, 3), "mean": round(mean, 3), "high": round(mean + half, 3)}


def compared(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return each variant's figures, and its differences from the baseline of the same seed."""
    table: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        pairs = list(_pairs(runs, variant))
        of = table[variant] = {kind: interval([run[kind] for run, _ in pairs]) for kind in (*KINDS, "gain")}
        of["num_seeds"] = len(pairs)
        of["step_s"] = round(statistics.median(run["step_s"] for run, _ in pairs), 3)
        if variant == baseline_of(runs):
            continue
        timed = list(_timed_pairs(runs, variant))
        for kind in KINDS:
            of[f"{kind}_less_baseline"] = interval([run[kind] - base[kind] for run, base in pairs])
            if timed:
                at_equal_s = [_less_at(_common_s(run, base), run, base, kind) for run, base in timed]
                of[f"{kind}_less_baseline_at_equal_s"] = interval(at_equal_s)
        if timed:
            of["step_over_baseline"] = interval([run["step_s"] / base["step_s"] for run, base in timed])
    return table


def step_ratios(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the time of a step over that of the baseline, by variant and seed."""
    variants = dict.fromkeys(run["variant"] for run in runs if run["variant"] != baseline_of(runs))
    found = {one: [run["step_s"] / base["step_s"] for run, base in _timed_pairs(runs, one)] for one in variants}
    return {f"{variant}/step_s": ratios for variant, ratios in found.items() if ratios}


def by_step(runs: Sequence[Run], variant: str, kind: str) -> dict[float, Interval]:
    """Return the difference from the baseline by number of steps."""
    points = [
        (one["step"], one[kind] - base[kind])
        for run, of_base in _pairs(runs, variant)
        for one, base in zip(run["points"], of_base["points"], strict=True)
    ]
    steps = sorted({step for step, _ in points})
    return {step: interval([less for at, less in points if at == step]) for step in steps}


def by_second(runs: Sequence[Run], variant: str, kind: str) -> dict[float, Interval]:
    """Return the difference from the baseline by second, up to the moment at which the quickest run has ended."""
    pairs = list(_timed_pairs(runs, variant))
    if not pairs:
        return {}
    end_s = min(_common_s(run, base) for run, base in pairs)
    moments = [end_s * number / (_NUM_MOMENTS - 1) for number in range(_NUM_MOMENTS)]
    return {at_s: interval([_less_at(at_s, run, base, kind) for run, base in pairs]) for at_s in moments}


def at_seconds(points: Sequence[Mapping[str, float]], seconds: float, kind: str) -> float:
    """Return a figure of the evaluations at a moment between two of them."""
    for before, after in pairwise(points):
        if seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return before[kind] + share * (after[kind] - before[kind])
    return points[-1][kind]


def _pairs(runs: Sequence[Run], variant: str) -> Iterator[tuple[Run, Run]]:
    """Yield the variant and the baseline, seed by seed: that of the same call if there is one, or the newest."""
    of_baseline = [run for run in runs if run["variant"] == baseline_of(runs)]
    newest = {run["seed"]: run for run in of_baseline}
    beside = {(run["seed"], run["call"]): run for run in of_baseline}
    of_variant = {run["seed"]: run for run in runs if run["variant"] == variant}
    for seed, run in sorted(of_variant.items()):
        yield run, beside.get((seed, run["call"]), newest[seed])


def _timed_pairs(runs: Sequence[Run], variant: str) -> Iterator[tuple[Run, Run]]:
    """Return the pairs of one call of the benchmark: at another time, the machine may be quicker or slower."""
    return ((run, base) for run, base in _pairs(runs, variant) if run["call"] == base["call"])


def _common_s(run: Run, base: Run) -> float:
    """Return the seconds after which the quicker of the two has ended."""
    end_s: float = min(one["points"][-1]["seconds"] for one in (run, base))
    return end_s


def _less_at(seconds: float, run: Run, base: Run, kind: str) -> float:
    return at_seconds(run["points"], seconds, kind) - at_seconds(base["points"], seconds, kind)

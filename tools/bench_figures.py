"""Draw pictures and tables of `explanation/benchmarks.md` and `tail-batching.md` from the results of benchmarks.

A benchmark that has no result leaves its page as it is.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import paired
from benchmarks.report import RESULTS
from matplotlib import pyplot
from matplotlib.axes import Axes

from tools.marked import replace

_DOCS: Final = Path(__file__).parents[1] / "docs"
_BENCHMARKS: Final = "explanation/benchmarks.md"
_COLOURS: Final = {"reward": "#1b7f79", "long": "#d1652c"}
_LABELS: Final = {"reward": "all prompts", "long": "quarter with the longest answers"}


@dataclass(frozen=True)
class Column:
    """Column of the table of a benchmark."""

    title: str
    key: str
    number: str = "{:.2f}"
    is_ratio: bool = False
    """Whether values are ratios over the baseline, which has 1."""
    scale: float = 1.0


@dataclass(frozen=True)
class Shown:
    """Baseline and columns that the page shows of a benchmark."""

    baseline: str
    columns: tuple[Column, ...]


_SHOWN: Final = {
    "auto": Shown(
        "Auto",
        (
            Column("step, ratio", "step_s", is_ratio=True),
            Column("decode steps", "decode_steps", "{:.0f}"),
            Column("sampled tokens", "sampled_tokens", "{:,.0f}"),
        ),
    ),
    "pipeline": Shown(
        "Serial",
        (
            Column("rollout to train end, ratio", "rollout_to_train_end_s", is_ratio=True),
            Column("waiting ratio", "trainer_waiting_ratio"),
            Column("overlap", "overlap_share", "{:.0f} %", scale=100),
            Column("decode steps", "decode_steps", "{:.0f}"),
        ),
    ),
    "stream": Shown(
        "AfterRound",
        (
            Column("step, ratio", "step_s", is_ratio=True),
            Column("long step, ratio", "long_step_s", is_ratio=True),
            Column("long rollout, ratio", "long_rollout_s", is_ratio=True),
            Column("done by then", "long_overlap_share", "{:.0f} %", scale=100),
        ),
    ),
}

_PUBLICATION: Final = (
    Column("GB", "gb_per_gb"),
    Column("seconds", "s_per_gb", "{:.1f}"),
    Column("seconds, ratio", "s_per_gb", is_ratio=True),
    Column("CPU seconds, ratio", "cpu_s_per_gb", is_ratio=True),
)

Result = Mapping[str, Any]


def bench_figures(results: Path = RESULTS, docs: Path = _DOCS) -> None:
    """Draw and write everything that there are results for."""
    for name in _SHOWN:
        if (result := _result(results, name)) is not None:
            replace(docs / _BENCHMARKS, name, _drawn_ratios(name, result, docs))
    if (result := _result(results, "publication")) is not None:
        replace(docs / _BENCHMARKS, "publication", _table(_PUBLICATION, _variants(result), result))
    if (result := _result(results, "learning")) is not None:
        replace(docs / "explanation/tail-batching.md", "learning", _drawn_learning(result, docs))
    if (result := _result(results, "objectives")) is not None:
        replace(docs / _BENCHMARKS, "objectives", _learning_table("objective", result))


def _result(results: Path, name: str) -> Result | None:
    path = results / f"{name}.json"
    if not path.exists():
        return None
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result


def _save(docs: Path, name: str, legend_share: float = 0.0) -> None:
    """Save the picture; `legend_share` of the height is left for a legend below."""
    pyplot.tight_layout(rect=(0, legend_share, 1, 1))
    pyplot.savefig(docs / "assets" / f"bench-{name}.svg", metadata={"Date": None})
    pyplot.close()


# Ratios -------------------------------------------------------------------------------------------------------------


def _drawn_ratios(name: str, result: Result, docs: Path) -> str:
    """Draw medians, with lines from minimum to maximum; return what the page says."""
    shown, ratios = _SHOWN[name], result["ratios"]
    columns = [column for column in shown.columns if column.is_ratio]
    variants = _variants(result)
    drawn = [variant for variant in variants if variant != shown.baseline]
    figure, all_axes = pyplot.subplots(1, len(columns), sharey=True, squeeze=False)
    figure.set_size_inches(2.5 + 2.1 * len(columns), 0.9 + 0.32 * len(drawn))
    for axes, column in zip(all_axes[0], columns, strict=True):
        for place, variant in enumerate(drawn):
            one = ratios[f"{variant}/{column.key}"]
            axes.plot([one["min"], one["max"]], [place, place], color=_COLOURS["reward"], linewidth=2)
            axes.plot([one["median"]], [place], "o", color=_COLOURS["reward"], markersize=5)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(drawn)), drawn, fontsize=8)
        axes.set_title(f"{column.title} to {shown.baseline}", loc="left", fontsize=9)
        _plain(axes)
    all_axes[0][0].invert_yaxis()
    _save(docs, name)
    table = _table(shown.columns, sorted(variants, key=lambda one: one != shown.baseline), result)
    return (
        f"![Ratios to {shown.baseline}: medians, and lines from minimum to maximum](../assets/bench-{name}.svg)\n\n"
        f"{table}"
    )


def _variants(result: Result) -> list[str]:
    return list(dict.fromkeys(key.split("/")[0] for key in result["figures"] if "/" in key))


def _table(columns: Sequence[Column], variants: Sequence[str], result: Result) -> str:
    head = f"| | {' | '.join(column.title for column in columns)} |\n|---|{'---|' * len(columns)}\n"
    rows = (
        f"| `{variant}` | {' | '.join(_cell(column, variant, result) for column in columns)} |\n"
        for variant in variants
    )
    return f"{head}{''.join(rows)}"


def _cell(column: Column, variant: str, result: Result) -> str:
    found = result["ratios" if column.is_ratio else "figures"].get(f"{variant}/{column.key}")
    if found is None:
        return "1" if column.is_ratio else ""  # Others are compared with a variant without ratios.
    median, low, high = (column.number.format(column.scale * found[name]) for name in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} to {high})"


# Learning -----------------------------------------------------------------------------------------------------------


def _drawn_learning(result: Result, docs: Path) -> str:
    """Draw differences from the baseline by step and by second, with intervals; return what the page says."""
    table, runs = result["variants"], result["runs"]
    variants = [name for name in table if name != paired.baseline_of(runs)]
    figure, rows = pyplot.subplots(2, len(variants), sharey=True, squeeze=False)
    figure.set_size_inches(max(6.0, 1.75 * len(variants)), 4.4)
    curves = ((paired.by_step, "steps"), (paired.by_second, "seconds of training"))
    for row, (curve, unit) in zip(rows, curves, strict=True):
        for axes, variant in zip(row, variants, strict=True):
            for kind in paired.KINDS:
                if points := curve(runs, variant, kind):
                    _band(axes, points, kind)
            axes.axhline(0.0, color="black", linewidth=0.8)
            axes.set_xlabel(unit, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.set_title(variant.replace(", ", ",\n"), loc="left", fontsize=8)
            _plain(axes)
        row[0].set_ylabel("held out, difference\nfrom Synchronous", fontsize=8)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=8)
    _save(docs, "learning", legend_share=0.05)
    return (
        "![Difference in held-out reward from Synchronous with the same seed, by step and second of training, with "
        "95 % intervals](../assets/bench-learning.svg)\n\n" + _learning_table("rollout", result)
    )


def _learning_table(compared: str, result: Result) -> str:
    baseline, settings = paired.baseline_of(result["runs"]), result["settings"]
    of_kind = f"difference from `{baseline}` | at equal seconds"
    return (
        f"{len(settings['seeds'])} seeds, {settings['steps']} steps:\n\n"
        f"| {compared} | held-out reward | {of_kind} | longest quarter | {of_kind} | time of a step |\n"
        "|---|---|---|---|---|---|---|---|\n"
        + "".join(f"{_learning_row(name, found, baseline)}\n" for name, found in result["variants"].items())
    )


def _learning_row(variant: str, found: Result, baseline: str) -> str:
    cells = [
        cell
        for kind in paired.KINDS
        for cell in (
            f"{found[kind]['mean']:.3f}",
            _shown(found.get(f"{kind}_less_baseline"), "{:+.3f}"),
            _shown(found.get(f"{kind}_less_baseline_at_equal_s"), "{:+.3f}"),
        )
    ]
    step = {"mean": 1.0} if variant == baseline else found.get("step_over_baseline")
    return f"| {variant} | {' | '.join(cells)} | {_shown(step, '{:.2f}')} |"


def _shown(interval: Mapping[str, float] | None, number: str) -> str:
    if interval is None:
        return ""
    mean = number.format(interval["mean"])
    if "low" not in interval:
        return mean
    return f"{mean} ({number.format(interval['low'])} to {number.format(interval['high'])})"


def _band(axes: Axes, curve: Mapping[float, Mapping[str, float]], kind: str) -> None:
    at, colour = list(curve), _COLOURS[kind]
    low, mean, high = ([one.get(name, one["mean"]) for one in curve.values()] for name in ("low", "mean", "high"))
    axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(at, mean, color=colour, linewidth=1.2, label=_LABELS[kind])


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)

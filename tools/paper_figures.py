"""Draw figures and tables of `explanation/simulator-against-papers.md` from the comparison itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from matplotlib import pyplot

from longshore.sim.paper.april import Sensitivity, sensitivity
from longshore.sim.paper.comparison import PaperComparison, Prediction, compare
from longshore.sim.paper.published import PUBLISHED_FILE, Paper, Published, Unit
from tools.marked import replace

_PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "simulator-against-papers.md"
_ASSETS: Final = Path(__file__).parents[1] / "docs" / "assets"
_TITLES: Final = {
    Paper.ROLLPACKER: "RollPacker",
    Paper.APRIL: "APRIL",
    Paper.REORDER: "Reorder rollout",
    Paper.ROLLOUTPIPE: "RolloutPipe",
}
_COLOURS: Final = {
    Paper.ROLLPACKER: "#1b7f79",
    Paper.APRIL: "#d1652c",
    Paper.REORDER: "#8a8f98",
    Paper.ROLLOUTPIPE: "#3b5fa3",
}
_UNITS: Final = {
    Unit.RATIO: "{:.2f}",
    Unit.SECONDS: "{:,.0f} s",
    Unit.TOKENS: "{:,.0f} tokens",
    Unit.PERCENT: "{:.1f} %",
    Unit.PERCENT_MORE: "{:+.0f} %",
    Unit.PERCENT_LESS: "{:.1f} % less",
}
_GOAL: Final = 0.15
_RATIOS: Final = (0.5, 0.7, 0.85, 1.0, 1.15, 1.4, 2.0)
_TABLE_2: Final = ("tail_batching", "reward", "parallelism", "trainer")
_TABLE_2_LABELS: Final = ("tail\nbatching", "+ reward\nscheduler", "+ planner", "+ stream\ntrainer")


def paper_figures() -> None:
    """Compare with all papers once; draw and tabulate."""
    published = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text()))
    comparisons = [compare(paper, published) for paper in Paper]
    _errors(comparisons)
    _table_2(comparisons[0])
    _write(comparisons, sensitivity(published.baselines()))


def _errors(comparisons: Sequence[PaperComparison]) -> None:
    """Draw `simulator-against-papers.svg`: predicted over published, of every scored figure."""
    figure, axes = pyplot.subplots(figsize=(9, 3.6))
    first = 0
    axes.axhspan(1 - _GOAL, 1 + _GOAL, color="black", alpha=0.08, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    for comparison in comparisons:
        errors = [row.error for row in comparison.scored if row.error is not None]
        places = range(first, first + len(errors))
        colour, title = _COLOURS[comparison.paper], _TITLES[comparison.paper]
        axes.scatter(places, [1 + error for error in errors], s=16, color=colour, linewidths=0, label=title)
        first += len(errors) + 2
    axes.set_yscale("log")
    axes.set_yticks(_RATIOS, [f"{ratio:g}" for ratio in _RATIOS])
    axes.minorticks_off()
    axes.set_xticks([])
    axes.set_xlabel("scored figures, in the order of the papers", fontsize=9)
    axes.set_ylabel("predicted / published", fontsize=9)
    axes.set_title("The band is ± 15 %; of a range, its worse end", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower right")
    figure.tight_layout()
    figure.savefig(_ASSETS / "simulator-against-papers.svg", metadata={"Date": None})


def _ends(value: Prediction) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _table_2(comparison: PaperComparison) -> None:
    """Draw `simulator-rollpacker.svg`: speedups over veRL, technique by technique."""
    rows = {row.figure: row for row in comparison.rows}
    figure, all_axes = pyplot.subplots(1, 3, sharey=True, figsize=(9, 3.2))
    for axes, model in zip(all_axes, ("7B", "14B", "32B"), strict=True):
        chosen = [rows[f"rollpacker/table2/{name}/{model}"] for name in _TABLE_2]
        places = range(len(chosen))
        axes.bar([x - 0.2 for x in places], [_ends(row.published)[0] for row in chosen], 0.38, color="#8a8f98")
        predicted = [_ends(row.predicted or 0.0)[0] for row in chosen]
        axes.bar([x + 0.2 for x in places], predicted, 0.38, color=_COLOURS[Paper.ROLLPACKER])
        axes.set_xticks(list(places), _TABLE_2_LABELS, fontsize=8)
        axes.set_title(f"Qwen2.5-{model}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("speedup over veRL", fontsize=9)
    all_axes[0].legend(["published", "predicted"], frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(_ASSETS / "simulator-rollpacker.svg", metadata={"Date": None})


def _write(comparisons: Sequence[PaperComparison], of_april: Sequence[Sensitivity]) -> None:
    replace(_PAGE, "summary", _summary(comparisons))
    replace(_PAGE, "sensitivity", _sensitivity(of_april))
    for comparison in comparisons:
        replace(_PAGE, comparison.paper, _misses(comparison))


def _summary(comparisons: Sequence[PaperComparison]) -> str:
    lines = [
        "| paper | free constants | figures scored | within 15 % | null model | median error | follow from others |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        num_scored = len(one.scored)
        met, null = one.num_within(_GOAL), one.num_null_within(_GOAL)
        lines.append(
            f"| {_TITLES[one.paper]} | {len(one.constants)} | {num_scored} | {met} ({100 * met / num_scored:.0f} %) "
            f"| {null} | {100 * one.median_error:.0f} % | {len(one.held_out) - num_scored} |"
        )
    scored, met, null, following = (
        sum(counts)
        for counts in zip(
            *(
                (
                    len(one.scored),
                    one.num_within(_GOAL),
                    one.num_null_within(_GOAL),
                    len(one.held_out) - len(one.scored),
                )
                for one in comparisons
            ),
            strict=True,
        )
    )
    lines.append(f"| **all** | | {scored} | {met} ({100 * met / scored:.0f} %) | {null} | | {following} |")
    return "\n".join(lines) + "\n"


def _sensitivity(found: Sequence[Sensitivity]) -> str:
    lines = ["| changed | gain with GRPO | gain with DAPO | carried over |", "|---|---|---|---|"]
    for one in found:
        lines.append(f"| {one.changed} | {one.grpo_gain:+.0f} % | {one.dapo_gain:+.0f} % | {one.carried_over:.0f} % |")
    return "\n".join(lines) + "\n"


def _misses(comparison: PaperComparison) -> str:
    """Return the table of scored figures that the prediction misses by more than the goal."""
    lines = []
    for row in comparison.scored:
        if row.error is not None and abs(row.error) > _GOAL:
            published, predicted = _shown(row.unit, row.published), _shown(row.unit, row.predicted)
            lines.append(f"| {row.source} | {published} | {predicted} | {100 * row.error:+.0f} % |")
    if not lines:
        return f"No scored figure is off by more than {100 * _GOAL:.0f} %.\n"
    return "\n".join(["| figure | published | predicted | error |", "|---|---|---|---|", *lines]) + "\n"


def _shown(unit: Unit, value: Prediction | None) -> str:
    if value is None:
        return "–"
    if unit is Unit.PERCENT_LESS and max(_ends(value)) < 0:
        unit, value = Unit.PERCENT_MORE, tuple(-end for end in _ends(value))  # type: ignore[assignment]
    return " to ".join(_UNITS[unit].format(end) for end in _ends(value))

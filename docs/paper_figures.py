"""Figures and tables of `explanation/simulator-against-papers.md`, from the comparison itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from matplotlib import pyplot

from longshore.sim.paper.comparison import Comparison, Prediction, Row, compare
from longshore.sim.paper.published import PUBLISHED_FILE, Paper, Published, Role, Unit

_PAGE: Final = Path(__file__).parent / "explanation" / "simulator-against-papers.md"
_ASSETS: Final = Path(__file__).parent / "assets"
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
    Unit.PERCENT_MORE: "+{:.0f} %",
    Unit.PERCENT_LESS: "{:.1f} % less",
}
_GOAL: Final = 0.15
_TABLE_2: Final = ("tail_batching", "reward", "parallelism", "trainer")
_TABLE_2_LABELS: Final = ("tail\nbatching", "+ reward\nscheduler", "+ planner", "+ stream\ntrainer")


def paper_figures() -> None:
    """Compare with all papers once; draw and tabulate."""
    published = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text()))
    comparisons = [compare(paper, published) for paper in Paper]
    _scatter(comparisons)
    _table_2(comparisons[0])
    _write(comparisons)


def _scatter(comparisons: Sequence[Comparison]) -> None:
    """`simulator-against-papers.svg`: every held-out figure."""
    figure, axes = pyplot.subplots(figsize=(6.2, 5.4))
    for comparison in comparisons:
        points = [point for row in comparison.held_out for point in _points(row)]
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            s=18,
            color=_COLOURS[comparison.paper],
            alpha=0.75,
            linewidths=0,
            label=_TITLES[comparison.paper],
        )
    line = [0.4, 20_000.0]
    axes.plot(line, line, color="black", linewidth=0.8)
    axes.fill_between(line, [0.85 * x for x in line], [1.15 * x for x in line], color="black", alpha=0.08, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("published (ratios, seconds, percent)", fontsize=9)
    axes.set_ylabel("predicted", fontsize=9)
    axes.set_title("Figures held out; the band is ± 15 %", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(_ASSETS / "simulator-against-papers.svg", metadata={"Date": None})


def _points(row: Row) -> list[tuple[float, float]]:
    assert row.predicted is not None
    pairs = zip(_ends(row.published), _ends(row.predicted), strict=False)
    return [(row.unit.factor(x), row.unit.factor(y)) for x, y in pairs]


def _ends(value: Prediction) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _table_2(comparison: Comparison) -> None:
    """`simulator-rollpacker.svg`: speedups over veRL, technique by technique."""
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


def _write(comparisons: Sequence[Comparison]) -> None:
    text = _PAGE.read_text()
    text = _replaced(text, "summary", _summary(comparisons))
    for comparison in comparisons:
        text = _replaced(text, comparison.paper, _constants(comparison) + _rows(comparison))
    _PAGE.write_text(text)


def _replaced(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def _summary(comparisons: Sequence[Comparison]) -> str:
    lines = ["| paper | free constants | figures held out | within 15 % | median error |", "|---|---|---|---|---|"]
    for one in comparisons:
        within = f"{one.num_within(_GOAL)} | {100 * one.median_error:.0f} %"
        lines.append(f"| {_TITLES[one.paper]} | {len(one.constants)} | {len(one.held_out)} | {within} |")
    return "\n".join(lines) + "\n"


def _constants(comparison: Comparison) -> str:
    if not comparison.constants:
        return "No constant is free.\n\n"
    lines = ["| free constant | value | found from |", "|---|---|---|"]
    for constant in comparison.constants:
        lines.append(f"| {constant.name} | {constant.value:.4g} {constant.unit} | {constant.calibrated_on} |")
    return "\n".join(lines) + "\n\n"


def _rows(comparison: Comparison) -> str:
    lines = ["| figure | published | predicted | error |", "|---|---|---|---|"]
    rows = [row for row in comparison.rows if row.role is not Role.BASELINE or row.predicted is not None]
    for row in rows:
        role = " *(baseline)*" if row.role is Role.BASELINE else ""
        variant = f" **({row.variant})**" if row.variant else ""
        error = "not modelled" if row.error is None else f"{100 * row.error:+.0f} %"
        lines.append(
            f"| {row.source}{role}{variant} | {_shown(row.unit, row.published)} | {_shown(row.unit, row.predicted)} "
            f"| {error} |"
        )
    return "\n".join(lines) + "\n"


def _shown(unit: Unit, value: Prediction | None) -> str:
    if value is None:
        return "–"
    if unit is Unit.PERCENT_LESS and max(_ends(value)) < 0:
        unit, value = Unit.PERCENT_MORE, tuple(-end for end in _ends(value))  # type: ignore[assignment]
    return " to ".join(_UNITS[unit].format(end) for end in _ends(value))

"""Draw the chart's dashboards with what a Prometheus answers: `python -m tools.dashboard_pictures ADDRESS MINUTES`.

Grafana is not needed: panels, queries, legends and units are those of the dashboards; only the drawing is not.
"""

import io
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib import dates, pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter
from PIL import Image
from tests.prometheus import Json, Prometheus, Values

_ROOT: Final = Path(__file__).parents[1]
_UNITS: Final = {
    "none": FuncFormatter(lambda value, _: f"{value:g}"),
    "s": EngFormatter("s"),
    "cps": FuncFormatter(lambda value, _: f"{value:g} c/s"),
    "percentunit": PercentFormatter(1, symbol=" %"),
}
"""Formats in which Grafana writes values, by unit."""
_NUM_COLUMNS: Final = 2
_NUM_LEGENDS: Final = 9
_STEP_S: Final = 5.0


def draw(axes: Axes, panel: Json, lines: list[tuple[str, Values]]) -> None:
    """Draw one panel."""
    for row, (legend, values) in enumerate(lines):
        times = dates.date2num([datetime.fromtimestamp(at_s, UTC) for at_s, _ in values])
        if panel["type"] == "state-timeline":
            axes.plot(times, [legend] * len(times), "s", markersize=3.5)
        else:
            shown = legend if row < _NUM_LEGENDS else None
            axes.plot(times, [value for _, value in values], label=shown, linewidth=1.1)
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if panel["type"] == "timeseries":
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0) if low < -high else 0, high if high > 0.1 else 1)
        axes.yaxis.set_major_formatter(_UNITS[panel["fieldConfig"]["defaults"]["unit"]])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=6, frameon=False, handlelength=1.0)


def picture(board: Json, shown: Prometheus, start_s: float, end_s: float) -> None:
    """Save `dashboard-NAME.png` of a dashboard."""
    panels = board["panels"]
    num_rows = -(-len(panels) // _NUM_COLUMNS)
    figure, axes = pyplot.subplots(num_rows, _NUM_COLUMNS, figsize=(12.8, 1.75 * num_rows), sharex=True)
    figure.suptitle(board["title"], x=0.01, ha="left", fontsize=12)
    for one, panel in zip(axes.flat, panels, strict=False):
        lines = [line for target in panel["targets"] for line in shown.series(target, start_s, end_s, _STEP_S)]
        draw(one, panel, lines)
    for one in axes.flat[len(panels) :]:
        one.remove()
    figure.tight_layout()
    name = board["uid"].replace("longshore", "dashboard")
    with io.BytesIO() as drawn:
        figure.savefig(drawn, dpi=100)
        Image.open(drawn).quantize(64).save(_ROOT / "docs" / "assets" / f"{name}.png", optimize=True)


def main(address: str, minutes: str) -> None:
    """Draw both dashboards, with the last minutes."""
    matplotlib.use("agg")
    end_s = time.time()
    for path in sorted((_ROOT / "charts" / "longshore" / "files" / "dashboards").glob("*.json")):
        picture(json.loads(path.read_text()), Prometheus(address), end_s - 60 * float(minutes), end_s)


if __name__ == "__main__":
    main(*sys.argv[1:])

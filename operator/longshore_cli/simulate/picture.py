"""Timelines as a picture, one panel per strategy; matplotlib is loaded here only."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from longshore.api.round_status import RoundKind
from longshore.sim.timeline import Activity, Timeline
from longshore_cli import format as fmt
from longshore_cli.simulate.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = (".svg", ".png")
_COLOURS: Final = {
    Activity.ROLLOUT: "#1b7f79",
    Activity.TRAINER: "#d1652c",
    Activity.CHANGE: "#8a8f98",
    Activity.BUBBLE: "#e9ecf0",
}
_WIDTH_INCHES: Final = 11.0
_INCHES_PER_GPU: Final = 0.15
_PANEL_INCHES: Final = (0.9, 2.4)
"""Least and greatest height of the rows of a panel."""
_MARGIN_INCHES: Final = 0.75
"""Title, round names and axis of a panel."""
_NARROW_SHARE: Final = 0.04
"""Rounds narrower than this share of the picture get no name."""


def check(path: Path) -> None:
    """Check that the picture can be written, before anything is simulated; raises BadInput."""
    if path.suffix not in FORMATS:
        raise BadInput(f"--timeline: {path} ends neither in .svg nor in .png")
    if not path.parent.is_dir():
        raise BadInput(f"--timeline: there is no directory {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BadInput("--timeline needs matplotlib.", "Install Longshore with its extra `cli`.") from error


def save(panels: Sequence[tuple[str, Timeline]], path: Path) -> None:
    """Write (strategy, timeline) panels on one time axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    least, greatest = _PANEL_INCHES
    heights = [min(max(one.num_gpus * _INCHES_PER_GPU, least), greatest) + _MARGIN_INCHES for _, one in panels]
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + _MARGIN_INCHES), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    end_s = max(one.end_s for _, one in panels)
    for axes, (name, one) in zip(all_axes, panels, strict=True):
        _draw(axes, name, one, end_s)
    all_axes[-1].set_xlabel("seconds")
    handles = [Patch(color=colour, label=activity) for activity, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    # Equal simulations give equal files.
    with rc_context({"svg.hashsalt": "longshore"}):
        figure.savefig(path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axes: "Axes", name: str, one: Timeline, longest_s: float) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    for activity, colour in _COLOURS.items():
        corners = [
            [(left, low), (left, high), (right, high), (right, low)]
            for left, right, low, high in (
                (piece.start_s, piece.end_s, piece.first_gpu - 0.5, piece.first_gpu + piece.num_gpus - 0.5)
                for piece in one.rectangles
                if piece.activity is activity
            )
        ]
        axes.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0))
    for number, round_ in enumerate(one.rounds, start=1):
        axes.axvline(round_.end_s, color="black", linewidth=0.8)
        if round_.end_s - round_.start_s > _NARROW_SHARE * longest_s:
            middle_s = (round_.start_s + round_.end_s) / 2
            axes.annotate(
                _label(number, round_.kind), (middle_s, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
                textcoords="offset points", ha="center", fontsize=7, color="#555",
            )  # fmt: skip
    axes.set_xlim(0, longest_s)
    axes.set_ylim(one.num_gpus - 0.5, -0.5)
    axes.set_ylabel("GPU")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.set_title(f"{name}: {fmt.count(len(one.rounds), 'step')} in {fmt.duration(one.end_s)}, "
                   f"bubble {fmt.share(bubble_share(one))}", loc="left", fontsize=10, pad=14)  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)


def _label(number: int, kind: RoundKind) -> str:
    return str(number) if kind is RoundKind.FULL else f"{number} {kind.lower()}"


def bubble_share(one: Timeline) -> float:
    """Return the share of the area in which GPUs do nothing."""
    idle_s = sum(
        piece.num_gpus * (piece.end_s - piece.start_s) for piece in one.rectangles if piece.activity is Activity.BUBBLE
    )
    return idle_s / (one.num_gpus * one.end_s)

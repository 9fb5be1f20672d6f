"""Predictions alongside published figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from longshore.sim.paper import april, reorder, rolloutpipe, rollpacker, rollpacker_figures
from longshore.sim.paper.calibration import Constant
from longshore.sim.paper.published import Baselines, FigureRole, Paper, Published, PublishedFigure, Unit

Prediction = float | tuple[float, float]
VARIANT: Final = "#"
"""Parts a figure from the reading of the paper under which it is predicted."""


@dataclass(frozen=True)
class FigureRow:
    """A published figure and what the simulator says."""

    figure: str
    source: str
    unit: Unit
    role: FigureRole
    published: Prediction
    predicted: Prediction | None
    """What the simulator says; None: the figure is put in, or not modelled."""
    variant: str = ""
    """Reading of the paper, where another one is shown too."""
    null: Prediction | None = None
    """What a model predicts in which nothing has any effect."""
    follows_from: str | None = None
    """Figures that determine it by construction."""

    @property
    def error(self) -> float | None:
        """Relative to the published figure; of a range, the worse end, or the distance from it for a single figure.

        Increases and decreases count as factors: 24 % more against 31 % more is 1.24 against 1.31.
        """
        return self._error_of(self.predicted)

    @property
    def null_error(self) -> float | None:
        """The same of the null model."""
        return self._error_of(self.null)

    def _error_of(self, predicted: Prediction | None) -> float | None:
        if predicted is None:
            return None
        low, high = (self.unit.factor(end) for end in _ends(self.published))
        ends = tuple(self.unit.factor(end) for end in _ends(predicted))
        if not isinstance(predicted, tuple):
            nearest = min(max(ends[0], min(low, high)), max(low, high))
            return ends[0] / nearest - 1
        return max((ends[0] / low - 1, ends[1] / high - 1), key=abs)

    def to_json(self) -> dict[str, Any]:
        """Return the figure with stable keys; ranges are lists of two."""
        return {
            "figure": self.figure,
            "variant": self.variant,
            "source": self.source,
            "unit": self.unit.value,
            "role": self.role.value,
            "predicted": _json(self.predicted),
            "published": _json(self.published),
            "error": self.error,
            "nullError": self.null_error,
            "followsFrom": self.follows_from,
        }


@dataclass(frozen=True)
class PaperComparison:
    """One paper."""

    paper: Paper
    constants: tuple[Constant, ...]
    """Free ones, fitted to baselines or set by convention."""
    rows: tuple[FigureRow, ...]

    @property
    def held_out(self) -> tuple[FigureRow, ...]:
        """Figures predicted without having been seen; other readings of the same figures are left out."""
        return tuple(row for row in self.rows if row.role is FigureRole.HELD_OUT and not row.variant)

    @property
    def scored(self) -> tuple[FigureRow, ...]:
        """Held-out figures that do not follow from others by construction."""
        return tuple(row for row in self.held_out if row.follows_from is None)

    @property
    def median_error(self) -> float:
        """Median of the errors of the scored figures, without sign."""
        return median(abs(row.error) for row in self.scored if row.error is not None)

    def num_within(self, error: float) -> int:
        """Return the number of scored figures that are met up to a relative error."""
        return sum(row.error is not None and abs(row.error) <= error for row in self.scored)

    def num_null_within(self, error: float) -> int:
        """Return the number of scored figures that a model meets in which nothing has any effect."""
        return sum(row.null_error is not None and abs(row.null_error) <= error for row in self.scored)


def compare(paper: Paper, published: Published) -> PaperComparison:
    """Calibrate on the baselines, then predict; takes up to a minute."""
    constants = _calibrated(paper, published.baselines())
    predicted = _predicted(constants)
    figures = published.of(paper)
    unknown = {key.split(VARIANT)[0] for key in predicted} - {figure.id for figure in figures}
    assert not unknown, f"predictions that nobody published: {sorted(unknown)}"
    return PaperComparison(
        paper, constants.listed(), tuple(row for figure in figures for row in _rows(figure, predicted))
    )


def constants_of(paper: Paper, published: Published) -> tuple[Constant, ...]:
    """Calibrate only."""
    return _calibrated(paper, published.baselines()).listed()


_Constants = (
    rollpacker.RollPackerConstants | april.AprilConstants | reorder.ReorderConstants | rolloutpipe.RolloutPipeConstants
)


def _calibrated(paper: Paper, baselines: Baselines) -> _Constants:
    match paper:
        case Paper.ROLLPACKER:
            return rollpacker.calibrate(baselines)
        case Paper.APRIL:
            return april.calibrate(baselines)
        case Paper.REORDER:
            return reorder.calibrate(baselines)
        case Paper.ROLLOUTPIPE:
            return rolloutpipe.calibrate(baselines)


def _predicted(constants: _Constants) -> Mapping[str, Prediction]:
    match constants:
        case rollpacker.RollPackerConstants():
            return rollpacker_figures.predict(constants)
        case april.AprilConstants():
            return april.predict(constants)
        case reorder.ReorderConstants():
            return reorder.predict(constants)
        case rolloutpipe.RolloutPipeConstants():
            return rolloutpipe.predict(constants)


def _rows(figure: PublishedFigure, predicted: Mapping[str, Prediction]) -> list[FigureRow]:
    variants = [key.split(VARIANT)[1] for key in predicted if key.startswith(figure.id + VARIANT)]
    published = figure.value if figure.value is not None else figure.ends
    return [
        FigureRow(
            figure.id,
            figure.source,
            figure.unit,
            figure.role,
            published,
            predicted.get(figure.id + (VARIANT + variant if variant else "")),
            variant,
            figure.null,
            figure.follows_from,
        )
        for variant in ["", *variants]
    ]


def _ends(value: Prediction) -> tuple[float, float]:
    return value if isinstance(value, tuple) else (value, value)


def _json(value: Prediction | None) -> float | list[float] | None:
    return list(value) if isinstance(value, tuple) else value

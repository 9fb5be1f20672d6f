"""Figures that papers print, and which of them a calibration may see."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import Field, TypeAdapter, model_validator

from longshore.api.base import ApiModel

PUBLISHED_FILE: Final = Path(__file__).parent / "published.yaml"
"""Data of this package; anyone who reads it brings a YAML parser, which the core does without."""


class Paper(StrEnum):
    """What the simulator is compared with."""

    ROLLPACKER = "rollpacker"
    APRIL = "april"
    REORDER = "reorder"
    ROLLOUTPIPE = "rolloutpipe"


class FigureRole(StrEnum):
    """What a figure is for."""

    BASELINE = "baseline"
    """Describes the workload, or a system without the paper's method: constants may be fitted to it."""
    HELD_OUT = "held_out"
    """The simulator has to predict it; no constant sees it."""
    NOT_MODELLED = "not_modelled"
    """The simulator has no such mechanism, or the paper contradicts itself."""


class Unit(StrEnum):
    """How a figure reads."""

    RATIO = "ratio"
    SECONDS = "seconds"
    TOKENS = "tokens"
    PERCENT = "percent"
    """A share."""
    PERCENT_MORE = "percent_more"
    PERCENT_LESS = "percent_less"

    def factor(self, value: float) -> float:
        """Return the factor that errors are relative to: 44 % more is a factor of 1.44, 40 % less one of 0.6."""
        match self:
            case Unit.PERCENT_MORE:
                return 1 + value / 100
            case Unit.PERCENT_LESS:
                return 1 - value / 100
            case _:
                return value

    @property
    def no_change(self) -> float | None:
        """Value for two systems that are alike; None where the unit is no comparison."""
        return {Unit.RATIO: 1.0, Unit.PERCENT_MORE: 0.0, Unit.PERCENT_LESS: 0.0}.get(self)


class PublishedFigure(ApiModel):
    """One figure, or a range that a paper gives over several settings."""

    id: str = Field(pattern=r"^(rollpacker|april|reorder|rolloutpipe)/[^ ]+$")
    """Paper and name."""
    source: str = Field(min_length=12)
    """Section or table, and what the figure says."""
    unit: Unit
    """How it reads."""
    role: FigureRole
    """What it is for."""
    value: float | None = None
    """A single figure."""
    low: float | None = None
    """Lower end of a range."""
    high: float | None = None
    """Upper end of a range."""
    no_effect: float | None = None
    """What it would be if the paper's method had no effect; unset: no change, where the unit compares two systems."""
    follows_from: str | None = None
    """Figures that determine it by construction, so that meeting it proves nothing more; it is not scored."""
    why: str | None = None
    """Why it is not modelled."""

    @model_validator(mode="after")
    def _is_figure_or_range(self) -> "PublishedFigure":
        if (self.value is None) == (self.low is None) or (self.low is None) != (self.high is None):
            raise ValueError(f"{self.id}: give either value, or low and high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{self.id}: low exceeds high")
        if (self.role is FigureRole.NOT_MODELLED) != (self.why is not None):
            raise ValueError(f"{self.id}: why explains figures that are not modelled, and only those")
        if self.role is not FigureRole.HELD_OUT and (self.follows_from or self.no_effect is not None):
            raise ValueError(
                f"{self.id}: follows_from and no_effect describe figures that are held out, and only those"
            )
        return self

    @property
    def paper(self) -> Paper:
        """Paper that prints it."""
        return Paper(self.id.split("/")[0])

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end; the same twice for a single figure."""
        if self.value is not None:
            return self.value, self.value
        assert self.low is not None and self.high is not None
        return self.low, self.high

    @property
    def is_scored(self) -> bool:
        """Whether meeting it says something about the simulator."""
        return self.role is FigureRole.HELD_OUT and self.follows_from is None

    @property
    def null(self) -> tuple[float, float] | None:
        """Range that a model predicts in which nothing has any effect; None where there is no such prediction."""
        if self.role is not FigureRole.HELD_OUT:
            return None
        value = self.unit.no_change if self.no_effect is None else self.no_effect
        return None if value is None else (value, value)

    @property
    def middle(self) -> float:
        """The figure, or the middle of its range."""
        return sum(self.ends) / 2


@dataclass(frozen=True)
class Baselines:
    """Figures that a calibration may see: no other can be asked for."""

    figures: Mapping[str, PublishedFigure]

    def __getitem__(self, figure_id: str) -> float:
        return self.figures[figure_id].middle


@dataclass(frozen=True)
class Published:
    """All published figures in use, by id."""

    figures: tuple[PublishedFigure, ...]

    @classmethod
    def of_rows(cls, rows: object) -> "Published":
        """Build figures from the parsed `published.yaml`; ValueError for what is malformed or there twice."""
        figures = _FIGURES.validate_python(rows)
        if len({figure.id for figure in figures}) < len(figures):
            raise ValueError("published.yaml: an id is there twice")
        return cls(tuple(figures))

    def of(self, paper: Paper, *roles: FigureRole) -> tuple[PublishedFigure, ...]:
        """Return the figures of a paper, in the order of the file; all of them without a role."""
        return tuple(figure for figure in self.figures if figure.paper is paper and (not roles or figure.role in roles))

    def baselines(self) -> Baselines:
        """Return what a calibration gets: baselines of all papers, since some facts only one of them states."""
        return Baselines({figure.id: figure for figure in self.figures if figure.role is FigureRole.BASELINE})


_FIGURES: Final[TypeAdapter[list[PublishedFigure]]] = TypeAdapter(list[PublishedFigure])


def span(values: Iterable[Any]) -> tuple[float, float]:
    """Lower and upper end of predictions over several settings."""
    listed = [float(value) for value in values]
    return min(listed), max(listed)

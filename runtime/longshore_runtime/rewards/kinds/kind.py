"""What a job asks of a kind of reward function. Processes that score import this: it comes without pydantic."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from longshore.api.reward import RewardFunction
    from longshore_runtime.rewards.scoring import ResponseScorer, ScoreItem


@dataclass(frozen=True)
class WorkerSide:
    """What a worker has for a function besides its settings."""

    token: Path | None
    """File with its bearer token."""
    output: str
    """Output directory of the job."""
    rehearsal: "Sequence[ScoreItem]" = ()
    """Rows with their reference answers as responses, which the function must be able to score."""


class Kind(ABC):
    """A kind of reward function. What is not abstract fits kinds that read nothing but prompt, response and answer."""

    is_proven: ClassVar[bool] = False
    """Whether its functions work wherever Longshore does: they need nothing from the user and nothing of the pod."""
    compares_with_rows: ClassVar[bool] = False
    """Whether a part of a row is what responses are compared with, so that a row can be one for which none will do."""

    @abstractmethod
    def scorer(self, function: "RewardFunction", side: WorkerSide) -> "ResponseScorer":
        """Return the function ready to score, in a worker.

        Raises:
            RewardSetupError: it can score nothing.
            RewardFault: something else failed.
        """

    def check(self, function: "RewardFunction") -> None:  # noqa: B027 - most settings are checked by their types
        """Raise UserError for settings with which it can score nothing, before anything starts."""

    def read_row(
        self, function: "RewardFunction", fields: Mapping[str, Any], reference: object, source: str
    ) -> Mapping[str, Any]:
        """Return fields of a row in the form in which they are scored; raises UserError if no response can do for it.

        Args:
            function: function that scores the row.
            fields: fields of the row as they are in the data.
            reference: answer as it is in the row.
            source: name of the row in messages.
        """
        return {}


class ChildKind(Kind):
    """A kind whose functions run in a process of their own (`child`), where a time limit can end them."""

    is_forked: ClassVar[bool] = False
    """Whether this process is a fork of one with the imports done. It then runs no code of users."""
    limits_memory: ClassVar[bool] = True
    """Whether this process may use little memory: beyond that, an answer counts as one that cannot be read."""

    def scorer(self, function: "RewardFunction", side: WorkerSide) -> "ResponseScorer":
        """Start the process and score the rehearsal."""
        from longshore_runtime.rewards.child_scorer import ChildScorer

        return ChildScorer(function, side.rehearsal)

    @abstractmethod
    def load(self, import_path: str | None) -> Callable[..., float]:
        """Return the function of (prompt, response, answer), and `is_cut` if it has that; called in its process.

        Raises:
            BaseException: what the import of a module of the user does, or AttributeError if it has no such function.
        """

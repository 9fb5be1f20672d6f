"""Auto: tail batching whose factors, handover and frontier change between rounds, as the job learns what suits it.

With a prompt factor of 1 short rounds are those of `Synchronous`, and with handover Pipelined those of `GroupPipeline`,
so no draw ever has to change its strategy: what waits goes on waiting, and is trained on once, in a long round.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from pydantic import ValidationError

from longshore.api.rollout import Handover, Rollout, TailBatchingSettings
from longshore.api.spec import Placement, RLJobSpec
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from longshore.policy.tail_batching import TailBatching


@dataclass(frozen=True)
class RoundChoice:
    """Settings of a round that Auto chooses."""

    prompt_factor: float = TailBatchingSettings().prompt_factor
    """Prompt factor of tail batching."""
    response_factor: float = 1.0
    handover: Handover = Handover.AFTER_ROUND
    frontier_width: int | None = None
    """Width of the frontier, as `spec.rollout.admission.frontierWidth`; None: all groups are in service."""

    @classmethod
    def of(cls, rollout: Rollout) -> "RoundChoice":
        """Return the choice that the job begins with."""
        tail, width = rollout.tail_batching, rollout.admission.frontier_width
        return cls(tail.prompt_factor, tail.response_factor, rollout.effective_handover, width)

    @property
    def factors(self) -> TailBatchingSettings:
        """Factors of tail batching."""
        return TailBatchingSettings(prompt_factor=self.prompt_factor, response_factor=self.response_factor)

    @property
    def fields(self) -> dict[str, str]:
        """Values of the choice by their names in a manifest."""
        return {
            "promptFactor": f"{self.prompt_factor:g}",
            "responseFactor": f"{self.response_factor:g}",
            "handover": str(self.handover),
            "frontierWidth": "unset" if self.frontier_width is None else str(self.frontier_width),
        }


def free_handovers(spec: RLJobSpec) -> tuple[Handover, ...]:
    """Return the handovers that may take turns from round to round without a restart; none where the job names its own.

    They make as many updates from the same tokens, at other times; where they would not, the search keeps to the one
    that is better for learning (`sim.choices.handovers`). Trainers that share the GPUs of the engines can
    work during a round only where the operator repurposes pods, which the spec has to ask for (`Streamed`).
    """
    rollout = spec.rollout
    if rollout.handover is not None or spec.placement is Placement.COLOCATED:
        return ()
    pipelined = rollout.model_copy(update={"handover": Handover.PIPELINED})
    try:
        RLJobSpec.model_validate(spec.model_copy(update={"rollout": pipelined}).model_dump(by_alias=True))
    except ValidationError:  # The objective needs the whole batch, for example.
        return ()
    return (Handover.AFTER_ROUND, Handover.PIPELINED)


class Auto(TailBatching):
    """Begins with what the job says; `choose` changes it."""

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        return cls(shape, cursor, RoundChoice.of(rollout), rules, keeps_tokens=rollout.keeps_tokens)

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        begin: RoundChoice,
        rules: AdmissionRules = NO_RULES,
        *,
        keeps_tokens: bool = False,
    ) -> None:
        super().__init__(shape, cursor, begin.factors, rules, keeps_tokens=keeps_tokens)
        self.begin = self.choice = begin
        """What was chosen for the next rounds; before the first choice, `begin`."""

    def choose(self, choice: RoundChoice) -> None:
        """Use these factors, which are those of short rounds, from now on."""
        assert self._round is None, "rounds change between rounds"
        self.choice = choice
        self._use_factors(choice.factors)
        self._rules = replace(self._rules, frontier_width=choice.frontier_width)

    def _export_history(self) -> dict[str, Any]:
        return {"begin": asdict(self.begin), "choice": asdict(self.choice)}

    def _load_history(self, state: Mapping[str, Any]) -> None:
        """Load the history, unless the job was given other settings since."""
        chosen = state["choice"]
        if state["begin"] == asdict(self.begin):
            self.choose(RoundChoice(**chosen | {"handover": Handover(chosen["handover"])}))

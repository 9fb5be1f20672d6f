"""Auto: tail batching whose factors change between rounds, as the job learns what suits it.

With a prompt factor of 1 short rounds are those of `Synchronous`, so no draw ever has to change its strategy: what
waits goes on waiting, and is trained on once, in a long round.
"""

import math
from collections.abc import Mapping
from typing import Any

from longshore.api.rollout import TailBatchingSettings
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape
from longshore.policy.tail_batching import TailBatching


class Auto(TailBatching):
    """Begins with the factors of the job; `choose` changes them."""

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        settings: TailBatchingSettings,
        rules: AdmissionRules = NO_RULES,
        *,
        keeps_tokens: bool = False,
        max_prompt_factor: float = math.inf,
    ) -> None:
        super().__init__(shape, cursor, settings, rules, keeps_tokens=keeps_tokens)
        self.begin = self.settings = settings
        """Of the next short round; `begin`: of the first one."""
        self._max_prompt_factor = max_prompt_factor

    def choose(self, settings: TailBatchingSettings) -> None:
        """Short rounds have these factors from now on."""
        assert self._round is None, "factors change between rounds"
        self.settings = settings
        self._use_factors(settings)

    def _export_history(self) -> dict[str, Any]:
        return {"begin": self.begin.model_dump(by_alias=False), "settings": self.settings.model_dump(by_alias=False)}

    def _load_history(self, state: Mapping[str, Any]) -> None:
        """A job that was given other factors, or a lower bound, begins with those."""
        begin, chosen = (
            TailBatchingSettings.model_validate(state[name], by_name=True) for name in ("begin", "settings")
        )
        if begin == self.begin and chosen.prompt_factor <= self._max_prompt_factor:
            self.choose(chosen)

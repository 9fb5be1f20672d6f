"""Time limits of the test cases of code rewards: fixed, or learned from correct responses."""

from collections.abc import Iterable, Mapping
from typing import Any

from longshore.api.reward import RewardFunction, RewardKind
from longshore.policy.adaptive_timeout import AdaptiveTimeout, TimeoutSettings
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rewards.scoring import ScoreResult


class CaseLimits:
    """Limits for all reward functions of a job."""

    def __init__(self, functions: Iterable[RewardFunction]) -> None:
        self._learned = {
            one.name: AdaptiveTimeout(
                TimeoutSettings(one.code.timeout_factor, one.code.min_timeout_s, one.code.max_timeout_s)
            )
            for one in functions
            if one.kind is RewardKind.CODE and one.code.adaptive_timeout
        }

    def of(self, function: RewardFunction, record: PromptRecord) -> list[float] | None:
        """Return the present limit of each test case of a prompt, in seconds; None: the function runs no tests."""
        if function.kind is not RewardKind.CODE:
            return None
        cases = record.fields[function.code.tests_field]
        assert isinstance(cases, list), "checked when the data was read"
        learned = self._learned.get(function.name)
        if learned is None:
            return [function.code.max_timeout_s] * len(cases)
        return [learned.limit(record.index, case).wall_s for case in range(len(cases))]

    def learn(self, function: str, record: PromptRecord, result: ScoreResult) -> None:
        """Learn from the score of a response."""
        if function in self._learned:
            self._learned[function].response_tested(record.index, result.runs, passed_all=result.passed_all)

    def export_state(self) -> dict[str, Any]:
        """Return what was learned, as JSON values."""
        return {name: timeout.export_state() for name, timeout in self._learned.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `export_state` returned."""
        for name, timeout in self._learned.items():
            if name in state:
                timeout.load_state(state[name])

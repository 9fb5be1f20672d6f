"""What came of one check."""

from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """Kinds of checks, in the order in which mistakes are best corrected."""

    SPEC = "spec"
    OPERATOR_RULES = "operator-rules"
    ENGINE_ARGUMENTS = "engine-arguments"
    MODEL_FILES = "model-files"
    MODEL_LIMITS = "model-limits"
    GPU_MEMORY = "gpu-memory"
    POD_MEMORY = "pod-memory"
    COORDINATOR_MEMORY = "coordinator-memory"
    LEARNING_RATE = "learning-rate"
    DATA_ROWS = "data-rows"
    TRAINER_SIZES = "trainer-sizes"
    TOKENIZER = "tokenizer"
    REFERENCES = "references"
    PROMPTS = "prompts"
    WARM_START = "warm-start"
    OBJECTIVE = "objective"
    REWARD_IMPORTS = "reward-imports"
    REWARD_CALLS = "reward-calls"
    ENVIRONMENTS = "environments"
    TRACKERS = "trackers"


class CheckOutcome(StrEnum):
    """Whether the checked part can work."""

    PASSED = "Passed"
    FAILED = "Failed"
    NOT_CHECKED = "NotChecked"


@dataclass(frozen=True)
class CheckResult:
    """Result of one check of a job."""

    name: Check
    mistakes: tuple[str, ...] = ()
    """One sentence each, with the field and the fix."""
    detail: str = ""
    """What was found; of a check that was not made: why."""
    is_checked: bool = True

    @property
    def outcome(self) -> CheckOutcome:
        """Outcome of the check; any mistake fails it."""
        if self.mistakes:
            return CheckOutcome.FAILED
        return CheckOutcome.PASSED if self.is_checked else CheckOutcome.NOT_CHECKED


def not_checked(name: Check, reason: str) -> CheckResult:
    """Return a check that there was nothing to look at for."""
    return CheckResult(name, detail=reason, is_checked=False)

"""What a process that scores needs of its function's settings. Without pydantic: many such processes start."""

from enum import StrEnum


class RewardKind(StrEnum):
    """How a response is scored."""

    TASK = "Task"
    MATHS = "Maths"
    PYTHON = "Python"
    CODE = "Code"
    JUDGE = "Judge"
    HTTP = "HTTP"
    ENVIRONMENT = "Environment"


class Signature(StrEnum):
    """How a Python function wants to be called."""

    LONGSHORE = "Longshore"
    VERL = "Verl"
    TRL = "TRL"

"""Every condition has its reasons in the reference that is generated from them."""

from longshore.api.reasons import CONDITIONS
from longshore.api.status import ConditionType


def test_every_condition_has_its_reasons() -> None:
    assert list(CONDITIONS) == list(ConditionType)

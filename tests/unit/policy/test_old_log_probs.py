"""What the clipped ratio is relative to, and where that costs a forward pass."""

import pytest

from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.registry import OBJECTIVES
from longshore.policy.old_log_probs import computes_old_log_probs, is_relative_to_trainer


@pytest.mark.parametrize("name", OBJECTIVES)
def test_response_ratios_are_relative_to_the_trainer_and_token_ratios_to_the_engine(
    name: str,
) -> None:
    assert is_relative_to_trainer(OBJECTIVES[name], None) is (name == "GSPO")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_with_rollout_correction_every_ratio_is_relative_to_the_trainer(name: str) -> None:
    assert is_relative_to_trainer(OBJECTIVES[name], RolloutCorrection())


@pytest.mark.parametrize(
    ("is_relative", "makes_one_update", "begins_during_round", "computes"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (True, True, True, False),
        (True, False, True, False),
        (False, False, False, False),
    ],
)
def test_a_pass_is_made_where_later_updates_compare_with_weights_already_changed(
    is_relative: bool, makes_one_update: bool, begins_during_round: bool, computes: bool
) -> None:
    found = computes_old_log_probs(
        is_relative=is_relative, makes_one_update=makes_one_update, begins_during_round=begins_during_round
    )
    assert found is computes

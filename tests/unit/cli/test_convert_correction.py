"""`longshore convert` of the corrections of verl and TRL for engines and trainers that differ."""

from typing import Any, Final

import pytest

from longshore_cli.convert.conversion import convert
from longshore_cli.convert.verl import VERL
from tests.unit.cli.conversions import FIXED, VERL_GSPO, VERL_RUN, spec, trl, verl


def test_bounds_of_verls_rejection_are_those_of_the_reciprocal_ratio() -> None:
    prefix = "algorithm__rollout_correction__"
    given = {
        f"{prefix}rollout_is": "token",
        f"{prefix}rollout_rs": "seq_mean_k1",
        f"{prefix}rollout_rs_threshold": "0.5_4",
    }
    assert spec(verl(**given))["algorithm"]["rolloutCorrection"] == {
        "rolloutIs": "Token", "rolloutIsThreshold": 2.0, "rolloutRs": "Geometric", "rolloutRsThreshold": 2.0,
        "rolloutRsThresholdLower": 0.25,
    }  # fmt: skip


def test_what_rejects_responses_is_reported_where_bypass_mode_has_no_correction() -> None:
    prefix = "algorithm.rollout_correction."
    given = {f"{prefix}bypass_mode": True, f"{prefix}rollout_rs": "token_k1,seq_max_k2"}
    found = convert(VERL, VERL_RUN | given, FIXED)
    assert "rolloutCorrection" not in spec(found)["algorithm"]
    assert "nothing is rejected" in found.left_out[f"{prefix}rollout_rs"]


def test_gspo_clips_to_the_trainers_own_log_probabilities_without_a_correction() -> None:
    plain, bypassed = verl(**VERL_GSPO), verl(**VERL_GSPO, algorithm__rollout_correction__bypass_mode=True)
    of_trl = trl(loss_type="grpo", importance_sampling_level="sequence", vllm_importance_sampling_correction=False)
    for found in (plain, bypassed, of_trl):
        assert spec(found)["algorithm"]["objective"]["name"] == "GSPO"
        assert "rolloutCorrection" not in spec(found)["algorithm"]
    key = "algorithm.rollout_correction.bypass_mode"
    assert "the trainer's own" in bypassed.left_out[key]
    assert key not in plain.left_out


def test_a_correction_of_gspo_is_kept() -> None:
    found = spec(verl(**VERL_GSPO, algorithm__rollout_correction__rollout_is="token"))
    assert found["algorithm"]["rolloutCorrection"]["rolloutIs"] == "Token"
    by_sequence = trl(loss_type="grpo", importance_sampling_level="sequence")
    assert spec(by_sequence)["algorithm"]["rolloutCorrection"]["rolloutIs"] == "Sequence"


_BYPASS: Final = "algorithm.rollout_correction."


def corrected(**given: Any) -> Any:
    """The rolloutCorrection of a run with these keys of verl's correction."""
    found = convert(VERL, VERL_RUN | {f"{_BYPASS}{key}": value for key, value in given.items()}, FIXED)
    return spec(found)["algorithm"]["rolloutCorrection"]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_the_lower_bound_of_older_rejections_is_the_reciprocal_of_the_upper_one(level: str) -> None:
    found = corrected(rollout_rs=level, rollout_rs_threshold=4.0)
    assert (found["rolloutRsThreshold"], found["rolloutRsThresholdLower"]) == (4.0, 0.25)
    assert corrected(rollout_rs=level, rollout_rs_threshold=4.0, rollout_rs_threshold_lower=0.5) == found | {
        "rolloutRsThresholdLower": 0.5
    }


@pytest.mark.parametrize(("threshold", "level"), [("0.5_5.0", "token"), ("0.5_5.0", "sequence")])
def test_two_bounds_of_weights_reject_outside_them(threshold: str, level: str) -> None:
    ours = level.capitalize()
    assert corrected(rollout_is=level, rollout_is_threshold=threshold) == {
        "rolloutIs": ours, "rolloutIsThreshold": 5.0, "rolloutRs": ours, "rolloutRsThreshold": 5.0,
        "rolloutRsThresholdLower": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"rollout_rs": "token_k1"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "5_2"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token", "rollout_rs_threshold": -1}, "rollout_rs_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "high"}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_5", "rollout_rs": "token_k1",
          "rollout_rs_threshold": 2}, "rollout_rs"),
    ],
)  # fmt: skip
def test_bounds_that_verl_does_not_take_prevent_a_job(given: dict[str, Any], key: str) -> None:
    found = convert(VERL, VERL_RUN | {f"{_BYPASS}{name}": value for name, value in given.items()}, FIXED)
    assert list(found.prevented) == [f"{_BYPASS}{key}"]


def test_weights_without_a_bound_or_of_an_older_name_are_those_of_verl() -> None:
    assert corrected(rollout_is="token", rollout_is_threshold=None) == {"rolloutIs": "None", "rolloutRs": "None"}
    older = verl(actor_rollout_ref__actor__tis_imp_ratio_cap=3.0)
    assert spec(older)["algorithm"]["rolloutCorrection"] == {
        "rolloutIs": "Token", "rolloutRs": "None", "rolloutIsThreshold": 3.0
    }  # fmt: skip
    off = verl(actor_rollout_ref__actor__tis_imp_ratio_cap=-1)
    assert spec(off)["algorithm"]["rolloutCorrection"]["rolloutIs"] == "None"


def test_weights_without_a_clip_are_cispo() -> None:
    given = {f"{_BYPASS}bypass_mode": True, f"{_BYPASS}rollout_is": "token", f"{_BYPASS}rollout_is_threshold": 5.0}
    for key, value in (("loss_type", "reinforce"), ("use_policy_gradient", True)):
        found = convert(VERL, VERL_RUN | given | {f"{_BYPASS}{key}": value}, FIXED)
        algorithm = spec(found)["algorithm"]
        assert algorithm["objective"] == {"name": "CISPO", "clipLow": 1.0, "clipHigh": 4.0}
        assert "rolloutCorrection" not in algorithm
        unweighted = convert(VERL, VERL_RUN | {f"{_BYPASS}bypass_mode": True, f"{_BYPASS}{key}": value}, FIXED)
        assert "the loss is clipped" in unweighted.left_out[f"{_BYPASS}{key}"]

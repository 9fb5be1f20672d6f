"""Reward functions of verl and TRL score as they are, from files that no package holds."""

import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.numbers import finite_reward
from longshore_runtime.rewards.scoring import RewardError, RewardSetupError, ScoreItem
from longshore_runtime.rewards.transports.pod_protocol import Begin, ScoreRequest, decode, encode_begin, encode_request

ROW: dict[str, Any] = {
    "data_source": "openai/gsm8k", "solution": "72", "level": 3, "day": date(2026, 1, 1),
    "extra_info": {"index": 7, "split": "train"}, "reward_model": {"ground_truth": 72, "style": "rule"},
}  # fmt: skip
MESSAGES = ({"role": "user", "content": "How many?"},)


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_MODULES, str(Path(__file__).with_name("users")))


def function(name: str, signature: str) -> RewardFunction:
    module = {"Verl": "verl_reward", "TRL": "trl_reward"}.get(signature, "verl_reward")
    path = name if ":" in name else f"{module}:{name}"
    return RewardFunction.model_validate(
        {"name": "mine", "kind": "Python", "importPath": path, "signature": signature, "timeoutSeconds": 180}
    )


def item(response: str, *, chat: bool = True, **row: Any) -> ScoreItem:
    messages = MESSAGES if chat else ()
    return ScoreItem("row 7", "How many?", response, "72", ROW | row, reference=72, messages=messages)


CUT = replace(item("72"), is_cut=True)


def rewards(one: RewardFunction, *scored: ScoreItem) -> list[float]:
    """What it scores in a reward pod: everything has crossed the network as JSON."""
    request = decode(ScoreRequest, encode_request(1, one, scored))
    scorer = ChildScorer(one)
    try:
        return [scorer.score(arrived).reward for arrived in request.items]
    finally:
        scorer.close()


def reward(one: RewardFunction, scored: ScoreItem) -> float:
    return rewards(one, scored)[0]


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("compute_score", "so it is\n#### 72", 1.5),
        ("compute_score", "#### 71", 0.6),
        ("compute_score", "no idea", 0.5),
    ],
)
def test_a_function_of_verl_gets_the_columns_of_its_row(name: str, response: str, expected: float) -> None:
    assert reward(function(name, "Verl"), item(response)) == expected


@pytest.mark.parametrize(
    ("name", "signature"),
    [("plain_reward:of_cut", "Longshore"), ("of_cut", "Verl"), ("of_cut", "TRL"), ("of_cut_or_more", "TRL")],
)
def test_a_function_learns_whether_the_response_was_cut_if_it_asks(name: str, signature: str) -> None:
    assert rewards(function(name, signature), CUT, item("72")) == [1.0, 0.0]


TOLD = replace(item("72"), state='{"score":2.5}')


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("plain_reward:of_state", "Longshore"),
        ("plain_reward:of_state_later", "Longshore"),
        ("of_state", "Verl"),
        ("of_state", "TRL"),
        ("of_state_or_more", "TRL"),
    ],
)
def test_function_gets_the_final_state_of_an_environment_if_it_asks(name: str, signature: str) -> None:
    assert reward(function(name, signature), TOLD) == 2.5


@pytest.mark.parametrize(
    ("name", "signature"),
    [("plain_reward:of_state", "Longshore"), ("of_state", "Verl"), ("of_state_or_more", "TRL")],
)
def test_function_gets_no_state_where_there_is_none(name: str, signature: str) -> None:
    assert reward(function(name, signature), item("72")) == 0.0


def test_row_without_extra_info_gets_one_for_a_state() -> None:
    assert reward(function("of_state", "Verl"), replace(TOLD, row={})) == 2.5
    assert reward(function("as_boolean", "Verl"), ScoreItem("row", "p", "72", "72", {}, reference="72")) == 1.0


def test_row_may_have_a_state_of_its_own() -> None:
    own = {"score": 1.5}
    assert reward(function("of_state", "TRL"), replace(TOLD, row={"state": own})) == 1.5
    assert reward(function("of_state", "Verl"), replace(TOLD, row={"extra_info": {"state": own}})) == 1.5


def test_function_that_needs_a_state_is_not_rehearsed_without_an_episode() -> None:
    for name, signature in (("plain_reward:of_state_later", "Longshore"), ("of_state", "TRL")):
        scorer = ChildScorer(function(name, signature), [item("72")])
        assert not scorer.is_rehearsed
        assert scorer.score(TOLD).reward == 2.5
        scorer.close()


@pytest.mark.parametrize(("name", "expected"), [("of_length", 2.0), ("of_options", 0.0)])
def test_a_function_that_ignores_whether_a_response_was_cut_scores_it_all_the_same(name: str, expected: float) -> None:
    assert reward(function(f"plain_reward:{name}", "Longshore"), CUT) == expected


def test_a_row_may_have_a_column_of_that_name() -> None:
    assert reward(function("of_cut", "TRL"), item("72", is_cut=2.5)) == 2.5
    assert reward(function("of_cut", "Verl"), item("72", extra_info={"is_cut": 2.5})) == 2.5


def test_integers_of_a_row_stay_exact_whatever_their_size() -> None:
    number = 25**25 + 1
    assert reward(function("large_number", "Verl"), item(str(number), extra_info={"number": number})) == 1.0


def test_booleans_and_coroutines_of_verl_are_rewards() -> None:
    texts = ScoreItem("row", "p", "72", "72", {}, reference="72")
    assert reward(function("as_boolean", "Verl"), texts) == 1.0
    assert reward(function("judged", "Verl"), texts) == 2.0


def test_tensor_is_a_reward_if_it_holds_one_number() -> None:
    assert finite_reward(torch.tensor([[0.5]])) == finite_reward(torch.tensor(0.5, requires_grad=True)) == 0.5
    with pytest.raises(
        ValueError, match=r"^returned tensor\(\[1., 2.\]\), which float\(\) does not convert \(RuntimeE"
    ):
        finite_reward(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"^returned tensor\(True\) instead of a number"):
        finite_reward(torch.tensor(True))


def test_asynchronous_functions_share_one_event_loop_for_all_calls() -> None:
    assert rewards(function("plain_reward:of_two", "Longshore"), *[item("72")] * 3) == [1.0] * 3


def test_task_of_an_asynchronous_function_goes_on_between_calls(tmp_path: Path) -> None:
    scorer = ChildScorer(function("plain_reward:later", "Longshore"))
    scorer.score(item(str(tmp_path / "written")))
    while not (tmp_path / "written").exists():
        time.sleep(0.01)
    scorer.close()


@pytest.mark.parametrize(
    ("name", "scored", "expected"),
    [
        ("accuracy_reward", item("72"), 1.0),
        ("accuracy_reward", item("71"), 0.0),
        ("prompt_reward", item("123456789", chat=False), 4.0),
        ("format_reward", item("no thoughts", chat=False), 0.0),
        ("format_reward", item("<think>", chat=False), 1.0),
        ("slow_reward", item("72"), 1.0),
    ],
)
def test_a_function_of_trl_gets_lists_of_one_with_the_columns_that_it_takes(
    name: str, scored: ScoreItem, expected: float
) -> None:
    assert reward(function(name, "TRL"), scored) == expected


def test_a_function_of_a_row_is_rehearsed_with_the_whole_row() -> None:
    one = function("compute_score", "Verl")
    rehearsal = decode(Begin, encode_begin([one], {"mine": [item("#### 72")]})).rehearsals["mine"]
    assert rehearsal[0].row["extra_info"] == ROW["extra_info"]
    ChildScorer(one, rehearsal).close()
    with pytest.raises(RewardSetupError, match=r"it scores none of the 1 rows .* not implemented for data_source='x'"):
        ChildScorer(one, [item("#### 72", data_source="x")])


def test_what_a_function_raises_about_a_row_is_reported_with_the_row() -> None:
    with pytest.raises(RewardError, match=r"^reward mine: row 7: raised NotImplementedError: "):
        reward(function("compute_score", "Verl"), item("#### 72", data_source="other"))


@pytest.mark.parametrize(
    ("path", "signature", "reported"),
    [
        ("verl_reward:compute_score", "Longshore", "has the parameters of verl's compute_score; set signature to Verl"),
        ("trl_reward:accuracy_reward", "Longshore", "has the parameters of TRL's reward functions; set signature to"),
        ("trl_reward:accuracy_reward", "Verl", r"does not take data_source, solution_str, ground_truth, extra_info \("),
        ("verl_reward:compute_score", "TRL", "does not take completions; change it, or set another signature"),
        ("trl_reward:needs_environments", "TRL", "needs environments, which run elsewhere; take state"),
        ("trl_reward:needs_ids", "TRL", "needs completion_ids, which only TRL's trainer has; give the parameter a"),
    ],
)
def test_a_function_with_another_signature_is_refused_before_it_scores_nonsense(
    path: str, signature: str, reported: str
) -> None:
    with pytest.raises(RewardSetupError, match=rf"^reward\.functions\[mine\]\.importPath: '{path}' {reported}"):
        ChildScorer(function(path, signature))

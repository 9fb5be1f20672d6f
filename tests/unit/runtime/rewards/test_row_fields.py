"""Rows are read by the reward functions of their domain, and one that none takes is reported with its line."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.reward import Code, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.pool import CaseLimits, RoundScores
from longshore_runtime.rewards.row_fields import with_row_fields
from longshore_runtime.trajectories.trajectory import EMPTY

MATHS = RewardFunction(name="maths", kind=RewardKind.MATHS, domains=["algebra", "geometry"])
CODE = RewardFunction(name="code", kind=RewardKind.CODE, domains=["code"])
STYLE = RewardFunction(name="style", kind=RewardKind.PYTHON, import_path="style:score")
TESTS = [{"stdin": "", "stdout": ""}]


def record(index: int, source: str = "data.jsonl, line 5", **fields: Any) -> PromptRecord:
    return PromptRecord(index, "prompt", (1,), "answer", fields, source, domain=fields.get("topic", ""))


def prompts(*train: PromptRecord, held_out: tuple[PromptRecord, ...] = ()) -> PromptSets:
    return PromptSets(train, held_out, num_too_long=2)


def test_rows_of_all_prompts_are_read_by_the_functions_of_their_domain() -> None:
    sets = prompts(record(0, topic="geometry"), held_out=(record(1, topic="code", tests=str(TESTS).replace("'", '"')),))
    found = with_row_fields(sets, [MATHS, CODE, STYLE])
    assert [one.fields for one in found.train] == [{"topic": "geometry"}]
    assert [one.fields["tests"] for one in found.held_out] == [TESTS]
    assert found.num_too_long == 2


@pytest.mark.parametrize(
    ("domain", "names"), [("geometry", ["maths", "style"]), ("code", ["code", "style"]), ("", ["style"])]
)
def test_row_is_scored_by_functions_of_its_domain_and_those_without(domain: str, names: list[str]) -> None:
    functions = {one.name: one for one in (MATHS, CODE, STYLE)}
    scores, response = RoundScores(1, [record(0, topic=domain)], functions, CaseLimits(())), ResponseId(Draw(0, 0), 0)
    tasks = scores.add({response: Completion(str(response), EMPTY, FinishReason.STOP, 0)})
    assert [task.function for task in tasks] == names


def test_a_row_that_nothing_scores_is_reported_by_its_line_and_domain() -> None:
    with pytest.raises(
        UserError, match=r"^data.jsonl, line 5: no reward function scores domain 'poetry'; add it to reward.functions"
    ):
        with_row_fields(prompts(record(0, topic="poetry")), [MATHS, CODE])


def test_malformed_test_cases_are_found_before_anything_is_sampled() -> None:
    rows = (record(0, topic="code", tests=TESTS), record(1, "data.jsonl, line 9", topic="code", tests=[{"stdin": ""}]))
    with pytest.raises(UserError, match=r"^data.jsonl, line 9, tests\[0\]: a test case has the fields stdin and"):
        with_row_fields(prompts(held_out=rows), [CODE])


def test_test_cases_that_are_written_down_otherwise_are_a_list_from_here_on() -> None:
    nested = CODE.model_copy(update={"code": Code(tests_field="reward_model.ground_truth")})
    row = record(0, topic="code", reward_model={"ground_truth": '{"inputs": [""], "outputs": [""]}'})
    (one,) = with_row_fields(prompts(row), [nested]).train
    assert one.fields["reward_model.ground_truth"] == TESTS


def test_rows_of_other_domains_need_no_test_cases() -> None:
    assert with_row_fields(prompts(record(0, topic="algebra")), [MATHS, CODE]).train[0].fields == {"topic": "algebra"}


def test_rows_of_a_built_in_task_are_named_by_their_number() -> None:
    with pytest.raises(UserError, match=r"^row 4: no reward function"):
        with_row_fields(prompts(record(4, source="", topic="poetry")), [MATHS])


def test_a_reference_that_cannot_be_read_is_found_before_anything_is_sampled() -> None:
    row = replace(record(0, "data.jsonl, line 7", topic="algebra"), answer=r"\frac{1}{2")
    with pytest.raises(UserError, match=r"^data.jsonl, line 7: the reference answer .* has braces without a partner; "):
        with_row_fields(prompts(row), [MATHS, CODE])
    assert with_row_fields(prompts(row), [STYLE]).train


@pytest.mark.parametrize("reference", [["42"], {"value": "42"}, b"42"], ids=str)
def test_a_reference_that_maths_cannot_compare_is_found_before_anything_is_sampled(
    reference: object,
) -> None:
    row = replace(record(0, topic="algebra"), answer=str(reference), reference=reference)
    with pytest.raises(
        UserError, match=r"^data.jsonl, line 5: the reference answer is no text, but a (list|dict|bytes)"
    ):
        with_row_fields(prompts(row), [MATHS])


@pytest.mark.parametrize("reference", ["42", 42, 4.2, [42], [1, 2.5]], ids=str)
def test_texts_and_numbers_are_references(reference: object) -> None:
    assert with_row_fields(prompts(replace(record(0, topic="algebra"), reference=reference)), [MATHS]).train

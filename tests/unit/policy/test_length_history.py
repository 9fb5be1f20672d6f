"""How long the responses to a prompt will be."""

import json

from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.length_history import LengthHistory
from longshore.policy.round import ResponseFinished, ResponseId


def finished(prompt: int, num_tokens: int, *, epoch: int = 0, index: int = 0) -> ResponseFinished:
    return ResponseFinished(ResponseId(Draw(epoch, prompt), index), engine_step=1, num_tokens=num_tokens)


def test_a_prompt_is_as_long_as_its_responses_were_on_average_over_all_epochs() -> None:
    history = LengthHistory()
    history.observe([finished(1, 10), finished(1, 20, index=1), finished(1, 60, epoch=1)])
    assert history.expected_tokens(1) == 30


def test_a_prompt_without_history_is_an_average_one() -> None:
    history = LengthHistory()
    assert history.expected_tokens(9) == 0
    history.observe([finished(1, 10), finished(2, 50), finished(2, 60)])
    assert history.expected_tokens(9) == 40


def test_a_prompt_that_was_cut_off_is_at_least_as_long_as_what_had_finished() -> None:
    history = LengthHistory()
    history.observe([finished(1, 10), finished(2, 30)])
    history.at_least([3, 1], 30)
    assert [history.expected_tokens(prompt) for prompt in (1, 2, 3)] == [30, 30, 30]
    history.at_least([3], 20)
    assert history.expected_tokens(3) == 30, "what is known is not unlearnt"
    history.observe([finished(3, 90)])
    assert history.expected_tokens(3) == 90


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 100)), max_size=30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 100)), max_size=5),
)
def test_a_restored_history_predicts_the_same(seen: list[tuple[int, int]], cut_off: list[tuple[int, int]]) -> None:
    history, restored = LengthHistory(), LengthHistory()
    history.observe([finished(prompt, num_tokens) for prompt, num_tokens in seen])
    for prompt, num_tokens in cut_off:
        history.at_least([prompt], num_tokens)
    restored.load_state(json.loads(json.dumps(history.export_state())))
    prompts = range(6)
    assert [restored.expected_tokens(one) for one in prompts] == [history.expected_tokens(one) for one in prompts]

"""Rows of a step's samples as groups."""

from typing import Any

from longshore.page import samples


def row(draw: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of a samples file."""
    return {
        "draw": draw, "prompt_index": 3, "response_index": index, "domain": None, "outcome": "accepted",
        "prompt": "What is 1 + 1?", "answer": None, "response": "2", "response_tokens": 2, "finish_reason": "stop",
        "reward": 1.0, "penalty": -0.25, "advantage": 0.5, "timed_out": False,
        "rewards": [{"function": "maths", "reward": 1.0}], "versions": [{"policy_version": 4, "tokens": 2}],
        "engines": [1, 0], "engine_s": 0.5, **changes,
    }  # fmt: skip


def test_rows_of_a_draw_are_a_group_in_their_order() -> None:
    one, other = samples.groups([row("0-7", 2), row("0-7", 0, reward=0.0), row("0-8")])
    assert (one.draw, other.draw) == ("0-7", "0-8")
    assert [response.index for response in one.responses] == [2, 0]
    assert one.scores == (1.0, 0.0)


def test_a_response_shows_where_its_tokens_and_rewards_come_from() -> None:
    ((response,),) = [group.responses for group in samples.groups([row("0-7")])]
    assert response.versions == ((4, 2),)
    assert response.rewards == {"maths": 1.0}
    assert response.engines == (1, 0)
    assert (response.advantage, response.penalty) == (0.5, -0.25)


def test_what_was_not_trained_on_has_no_advantage() -> None:
    (group,) = samples.groups([row("0-7", outcome="zero_variance", advantage=None, rewards=None, versions=None)])
    assert group.responses[0].advantage is None
    assert group.responses[0].rewards == {}


def test_a_list_of_groups_has_excerpts_and_no_responses() -> None:
    columns = {name: value for name, value in row("0-7", prompt="x" * 5000).items() if name in samples.HEAD_COLUMNS}
    (head,) = samples.heads([columns])
    assert head.responses == ()
    assert len(head.prompt) == samples.MAX_EXCERPT_CHARACTERS
    assert head.tokens == (2,)


def test_a_very_long_response_is_cut_and_says_so() -> None:
    (group,) = samples.groups([row("0-7", response="y" * (samples.MAX_TEXT_CHARACTERS + 7))])
    assert len(group.responses[0].text) == samples.MAX_TEXT_CHARACTERS
    assert group.responses[0].left_out_characters == 7


def test_a_report_takes_whole_groups_as_far_as_they_fit() -> None:
    groups = samples.groups([row(f"0-{number}", prompt="", response="z" * 10) for number in range(5)])
    assert [group.draw for group in samples.within(groups, 25)] == ["0-0", "0-1"]


def test_a_report_of_very_long_responses_has_a_group_whose_texts_are_cut_to_fit() -> None:
    rows = [row("0-0", index, prompt="p" * 10, response="z" * 100) for index in range(4)]
    (group,) = samples.within(samples.groups([*rows, row("0-1")]), 210)
    assert [len(response.text) for response in group.responses] == [50] * 4
    assert [response.left_out_characters for response in group.responses] == [50] * 4
    assert len(group.prompt) + sum(len(response.text) for response in group.responses) <= 210


def test_an_episode_counts_with_all_its_turns_and_is_cut_where_its_room_ends() -> None:
    turns = [
        {"role": "user", "content": "u" * 30, "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": "c" * 30},
        {"role": "tool", "content": "t" * 100, "tool_calls": None},
    ]
    found = samples.groups([row("0-0", turns=turns), row("0-1", turns=turns)])
    assert [group.draw for group in samples.within(found, 400)] == ["0-0", "0-1"]
    (group,) = samples.within(found, 200)
    assert group.draw == "0-0", "the second one has no room"
    (cut,) = samples.within(found[:1], 100)[0].responses
    assert (cut.num_characters, cut.left_out_characters) == (86, 75), "15 of the prompt are in front of it"
    assert [len(turn.text) + len(turn.calls) for turn in cut.turns] == [30, 30, 26]


def test_a_very_long_last_turn_leaves_the_earlier_ones_as_they_are() -> None:
    long = "y" * (samples.MAX_TEXT_CHARACTERS + 7)
    texts = {"user": "Go.", "assistant": long}
    turns = [{"role": role, "content": text, "tool_calls": None} for role, text in texts.items()]
    (group,) = samples.groups([row("0-0", response=long, turns=turns)])
    first, last = group.responses[0].turns
    assert (first.text, len(last.text)) == ("Go.", samples.MAX_TEXT_CHARACTERS - 3)


def test_turns_of_an_episode_say_which_of_its_conversations_they_are_from() -> None:
    turn = {"role": "assistant", "content": "5", "tool_calls": None}
    (group,) = samples.groups([row("0-0", turns=[turn, {**turn, "branch": 0}, {**turn, "branch": 1}])])
    assert [one.branch for one in group.responses[0].turns] == [0, 0, 1], "older files do not have it"


def test_the_final_state_of_an_episode_has_the_room_that_its_texts_leave() -> None:
    (group,) = samples.groups([row("0-0", response="y" * 10, state='{"a":1}')])
    assert group.responses[0].state == '{"a":1}'
    (cut,) = samples.within([group], len(group.prompt) + 14)[0].responses
    assert (cut.text, cut.state, cut.left_out_characters) == ("y" * 10, '{"a"', 3)
    (long,) = samples.groups([row("0-0", state="x" * 5_000)])[0].responses
    assert len(long.state) == samples.MAX_STATE_CHARACTERS and not long.left_out_characters

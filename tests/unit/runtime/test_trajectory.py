"""Trajectories: immutable arrays with the origin of every token."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.backends.engine_protocol import GrowingResponse, Request
from longshore_runtime.trajectories.trajectory import EMPTY, Run, Trajectory

RUNS = st.lists(st.builds(Run, st.none() | st.integers(0, 3), st.integers(1, 4)), max_size=6).map(tuple)


VERSIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3)
"""A turn: (version, number of tokens) of its parts, one for each round in which it was sampled."""
TURNS = st.lists(st.tuples(VERSIONS, st.integers(0, 4)), min_size=1, max_size=4)
"""Turns, and the number of tokens observed after each: a text that is empty has none."""


def of(runs: tuple[Run, ...]) -> Trajectory:
    num_tokens = sum(run.num_tokens for run in runs)
    return Trajectory(np.arange(num_tokens, dtype=np.int32), np.full(num_tokens, -1.0, np.float32), runs)


def test_arrays_are_typed_and_read_only() -> None:
    trajectory = Trajectory.sampled(3, [1, 2], [-0.5, -1.0])
    assert (trajectory.tokens.dtype, trajectory.log_probs.dtype) == (np.int32, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        trajectory.tokens[0] = 7


def test_a_trajectory_without_origin_for_every_token_is_refused() -> None:
    with pytest.raises(AssertionError, match="origin"):
        Trajectory(np.zeros(2, np.int32), np.zeros(2, np.float32), (Run(0, 1),))


def test_a_continued_trajectory_keeps_the_origins_of_its_parts() -> None:
    whole = EMPTY + Trajectory.sampled(1, [4, 5], [-1.0, -2.0]) + Trajectory.sampled(2, [6], [-3.0])
    assert (whole.tokens.tolist(), whole.runs) == ([4, 5, 6], (Run(1, 2), Run(2, 1)))
    assert whole != EMPTY + whole + whole


@given(RUNS)
def test_mask_and_turns_agree_about_what_the_policy_sampled(runs: tuple[Run, ...]) -> None:
    trajectory = of(runs)
    sampled = np.zeros(len(trajectory), np.bool_)
    for turn in trajectory.turns:
        sampled[turn] = True
    assert trajectory.mask.tolist() == sampled.tolist()
    assert all(before.stop < after.start for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False))


@given(TURNS, st.booleans())
def test_turns_mask_and_counts_agree_in_an_episode(turns: list[tuple[list[tuple[int, int]], int]], waits: bool) -> None:
    """It has ended with its last turn, or `waits` for the next one."""
    trajectory, observed = EMPTY, list[range]()
    for number, (parts, num_observed) in enumerate(turns, start=1):
        for version, num_tokens in parts:
            trajectory += Trajectory.sampled(version, [1] * num_tokens, [-1.0] * num_tokens)
        if number < len(turns) or waits:
            observed.append(range(len(trajectory), len(trajectory) + num_observed))
            trajectory += Trajectory.observed([2] * num_observed)
    starts = [0, *(one.stop for one in observed)][: len(turns)]
    stops = [one.start for one in observed] + ([] if waits else [len(trajectory)])
    assert trajectory.turns == tuple(map(slice, starts, stops))
    assert trajectory.num_sampled_tokens == np.count_nonzero(trajectory.mask)
    assert (trajectory.tokens == np.where(trajectory.mask, 1, 2)).all()
    assert not trajectory.log_probs[~trajectory.mask].any()


@given(RUNS, st.integers(0, 40))
def test_a_beginning_has_the_first_tokens_with_their_origins(runs: tuple[Run, ...], num_tokens: int) -> None:
    trajectory = of(runs)
    beginning = trajectory.first(num_tokens)
    assert len(beginning) == min(num_tokens, len(trajectory))
    assert (beginning.mask == trajectory.mask[:num_tokens]).all()
    assert (beginning.tokens == trajectory.tokens[:num_tokens]).all()
    assert (beginning.log_probs == trajectory.log_probs[:num_tokens]).all()


@given(RUNS, st.integers(0, 4))
def test_no_token_behind_those_of_older_weights_is_older(runs: tuple[Run, ...], version: int) -> None:
    trajectory = of(runs)
    versions = [run.policy_version for run in runs for _ in range(run.num_tokens)]
    num_before = trajectory.num_tokens_before(version)
    assert all(one is None or one >= version for one in versions[num_before:])
    assert not num_before or ((last := versions[num_before - 1]) is not None and last < version)


@given(RUNS)
def test_arrays_are_pickled_out_of_band(runs: tuple[Run, ...]) -> None:
    trajectory, buffers = of(runs), list[pickle.PickleBuffer]()
    content = pickle.dumps(trajectory, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) == 8 * len(trajectory)
    assert pickle.loads(content, buffers=buffers) == trajectory


def rows(first: int, num_tokens: int) -> np.ndarray:
    """Experts of tokens, by which they can be told apart."""
    return np.arange(first, first + num_tokens, dtype=np.uint8).reshape(-1, 1, 1) + np.zeros((1, 2, 3), np.uint8)


def test_experts_of_turns_go_on_where_the_engine_had_read_up_to() -> None:
    """A prompt of three tokens, a turn of two, two that are observed, and a turn of one."""
    turn = Trajectory.sampled(0, [1, 2], [-1.0, -1.0]).with_experts(rows(0, 4), num_prompt_tokens=3)
    assert turn.experts is not None and turn.prompt_experts is not None
    assert (turn.prompt_experts[:, 0, 0].tolist(), turn.experts[:, 0, 0].tolist()) == ([0, 1], [2, 3])
    waiting = turn + Trajectory.observed([3, 4])
    request = Request("r", np.arange(3, dtype=np.int32), 9, 1.0, 0, waiting)
    response = GrowingResponse(request, policy_version=1)
    assert response.num_routed == 4
    response.tokens.append(5)
    response.log_probs.append(-1.0)
    response.experts.extend(rows(4, 3))
    found = response.trajectory
    assert found.experts is not None and len(found.experts) == len(found) == 5
    assert found.experts[:, 0, 0].tolist() == [2, 3, 4, 5, 6]
    assert found.first(3).experts[:, 0, 0].tolist() == [2, 3, 4]  # type: ignore[index]
    assert found.copied() == found
    assert found.first(0) == EMPTY, "another turn begins with the experts of the prompt"


def test_a_response_whose_engine_tells_no_experts_has_none() -> None:
    response = GrowingResponse(Request("r", np.arange(3, dtype=np.int32), 9, 1.0, 0), policy_version=0)
    response.tokens.append(5)
    response.log_probs.append(-1.0)
    assert response.num_routed == 0 and response.trajectory.experts is None

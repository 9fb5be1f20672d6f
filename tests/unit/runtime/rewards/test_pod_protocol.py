"""What a reward pod says is read as if an attacker had written it; what the coordinator says arrives as it was."""

import datetime
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.reward import Http, RewardFunction, RewardKind
from longshore.policy.adaptive_timeout import CaseRun
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    WorkerBroken,
)
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports import pod_protocol as protocol
from longshore_runtime.rewards.transports.pod_protocol import (
    Answer,
    BadMessage,
    Begin,
    Failed,
    Ready,
    ScoreRequest,
    Started,
)
from longshore_runtime.sandbox.layers import Layer, LayerReport

CODE = RewardFunction(name="run", kind=RewardKind.CODE)
MATHS = RewardFunction(name="sum", kind=RewardKind.MATHS)
SERVICE = RewardFunction(name="ask", kind=RewardKind.HTTP, http=Http(url="http://there/"))
ITEM = ScoreItem("d, line 1", "what?", "this", "that", {"tests": [{"stdin": ""}] * 2, "secret": 1}, [1.0, 2.0])
SCORED: dict[str, Any] = {
    "reward": 1.0,
    "seconds": 0.5,
    "timed_out": False,
    "broken": None,
    "passed_all": True,
    "runs": [],
}
RUN: dict[str, Any] = {"case": 0, "wall_s": 0.1, "cpu_s": 0.1, "timed_out": False}

finite = st.floats(-protocol.MAX_REWARD, protocol.MAX_REWARD)
seconds = st.floats(0, 1e5)
runs = st.lists(st.builds(CaseRun, st.integers(0, 1), seconds, seconds, st.booleans()), unique_by=lambda run: run.case)
words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), max_size=80)
results = st.builds(ScoreResult, finite, seconds, st.booleans(), st.none(), runs.map(tuple), st.booleans())
broken = st.builds(ScoreResult, st.just(0.0), seconds, st.booleans(), words)
errors = st.one_of(*(words.map(kind) for kind in (RewardError, RewardFault, RewardSetupError, WorkerBroken)))


def read(answer: dict[str, Any], *items: ScoreItem) -> list[ScoreOutcome]:
    """As the coordinator reads it."""
    return protocol.outcomes_of(protocol.decode(Answer, orjson.dumps(answer)), items)


@given(st.lists(results | broken | errors, max_size=4))
def test_outcomes_arrive_as_they_were(outcomes: list[ScoreOutcome]) -> None:
    answer = protocol.decode(Answer, protocol.encode_outcomes(7, outcomes))
    arrived = protocol.outcomes_of(answer, [ITEM] * len(outcomes))
    assert answer.number == 7
    assert list(map(repr, arrived)) == list(map(repr, outcomes))


@pytest.mark.parametrize(
    ("function", "row"),
    [(CODE, {"tests": ITEM.row["tests"]}), (MATHS, {}), (SERVICE, ITEM.row)],
    ids=lambda value: value.name if isinstance(value, RewardFunction) else "",
)
def test_a_call_carries_what_its_function_reads_of_the_row(function: RewardFunction, row: dict[str, Any]) -> None:
    request = protocol.decode(ScoreRequest, protocol.encode_request(3, function, [ITEM]))
    assert (request.number, request.function) == (3, function.name)
    assert request.items == [ScoreItem("d, line 1", "what?", "this", "that", row, [1.0, 2.0])]


@pytest.mark.parametrize("function", [CODE, MATHS, SERVICE], ids=lambda function: function.name)
def test_a_call_says_which_responses_were_cut(function: RewardFunction) -> None:
    items = [replace(ITEM, is_cut=is_cut) for is_cut in (True, False)]
    request = protocol.decode(ScoreRequest, protocol.encode_request(3, function, items))
    assert [item.is_cut for item in request.items] == [True, False]


def test_only_functions_that_may_read_the_state_of_an_environment_are_sent_it() -> None:
    told = replace(ITEM, state='{"won":true}')
    for function, state in ((CODE, None), (MATHS, None), (SERVICE, told.state)):
        request = protocol.decode(ScoreRequest, protocol.encode_request(3, function, [told]))
        assert request.items[0].state == state


def test_a_row_may_hold_what_json_does_not_know() -> None:
    large = [1 << 70, -(1 << 70), (1 << 64) - 1, 0.5, True]
    row = {"day": datetime.timedelta(days=1), "who": {1: "one"}, "large": {"numbers": (large, [])}}
    request = protocol.decode(ScoreRequest, protocol.encode_request(1, SERVICE, [ScoreItem("d", "", "", "", row)]))
    assert request.items[0].row == {"day": "1 day, 0:00:00", "who": {"1": "one"}, "large": {"numbers": [large, []]}}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("x" * (protocol.MAX_REQUEST_BYTES + 1), r"reward ask: d: the row is 64 MiB large; at most 64 can be sent"),
        ({(1, 2): 3}, "reward ask: d: the row cannot be sent to a reward pod: Dict key must a type serializable .*"),
    ],
    ids=["large", "with keys"],
)
def test_a_row_that_cannot_be_sent_is_reported_with_its_name(value: object, sentence: str) -> None:
    with pytest.raises(RewardError, match=f"^{sentence}$"):
        protocol.encode_request(1, SERVICE, [ScoreItem("d", "", "", "", {"value": value})])


FUNCTIONS = [CODE, MATHS, SERVICE]


@given(st.lists(st.sampled_from(FUNCTIONS), min_size=1, unique_by=lambda one: one.name))
def test_a_worker_learns_which_functions_it_is_for(functions: list[RewardFunction]) -> None:
    begin = protocol.decode(Begin, protocol.encode_begin(functions, {}))
    assert protocol.functions_of(begin, FUNCTIONS) == functions


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({}, "functions"),
        ({"functions": []}, "functions: .*at least 1 item"),
        ({"functions": "run"}, "functions: .*array"),
        ({"functions": {"run": 1}}, "functions: .*array"),
        ({"functions": [1]}, "functions.*valid string"),
        ({"functions": [None]}, "functions.*valid string"),
        ({"functions": ["run"], "more": 1}, "no such field"),
        ({"functions": ["run", "Run"]}, "^reward pods have no function 'Run'$"),
        ({"functions": ["run "]}, "^reward pods have no function 'run '$"),
        ({"functions": ["../run\x1b[2J"]}, r"^reward pods have no function '\.\./run\\x1b\[2J'$"),
        ({"functions": ["x" * 100_000]}, "^reward pods have no function 'x{10}"),
        ({"functions": ["run", "sum", "run"]}, "^it names a function twice$"),
        ({"functions": ["run"], "rehearsals": {"sum": []}}, "^it has rows for a function that it does not name$"),
    ],
)
def test_a_first_message_that_does_not_fit_the_job_is_refused(message: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadMessage, match=sentence) as refusal:
        protocol.functions_of(protocol.decode(Begin, orjson.dumps({"rehearsals": {}} | message)), FUNCTIONS)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 5_000


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"reward": None}, "valid number"),
        ({"reward": "1"}, "valid number"),
        ({"reward": True}, "valid number"),
        ({"reward": 1e10}, "less than or equal to"),
        ({"seconds": -1.0}, "greater than or equal to 0"),
        ({"seconds": 1e300}, "less than or equal to"),
        ({"timed_out": 1}, "valid boolean"),
        ({"more": 1}, "no such field"),
        ({"runs": [RUN | {"case": 2}]}, "test cases that the row does not have"),
        ({"runs": [RUN | {"case": -1}]}, "greater than or equal to 0"),
        ({"runs": [RUN, RUN]}, "test cases that the row does not have"),
        ({"passed_all": True, "runs": [RUN | {"timed_out": True}]}, "passed all its tests and was cut off in one"),
        ({"runs": [RUN | {"cpu_s": None}]}, "valid number"),
        ({"runs": [RUN] * (protocol.MAX_CASES + 1)}, "at most"),
    ],
)
def test_an_answer_in_any_other_shape_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadMessage, match=sentence):
        read({"number": 1, "outcomes": [SCORED | change]}, ITEM)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    data = orjson.dumps({"number": 1, "outcomes": [SCORED]}).replace(b"1.0", number.encode())
    with pytest.raises(BadMessage):
        protocol.outcomes_of(protocol.decode(Answer, data), [ITEM])


@pytest.mark.parametrize("num_outcomes", [0, 2])
def test_every_response_has_one_outcome(num_outcomes: int) -> None:
    with pytest.raises(BadMessage, match=f"it answers {num_outcomes} of 1 responses"):
        read({"number": 1, "outcomes": [SCORED] * num_outcomes}, ITEM)


def test_sentences_reach_no_terminal_with_what_steers_it() -> None:
    failure: dict[str, Any] = {"kind": "error", "error": "\x1b[2Jred\nline"}
    (error,) = read({"number": 1, "outcomes": [failure]}, ITEM)
    assert str(error) == " [2Jred line"


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    ).map(orjson.dumps)
)
def test_whatever_else_arrives_is_refused_in_one_sentence(data: bytes) -> None:
    for kind in (Answer, Started):
        with pytest.raises(BadMessage) as decoded:
            protocol.decode(kind, data)
        assert str(decoded.value).isprintable() and str(decoded.value)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadMessage):
        protocol.decode(Answer, b"[" * 100_000)


def test_layers_arrive_and_one_that_is_not_named_does_not_hold() -> None:
    report = LayerReport({layer: None if layer is Layer.SECCOMP else f"no {layer}" for layer in Layer})
    decoded = protocol.decode(Started, protocol.encode(protocol.started(Surroundings(report)))).outcome
    assert isinstance(decoded, Ready)
    assert protocol.surroundings_of(decoded) == Surroundings(report)
    assert protocol.surroundings_of(Ready(sandbox={})).sandbox.available == frozenset()  # type: ignore[union-attr]
    assert protocol.surroundings_of(Ready()) == Surroundings()


def test_an_error_that_nobody_expected_is_a_fault_with_its_name() -> None:
    assert protocol.failed(KeyError("x")) == Failed(kind="fault", error="the reward worker failed (KeyError: 'x')")

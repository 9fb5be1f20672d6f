"""A scoring service is asked once; what is wrong with it is distinguished from what is wrong with the response."""

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longshore.api.reward import Http, RewardFunction, RewardKind
from longshore_runtime.rewards.kinds.http import HttpScorer
from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, ScoreItem
from tests.contract.rewards.endpoint import TOKEN, Endpoint, serving

Scorers = Callable[..., HttpScorer]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serving() as endpoint:
        yield endpoint


@pytest.fixture
def make() -> Iterator[Scorers]:
    made: list[HttpScorer] = []

    def scorer(address: str, timeout_s: float = 10.0, token: Path | None = None) -> HttpScorer:
        http = Http(url=f"{address}/score")
        function = RewardFunction(name="service", kind=RewardKind.HTTP, timeout_s=timeout_s, http=http)
        made.append(HttpScorer(function, token))
        return made[-1]

    yield scorer
    for one in made:
        one.close()


def item(response: str, **row: Any) -> ScoreItem:
    return ScoreItem("data.jsonl, line 3", "a prompt", response, "right", row)


@pytest.mark.parametrize(("is_cut", "state"), [(False, None), (True, {"board": ["x"]})])
def test_service_sees_the_response_its_row_whether_it_was_cut_and_the_state(
    endpoint: Endpoint, make: Scorers, is_cut: bool, state: object
) -> None:
    row = {"level": 3, "made": datetime.date(2026, 1, 2), "embedding": np.array([1.0, 2.0])}
    told = None if state is None else json.dumps(state)
    scored = replace(item("right", **row), is_cut=is_cut, state=told)
    assert make(endpoint.address).score(scored).reward == 1.0
    assert endpoint.requests[-1] == {
        "prompt": "a prompt",
        "response": "right",
        "answer": "right",
        "row": {"level": 3, "made": "2026-01-02", "embedding": [1.0, 2.0]},
        "is_cut": is_cut,
        "state": state,
    }


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_is_overloaded_or_broken_is_a_fault(endpoint: Endpoint, make: Scorers, status: int) -> None:
    with pytest.raises(RewardFault, match=rf"^reward service: data.jsonl, line 3: the service answered {status}$"):
        make(endpoint.address).score(item(f"status {status}"))


@pytest.mark.parametrize("response", ["hang", "trickle"])
def test_no_answer_in_time_is_a_fault_however_it_comes_about(endpoint: Endpoint, make: Scorers, response: str) -> None:
    with pytest.raises(RewardFault, match=r"the service did not answer within 0.2 s$"):
        make(endpoint.address, timeout_s=0.2).score(item(response))


def test_a_service_that_is_not_there_is_a_fault(make: Scorers) -> None:
    with serving() as stopped:
        pass
    with pytest.raises(RewardFault, match="the service cannot be reached"):
        make(stopped.address).score(item("right"))


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ('body {"score": 1}', r'answered 200 without \{"reward": number\}$'),
        ("body [1]", r'answered 200 without \{"reward": number\}$'),
        ('body {"reward": NaN}', "returned nan instead of a number from -1e[+]09 to 1e[+]09$"),
        ('body {"reward": 2e9}', "returned 2000000000.0 instead of a number from"),
        (f'body {{"reward": 1{400 * "0"}}}', "returned 1000"),
        ('body {"reward": "1"}', "returned '1' instead of a number$"),
        ('body {"reward": true}', "returned True instead of a number$"),
        ("status 418", r'answered 418 without \{"reward": number\}$'),
        ("status 302", r'answered 302 without \{"reward": number\}$'),
        ("bytes identity,long", "answered with more than 1 MiB$"),
        ("bytes gzip,long", "answered with more than 1 MiB$"),
        ("bytes gzip,cut", "answered with an incomplete body of gzip$"),
        ("bytes gzip,plain", "answered with a body that is not gzip$"),
        ("bytes br", "answered with the Content-Encoding 'br', which was not asked for$"),
        ("bytes identity,deep", r'answered 200 without \{"reward": number\}$'),
        ("bytes identity,digits", r'answered 200 without \{"reward": number\}$'),
        ("bytes identity,binary", r'answered 200 without \{"reward": number\}$'),
        ("bytes identity,empty", r'answered 200 without \{"reward": number\}$'),
        (f'body {{"reward": {200 * "["}{200 * "]"}}}', r'answered 200 without \{"reward": number\}$'),
    ],
)
def test_an_answer_that_holds_no_reward_is_an_error(
    endpoint: Endpoint, make: Scorers, response: str, reason: str
) -> None:
    with pytest.raises(RewardError, match=f"^reward service: data.jsonl, line 3: the service {reason}"):
        make(endpoint.address).score(item(response))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_answer_compressed_without_being_asked_for_is_read(endpoint: Endpoint, make: Scorers, encoding: str) -> None:
    assert make(endpoint.address).score(item(f"bytes {encoding}")).reward == 1.0


def test_a_wrong_address_or_token_is_reported_by_its_field(endpoint: Endpoint, make: Scorers, tmp_path: Path) -> None:
    with pytest.raises(RewardSetupError, match=r"^reward.functions\[service\].http.url: .* answered 404 to a POST$"):
        make(endpoint.address).score(item("status 404"))
    with pytest.raises(RewardSetupError, match=r"^reward.functions\[service\].tokenSecret: .* answered 401: it asks"):
        make(endpoint.address).score(item("status 401"))
    (tmp_path / "token").write_text("wrong")
    with pytest.raises(RewardSetupError, match=r"answered 403: it refuses this token$"):
        make(endpoint.address, token=tmp_path / "token").score(item("status 403"))


def test_a_token_may_rotate_and_reaches_no_message(make: Scorers, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    with serving(token=TOKEN) as guarded:
        scorer = make(guarded.address, token=token)
        with pytest.raises(RewardSetupError) as refusal:
            scorer.score(item("right"))
        assert "stale" not in str(refusal.value)
        token.write_text(f"{TOKEN}\n")
        assert scorer.score(item("right")).reward == 1.0


@pytest.mark.parametrize("response", ["right", "status 401", "status 404", "status 500", "hang"])
def test_the_password_of_an_address_reaches_no_message(endpoint: Endpoint, make: Scorers, response: str) -> None:
    address = endpoint.address.replace("http://", "http://user:s3cret@") + "/score?key=s3cret#"
    try:
        make(address, timeout_s=0.5).score(item(response))
    except (RewardError, RewardFault) as error:
        assert "s3cret" not in str(error)

"""An agent that attacks the API, its process or the pod harms its own episode at most."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeNews, EpisodeOver, TurnWanted
from tests.contract.environments import hostile_agents
from tests.contract.environments.driver import Driver, driving
from tests.contract.environments.environment_pods import PATIENT_S, serving
from tests.contract.environments.test_agents import BYTES, END, HAS_LANDLOCK, HERMES, LIMITS, ROW, agent, conversations


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One pod for all tests."""
    hostile = agent(importPath=f"{hostile_agents.__name__}:attack", name="hostile", domains=["hostile"])
    model: Any = {"conversations": conversations(HERMES), "limits": LIMITS, "tokenizer": BYTES, "end": END}
    path = tmp_path_factory.mktemp("pod")
    with (
        serving(hostile, agent("answer_once")) as port,
        driving(path, port, hostile, agent("answer_once"), **model) as driver,
    ):
        yield driver


def outcome(driver: Driver, what: str) -> EpisodeNews:
    """What becomes of an episode with the attack, while another one is there and stays unharmed."""
    bystander = driver.start(**ROW)
    assert driver.hear().number == bystander
    number = driver.start(domain="hostile", what=what)
    news = driver.hear()
    if isinstance(news, TurnWanted):
        news = driver.say(number, "5")
    over = driver.say(bystander, "5")
    assert isinstance(over, EpisodeOver) and over.episode.reward == 1.0, "the other one goes on"
    return news


@pytest.mark.parametrize(
    ("what", "status"),
    [
        *((what, 400) for what in hostile_agents.BODIES),
        ("another key", 401),
        ("a key that is no text", 401),
        ("no JSON", 400),
        ("deep nesting", 400),
        ("a large body", 413),
        ("a reward that is none", 400),
        ("a reward without bounds", 400),
        ("a state that is too large", 400),
        ("a state that is too deep", 400),
        ("a field that is none", 400),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_the_episode_goes_on(
    driver: Driver, what: str, status: int
) -> None:
    over = outcome(driver, what)
    assert isinstance(over, EpisodeOver), over
    assert over.episode.reward == status and over.episode.num_turns == 1


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("exit", "has ended with exit code 3"),
        ("be killed", "was killed by signal 9"),
        ("close everything", ""),
        ("forge an answer", ""),
    ],
)
def test_an_agent_that_ends_its_process_has_failed_alone(driver: Driver, what: str, reason: str) -> None:
    given_up = outcome(driver, what)
    assert isinstance(given_up, EpisodeGivenUp) and reason in given_up.reason and not given_up.is_users_mistake


def test_what_an_agent_leaves_behind_ends_with_its_episode(driver: Driver) -> None:
    assert isinstance(outcome(driver, "leave a daemon"), EpisodeOver)
    left = [
        one for one in psutil.process_iter(["cmdline"]) if "daemon of a hostile agent" in (one.info["cmdline"] or ())
    ]
    _, alive = psutil.wait_procs(left, timeout=PATIENT_S)
    assert not alive


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel cannot keep processes of one user apart")
def test_an_agent_cannot_signal_the_process_that_all_episodes_come_from(driver: Driver) -> None:
    over = outcome(driver, "signal the one that started it")
    assert isinstance(over, EpisodeOver) and over.episode.reward == 0.0

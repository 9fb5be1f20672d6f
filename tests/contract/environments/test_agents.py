"""Agents ask the model over an API of their own, and every token is one that was sampled or observed."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from longshore.api.environment import Environment
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.environments.attempt import EpisodeLimits
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.sandbox import landlock
from longshore_runtime.sandbox.layers import LayerUnavailable
from longshore_runtime.trajectories.episode import Episode
from tests.contract.environments import agents
from tests.contract.environments.driver import Driver, driving
from tests.contract.environments.environment_pods import PATIENT_S, serving
from tests.unit.runtime.environments.chat_templates import HERMES
from tests.unit.runtime.environments.test_conversation import BYTES, conversations, decoded, encoded


def _landlock_version() -> int:
    try:
        return landlock.version()
    except LayerUnavailable:
        return 0


AGENTS: Final = agents.__name__
LIMITS: Final = EpisodeLimits(max_response_tokens=512, max_context_tokens=4096)
END: Final = encoded("<|im_end|>")
CALL: Final = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
HAS_LANDLOCK: Final = _landlock_version() >= 6
ROW: Final = {"question": "2+3?", "answer": "5"}


def agent(function: str = "", **fields: Any) -> Environment:
    what = {"importPath": f"{AGENTS}:{function}"} if function else {}
    limits = {"callTimeoutSeconds": PATIENT_S, "retries": 0}
    return Environment.model_validate({"name": "agent", "kind": "Agent", **what, **limits, **fields})


@contextmanager
def asking(tmp_path: Path, environment: Environment, limits: EpisodeLimits = LIMITS) -> Iterator[Driver]:
    talks = conversations(HERMES)
    with (
        serving(environment) as port,
        driving(tmp_path, port, environment, conversations=talks, limits=limits, tokenizer=BYTES, end=END) as driver,
    ):
        yield driver


def prompt_of(news: EpisodeNews) -> str:
    """All that the model reads before its turn."""
    assert isinstance(news, TurnWanted), news
    return decoded([*news.prompt_tokens, *news.trajectory.tokens])


def ended(news: EpisodeNews) -> Episode:
    assert isinstance(news, EpisodeOver), news
    return news.episode


def test_an_agent_asks_once_and_its_result_is_the_reward(tmp_path: Path) -> None:
    with asking(tmp_path, agent("answer_once")) as driver:
        number = driver.start(**ROW)
        assert prompt_of(driver.hear()) == "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
        episode = ended(driver.say(number, "5"))
        assert (episode.reward, episode.num_turns, episode.last_turn) == (1.0, 1, "5")
        assert episode.begun(()) == [{"role": "user", "content": "2+3?"}]


def test_a_function_may_return_its_reward_with_its_final_state(tmp_path: Path) -> None:
    with asking(tmp_path, agent("tell_state")) as driver:
        number = driver.start(**ROW)
        driver.hear()
        episode = ended(driver.say(number, "5"))
        assert (episode.reward, episode.state) == (1.0, '{"asked":1}')


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"state": "x" * (1 << 20)}, "its agent returned a state of 1,024 KiB; at most 1,024 KiB are possible"),
        ({"score": 1}, "its agent returned 'score' besides reward and state"),
    ],
    ids=["large", "unknown"],
)
def test_a_result_that_is_no_reward_with_a_state_fails_the_episode(
    tmp_path: Path, told: dict[str, Any], problem: str
) -> None:
    with asking(tmp_path, agent("tell_state")) as driver:
        number = driver.start(**ROW, told=told)
        driver.hear()
        given_up = driver.say(number, "5")
        assert isinstance(given_up, EpisodeGivenUp) and problem in given_up.reason, given_up


def test_an_episode_imports_nothing_more_for_the_client_of_its_agent(tmp_path: Path) -> None:
    with asking(tmp_path, agent("count_imports")) as driver:
        number = driver.start(**ROW)
        driver.hear()
        assert ended(driver.say(number, "5")).reward == 0.0


def test_a_tool_that_the_agent_runs_is_observed_in_the_same_conversation(tmp_path: Path) -> None:
    with asking(tmp_path, agent("use_tool")) as driver:
        number = driver.start(**ROW)
        begun = prompt_of(driver.hear())
        assert '"name": "add"' in begun
        answered = driver.say(number, CALL)
        assert prompt_of(answered).startswith(begun + CALL), "what was sampled is not written anew"
        assert "<tool_response>\n5\n</tool_response>" in prompt_of(answered)
        episode = ended(driver.say(number, "5"))
        assert episode.reward == 1.0 and len(episode.branches) == 1
        assert len(episode.branches[0].trajectory.turns) == 2


def test_a_stream_ends_at_a_stop_text_and_nothing_after_it_is_trained_on(tmp_path: Path) -> None:
    with asking(tmp_path, agent("stream")) as driver:
        number = driver.start(**ROW)
        wanted = driver.hear()
        assert isinstance(wanted, TurnWanted) and wanted.max_tokens == 40
        episode = ended(driver.say(number, "5STOP and more"))
        assert episode.reward == 1.0
        assert decoded(episode.branches[0].trajectory.tokens).startswith("5STOP")
        assert "more" not in decoded(episode.branches[0].trajectory.tokens)


def test_the_responses_api_has_the_same_conversation(tmp_path: Path) -> None:
    with asking(tmp_path, agent("use_responses")) as driver:
        number = driver.start(**ROW)
        driver.hear()
        assert "<tool_response>\n5\n</tool_response>" in prompt_of(driver.say(number, CALL))
        episode = ended(driver.say(number, "5"))
        assert episode.reward == 1.0 and len(episode.branches) == 1


def test_what_does_not_go_on_from_a_turn_is_a_branch_with_tokens_of_its_own(tmp_path: Path) -> None:
    with asking(tmp_path, agent("ask_again")) as driver:
        number = driver.start(**ROW)
        first = prompt_of(driver.hear())
        assert prompt_of(driver.say(number, "five")) == first, "it asks the same again"
        assert "Is it 5?" in prompt_of(driver.say(number, "5"))
        back = driver.say(number, "yes")
        assert prompt_of(back).startswith(f"{first}5<|im_end|>"), "the second attempt goes on"
        episode = ended(driver.say(number, "done"))
        said = [decoded(one.trajectory.tokens[one.trajectory.mask]) for one in episode.branches]
        assert said == ["five<|im_end|>", "yes<|im_end|>", "5<|im_end|>done<|im_end|>"]
        assert episode.reward == 1.0 and episode.num_turns == 4


def test_turns_that_are_asked_for_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    with asking(tmp_path, agent("ask_at_once")) as driver:
        number = driver.start(**ROW)
        news = driver.hear()
        while isinstance(news, TurnWanted):
            news = driver.say(number, "5")
        assert ended(news).reward == 3.0 and len(ended(news).branches) == 3


def test_a_turn_that_no_client_has_read_is_not_trained_on(tmp_path: Path) -> None:
    for asks_again in (True, False):
        gave_up = tmp_path / f"gave up {asks_again}"
        with asking(tmp_path, agent("give_up_waiting")) as driver:
            number = driver.start(**ROW, gave_up=str(gave_up), asks_again=asks_again)
            driver.hear()
            while not gave_up.exists():
                time.sleep(0.01)
            news = driver.say(number, "too late")
            if asks_again:
                assert prompt_of(news).endswith("Really?<|im_end|>\n<|im_start|>assistant\n")
                episode = ended(driver.say(number, "5"))
                said = [decoded(one.trajectory.tokens) for one in episode.branches]
                assert (said, episode.num_turns, episode.reward) == (["5<|im_end|>"], 1, 1.0)
            else:
                assert isinstance(news, EpisodeGivenUp) and "has read none of its turns" in news.reason


def test_an_agent_learns_that_no_turn_is_left_and_may_still_give_its_reward(tmp_path: Path) -> None:
    with asking(tmp_path, agent("talk_for_ever", maxTurns=3)) as driver:
        number = driver.start(**ROW)
        driver.hear()
        assert prompt_of(driver.say(number, "well"))
        assert prompt_of(driver.say(number, "well"))
        over = driver.say(number, "well")
        assert isinstance(over, EpisodeOver) and not over.is_cut and over.episode.reward == 3.5
        assert over.episode.branches[0].trajectory.runs[-1].policy_version is not None


def test_an_agent_goes_on_after_a_turn_that_its_own_limit_has_cut_off(tmp_path: Path) -> None:
    with asking(tmp_path, agent("talk_for_ever", maxTurnTokens=8)) as driver:
        number = driver.start(**ROW)
        driver.hear()
        trajectory = driver.say(number, "no end", FinishReason.LENGTH)
        assert "And?" in prompt_of(trajectory)


def test_a_last_turn_that_the_agent_has_cut_off_leaves_the_episode_whole(tmp_path: Path) -> None:
    with asking(tmp_path, agent("answer_once", maxTurnTokens=8)) as driver:
        number = driver.start(**ROW)
        driver.hear()
        over = driver.say(number, "5", FinishReason.LENGTH)
        assert isinstance(over, EpisodeOver) and not over.is_cut


def test_tokens_that_are_left_bound_an_episode_of_an_agent(tmp_path: Path) -> None:
    with asking(tmp_path, agent("talk_for_ever"), EpisodeLimits(64, 256)) as driver:
        number = driver.start(**ROW)
        news = driver.hear()
        while isinstance(news, TurnWanted):
            assert len(news.trajectory) < news.max_tokens == 64
            news = driver.say(number, "well, well")
        assert isinstance(news, EpisodeOver) and news.is_cut


@pytest.mark.parametrize(
    ("function", "turns", "reason"),
    [
        ("fail", ["x"], "its agent raised ValueError: no luck at "),
        ("say_nothing", [], "its agent ended before it asked the model"),
        ("missing", [], "environments[agent].importPath: "),
    ],
)
def test_an_agent_that_fails_says_why(tmp_path: Path, function: str, turns: list[str], reason: str) -> None:
    with asking(tmp_path, agent(function)) as driver:
        number = driver.start(**ROW)
        news = driver.hear()
        for turn in turns:
            news = driver.say(number, turn)
        assert isinstance(news, EpisodeGivenUp) and reason in news.reason


def test_an_agent_that_hangs_is_cut_off_with_the_field_that_says_so(tmp_path: Path) -> None:
    with asking(tmp_path, agent("hang", callTimeoutSeconds=0.5)) as driver:
        driver.start(**ROW)
        news = driver.hear()
        assert isinstance(news, EpisodeGivenUp)
        assert "environments[agent].callTimeoutSeconds: the agent did not end within 0.5 s" in news.reason


def test_a_program_finds_row_and_key_in_its_surroundings_and_posts_its_reward(tmp_path: Path) -> None:
    with asking(tmp_path, agent(command=[sys.executable, agents.__file__])) as driver:
        number = driver.start(**ROW)
        driver.hear()
        assert ended(driver.say(number, "5")).reward == 1.0


def test_a_program_has_ended_though_something_that_it_started_goes_on(tmp_path: Path) -> None:
    program = f"""
import subprocess, sys
sys.path.append({str(Path(agents.__file__).parent)!r})
from agents import answer_once
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
answer_once({ROW!r})
"""
    with asking(tmp_path, agent(command=[sys.executable, "-c", program], callTimeoutSeconds=60)) as driver:
        number = driver.start(**ROW)
        driver.hear()
        assert ended(driver.say(number, "5")).reward is None


def test_an_agent_reaches_the_model_where_its_pod_has_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.com")
    with asking(tmp_path, agent("answer_once")) as driver:
        number = driver.start(**ROW)
        assert isinstance(driver.hear(), TurnWanted)
        assert ended(driver.say(number, "5")).reward == 1.0


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    program = "print('on the way'); raise SystemExit('out of ideas')"
    with asking(tmp_path, agent(command=[sys.executable, "-c", program])) as driver:
        driver.start(**ROW)
        news = driver.hear()
        assert isinstance(news, EpisodeGivenUp)
        assert "its agent ended with exit code 1, and wrote last: out of ideas" in news.reason


def test_log_probabilities_belong_to_the_tokens_that_were_sampled(tmp_path: Path) -> None:
    with asking(tmp_path, agent("use_tool")) as driver:
        number = driver.start(**ROW)
        driver.hear()
        driver.say(number, CALL)
        trajectory = ended(driver.say(number, "5")).branches[0].trajectory
        assert (trajectory.log_probs == np.where(trajectory.mask, -1.0, 0.0)).all()


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel cannot keep processes of one user apart")
def test_an_agent_can_neither_read_the_memory_of_another_nor_signal_it(tmp_path: Path) -> None:
    victim = agent(command=[sys.executable, agents.__file__], name="victim", domains=["victims"])
    model: Any = {"conversations": conversations(HERMES), "limits": LIMITS, "tokenizer": BYTES, "end": END}
    with (
        serving(victim, agent("spy")) as port,
        driving(tmp_path, port, victim, agent("spy"), **model) as driver,
    ):
        asking_victim = driver.start(domain="victims", **ROW)
        driver.hear()
        (pid,) = [one for one in Path("/proc").glob("[0-9]*") if _runs(one, agents.__file__)]
        number = driver.start(**ROW, victim=pid.name)
        driver.hear()
        assert ended(driver.say(number, "5")).reward == 0.0
        assert ended(driver.say(asking_victim, "5")).reward == 1.0


def _runs(process: Path, program: str) -> bool:
    try:
        return program.encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False

"""`longshore check` begins an episode of each environment, and plays it with a scripted policy."""

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from longshore.api.spec import RLJobSpec
from longshore.checks.result import Check, CheckOutcome, CheckResult
from longshore_cli.main import app
from longshore_runtime.check.results import CheckRequest, results
from tests.contract.environments.openenv_server import Server, running
from tests.unit.runtime.environments.chat_templates import HERMES, SMOL

ROW = {"prompt": "Guess.", "answer": "3"}
CHAT = {"template": HERMES.replace("<|im_end|>", "<eos>")}
"""A template that shows tools, for the tokenizer of the built-in model."""
GAME = {"name": "game", "kind": "Python", "importPath": "games_of_mine:Game"}
MATHS = {"name": "maths", "kind": "Maths"}
WON = {"name": "won", "kind": "Environment"}
SPEC: dict[str, Any] = {
    "model": {"path": "models/tiny", "maxContextTokens": 2048},
    "data": {"path": "data/train.jsonl", "heldOutPrompts": 1, "maxPromptTokens": 1024, "chat": CHAT},
    "environments": [GAME],
    "reward": {"pods": 1, "functions": [MATHS]},
    "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"claimName": "shared"},
}

GOOD = '''
class Game:
    def reset(self, answer: str, **row) -> str:
        self._answer = int(answer)
        return " A number."

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: the guess.
        """
        return "higher" if number < self._answer else "lower"

    def divide(self, number: float) -> str:
        """Divide by something.

        Args:
            number: the dividend.
        """
        return str(number / 0)

    def reply(self, message: str) -> str | None:
        return None if message == "stop" else "Go on."

    def get_reward(self) -> float:
        return 0.5
'''

AGENT = """
from openai import OpenAI

TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}

def run(row):
    messages = [{"role": "user", "content": row["prompt"]}]
    while True:
        reply = OpenAI().chat.completions.create(model="any", messages=messages, tools=[TOOL]).choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            return 0.25
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "a door"} for call in reply.tool_calls]
"""
"""An agent that lets the model look until it says something."""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of modules that can be imported, with a good game."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return written(tmp_path, GOOD)


def written(directory: Path, source: str) -> Path:
    (directory / "games_of_mine.py").write_text(textwrap.dedent(source))
    return directory


def with_rows(directory: Path, *rows: Mapping[str, Any]) -> Path:
    path = directory / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or (ROW, ROW)))
    return path


def found(model: Path | None, data: Path | None, /, **changes: Any) -> dict[Check, CheckResult]:
    spec = RLJobSpec.model_validate(SPEC | changes)
    request = CheckRequest(spec, model, data, frozenset({Check.PROMPTS, Check.TOKENIZER, Check.REFERENCES}))
    return {one.name: one for one in results(request)}


def mistake(data: Path, model: Path | None = None, /, **changes: Any) -> str:
    (sentence,) = found(model, data, **changes)[Check.ENVIRONMENTS].mistakes
    return sentence


def test_a_program_is_found_in_the_directory_of_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent_of_mine.py").write_text(f"{AGENT}\nrun({{'prompt': 'Look.'}})\n")
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)
    coder = {"name": "coder", "kind": "Agent", "command": [sys.executable, "-m", "agent_of_mine"]}
    played = found(None, with_rows(tmp_path), environments=[coder])[Check.ENVIRONMENTS]
    assert played.detail == "coder: 2 turns"


def test_without_a_valid_row_only_the_code_is_imported(tmp_path: Path) -> None:
    data = with_rows(tmp_path, {"prompt": "Open the door."})
    assert found(None, data)[Check.ENVIRONMENTS].detail.endswith("no episode was played without a row")


def functions(*chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"reward": {"pods": 1, "functions": list(chosen)}}


def test_an_episode_is_played_with_every_tool_a_reply_and_a_reward(model: Path, tmp_path: Path) -> None:
    played = found(model, with_rows(tmp_path), **functions(WON))[Check.ENVIRONMENTS]
    assert played.outcome is CheckOutcome.PASSED
    detail = played.detail.split(", ", 3)
    assert detail[0] == "game: 2 tools"
    assert re.fullmatch(r"reset took \d+\.\d s", detail[1])
    assert re.fullmatch(r"prompt \d+ tokens", detail[2])
    assert detail[3] == """divide answered {'number': 1.0} with "{'error': 'float division by zero'}", reward 0.5"""


def test_without_a_model_an_episode_is_played_without_tokens(tmp_path: Path) -> None:
    played = found(None, with_rows(tmp_path))[Check.ENVIRONMENTS]
    assert played.outcome is CheckOutcome.PASSED
    assert "prompt" not in played.detail


def test_functions_are_called_without_a_class(model: Path, modules: Path) -> None:
    written(
        modules,
        "def half(of: int) -> float:\n    '''Halve.\n\n    Args:\n        of: it.\n    '''\n    return of / 2\n",
    )
    tools = {"name": "tools", "kind": "Python", "tools": ["games_of_mine:half"]}
    played = found(model, with_rows(modules), environments=[tools])[Check.ENVIRONMENTS]
    assert played.detail.startswith("tools: 1 tool, prompt ")
    sentence = mistake(with_rows(modules), environments=[tools], **functions(WON))
    assert sentence.startswith("environments[tools].tools: data/train.jsonl, line 1: the environment gives no reward")


def test_an_agent_is_answered_with_each_of_its_tools_and_a_text(model: Path, modules: Path) -> None:
    agent = {"name": "agent", "kind": "Agent", "importPath": "games_of_mine:run"}
    data = with_rows(written(modules, AGENT))
    played = found(model, data, environments=[agent], **functions(WON))[Check.ENVIRONMENTS]
    assert (played.outcome, played.detail) == (CheckOutcome.PASSED, "agent: 2 turns, reward 0.25")
    written(modules, AGENT.replace("return 0.25", "return"))
    assert "return a number from the function" in mistake(data, environments=[agent], **functions(WON))
    texts = {key: value for key, value in SPEC["data"].items() if key != "chat"}
    assert mistake(data, environments=[agent], data=texts) == (
        "data.chat: agents need prompts that are conversations; set it to {}"
    )


def test_python_interpreter_is_called_beside_a_function(model: Path, modules: Path) -> None:
    written(
        modules,
        "def half(of: int) -> float:\n    '''Halve.\n\n    Args:\n        of: it.\n    '''\n    return of / 2\n",
    )
    tools = {"name": "code", "kind": "Python", "tools": ["longshore_runtime.tools:python", "games_of_mine:half"]}
    played = found(model, with_rows(modules), environments=[tools])[Check.ENVIRONMENTS]
    assert played.outcome is CheckOutcome.PASSED
    assert played.detail.startswith("code: 2 tools, prompt ")


def test_session_of_an_openenv_server_is_played(model: Path, tmp_path: Path) -> None:
    with running(Server()) as server:
        served = {"name": "served", "kind": "OpenEnv", "url": server.url}
        played = found(model, with_rows(tmp_path), environments=[served], **functions(WON))[Check.ENVIRONMENTS]
        assert played.outcome is CheckOutcome.PASSED, played.mistakes
        assert re.fullmatch(r"served: 1 tool, reset took .* s, prompt \d+ tokens, reward -?\d.*", played.detail)
        server.action = None
        sentence = mistake(with_rows(tmp_path), environments=[served])
    assert sentence.startswith("environments[served].url: data/train.jsonl, line 1: reset got {'action': None")


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (
            "import no_such_module",
            "'games_of_mine:Game' cannot be imported (ModuleNotFoundError: No module named 'no_s",
        ),
        ("class Game: ...", "'games_of_mine:Game' has no method reset(**row), which begins an episode; add it"),
        (
            """
            class Game:
                def reset(self, **row): ...
                def guess(self, number: int) -> str: ...
            """,
            "tool 'guess' cannot be described to the model (DocstringParsingException: ",
        ),
    ],
    ids=["import error", "without reset", "tool without docstring"],
)
def test_an_environment_that_cannot_be_imported_is_a_mistake(modules: Path, source: str, reported: str) -> None:
    sentence = mistake(with_rows(written(modules, source)))
    assert sentence.startswith(f"environments[game].importPath: {reported}")
    assert sentence.endswith(
        "put its directory on PYTHONPATH, or add --skip environments if only the pods of the job have what it needs"
    )


@pytest.mark.parametrize(
    ("methods", "reported"),
    [
        (
            "def reset(self, prompt): ...",
            "importPath: data/train.jsonl, line 1: reset raised TypeError: Game.reset() got an unexpected keyword "
            "argument 'answer'",
        ),
        (
            "def reset(self, **row):\n        import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "importPath: data/train.jsonl, line 1: in reset, its process was killed by signal 9",
        ),
        (
            "def reset(self, **row):\n        import threading; threading.Event().wait()",
            "callTimeoutSeconds: reset did not end within 1 s; make it faster, or raise the limit",
        ),
        (
            "def reset(self, **row): ...\n    def reply(self, message: str): return int(message)",
            "importPath: data/train.jsonl, line 1: reply raised ValueError: invalid literal for int() with base 10",
        ),
        (
            "def reset(self, **row): ...\n    def get_reward(self): return 'much'",
            "importPath: data/train.jsonl, line 1: get_reward returned 'much'",
        ),
        (
            "def reset(self, **row): ...\n    def get_reward(self): ...",
            "importPath: data/train.jsonl, line 1: the environment gives no reward, which a reward function of kind "
            "Environment takes; let its get_reward() return a number",
        ),
    ],
    ids=["row not taken", "dead process", "hanging reset", "reply raises", "reward is no number", "no reward"],
)
def test_an_environment_that_fails_is_a_mistake(modules: Path, methods: str, reported: str) -> None:
    data = with_rows(written(modules, f"class Game:\n    {methods}\n"))
    limited = [GAME | {"callTimeoutSeconds": 1 if "threading" in methods else 60}]
    sentence = mistake(data, environments=limited, **functions(WON))
    assert sentence.startswith(f"environments[game].{reported}"), sentence
    assert sentence.endswith("correct it, or add --skip environments if only the pods of the job have what it needs")


def test_a_reward_is_not_needed_where_no_function_takes_it(modules: Path) -> None:
    data = with_rows(written(modules, "class Game:\n    def reset(self, **row): ...\n"))
    played = found(None, data)[Check.ENVIRONMENTS]
    assert (played.outcome, "reward" in played.detail) == (CheckOutcome.PASSED, False)


def test_a_template_that_shows_no_tools_is_a_mistake(model: Path, tmp_path: Path) -> None:
    chat = {"template": SMOL.replace("<|im_end|>", "<eos>")}
    assert mistake(with_rows(tmp_path), model, data=SPEC["data"] | {"chat": chat}) == (
        "data.chat.template: the chat template does not show the model the tools of its environment; set one that "
        "writes `tools`"
    )


@pytest.mark.parametrize("has_model", [False, True])
def test_tools_need_conversations(model: Path, tmp_path: Path, has_model: bool) -> None:
    texts = {key: value for key, value in SPEC["data"].items() if key != "chat"}
    assert mistake(with_rows(tmp_path), model if has_model else None, data=texts) == (
        "data.chat: the tools of an environment need prompts that are conversations; set it to {}"
    )


def test_a_prompt_that_reset_makes_too_long_is_a_mistake(model: Path, modules: Path) -> None:
    data = with_rows(written(modules, "class Game:\n    def reset(self, **row): return 'x' * 2000\n"))
    sentence = mistake(data, model)
    assert sentence.startswith("environments[game].importPath: data/train.jsonl, line 1: its prompt has 2,")
    assert "model.maxContextTokens less algorithm.maxResponseTokens leaves 1,984" in sentence


def test_a_row_that_the_job_leaves_out_begins_no_episode(model: Path, modules: Path) -> None:
    data = with_rows(modules, {**ROW, "prompt": "x" * 1500, "answer": "none"}, ROW)
    assert found(model, data)[Check.ENVIRONMENTS].outcome is CheckOutcome.PASSED


BY_DOMAIN = {"data": SPEC["data"] | {"domainField": "domain"}}


def test_a_row_acts_in_the_first_environment_with_its_domain(tmp_path: Path) -> None:
    data = with_rows(tmp_path, {**ROW, "answer": "none", "domain": "sums"}, {**ROW, "domain": "games"})
    games = GAME | {"domains": ["games"]}
    played = found(None, data, environments=[games], **BY_DOMAIN)[Check.ENVIRONMENTS]
    assert played.outcome is CheckOutcome.PASSED, "the row of another domain has no answer that reset can read"


@pytest.mark.parametrize(
    "environments",
    [[GAME | {"domains": ["gmaes"]}], [GAME | {"name": "all", "domains": ["games"]}, GAME]],
    ids=["misspelt", "taken by one before it"],
)
def test_an_environment_that_no_row_acts_in_is_a_mistake(tmp_path: Path, environments: Sequence[Any]) -> None:
    sentence = mistake(with_rows(tmp_path, {**ROW, "domain": "games"}), environments=environments, **BY_DOMAIN)
    assert sentence == (
        "environments[game].domains: no row acts in it: their domains are others, or an environment before it has "
        "them; correct them, or remove it"
    )


def test_a_reward_of_an_environment_for_rows_without_one_is_a_mistake(tmp_path: Path) -> None:
    data = with_rows(tmp_path, {**ROW, "domain": "games"}, {**ROW, "domain": "sums"})
    spec = RLJobSpec.model_validate(
        SPEC | BY_DOMAIN | functions(WON) | {"environments": [GAME | {"domains": ["games"]}]}
    )
    first, second = [one for one in results(CheckRequest(spec, None, data)) if one.name is Check.ENVIRONMENTS]
    (sentence,) = first.mistakes
    assert sentence.startswith("data/train.jsonl, line 2: reward.functions[won].kind: the row acts in no environment")
    assert second.outcome is CheckOutcome.PASSED


def test_an_environment_is_imported_without_data_and_model(modules: Path) -> None:
    job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": SPEC}
    (modules / "job.yaml").write_text(yaml.safe_dump(job))
    reported = CliRunner().invoke(app, ["check", str(modules / "job.yaml")]).output
    assert "✓ environments        game: it can be imported; no episode was played without a row\n" in reported


def test_verifiers_are_looked_for_under_the_python_that_the_check_is_given(tmp_path: Path) -> None:
    sums = {"name": "sums", "kind": "Verifiers", "verifiers": {"id": "sums", "python": "/opt/none/bin/python"}}
    spec = SPEC | {"environments": [sums]}
    job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = ["check", str(tmp_path / "job.yaml")]
    without = CliRunner().invoke(app, command).output
    assert "environments[sums].verifiers.python: '/opt/none/bin/python' is not a program of this machine" in without
    assert "has no package verifiers" in CliRunner().invoke(app, [*command, "--python", sys.executable]).output

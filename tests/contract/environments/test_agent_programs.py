"""Programs that others wrote, unchanged, as agents of episodes: `make agent-programs` installs them."""

import json
import os
from pathlib import Path
from typing import Final

import pytest

from longshore_runtime.environments.events import TurnWanted
from tests.contract.environments.test_agents import CALL, ROW, agent, asking, ended, prompt_of

PROGRAMS: Final = Path(os.environ.get("LONGSHORE_TEST_AGENT_PROGRAMS", ".venv")).resolve() / "agent-programs" / "bin"
pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "python").exists(), reason=f"there is no {PROGRAMS}: install it with make agent-programs"
)
OF_OPENAI_AGENTS: Final = """
import asyncio, json, os, sys
from agents import Agent, Runner, function_tool

@function_tool
def add(a: int, b: int) -> int:
    return a + b

row = json.load(open(os.environ["LONGSHORE_ROW"]))
agent = Agent(name="Adder", instructions="You add numbers.", tools=[add])
result = asyncio.run(Runner.run(agent, row["question"]))
sys.exit(result.final_output != row["answer"])
"""
MINI: Final = (
    "mini --yolo --exit-immediately -l 0 -m openai/policy -t 'Write the sum.' -o said.json && grep -q 5 sum.txt"
)


def bash(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


def test_an_agent_of_openai_agents_calls_its_tool(tmp_path: Path) -> None:
    program = agent(command=[str(PROGRAMS / "python"), "-c", OF_OPENAI_AGENTS])
    with asking(tmp_path, program) as driver:
        number = driver.start(**ROW)
        assert "You add numbers." in prompt_of(driver.hear())
        assert "<tool_response>\n5\n</tool_response>" in prompt_of(driver.say(number, CALL))
        episode = ended(driver.say(number, "5"))
        assert (episode.num_turns, len(episode.branches)) == (2, 1)


def test_mini_swe_agent_runs_commands_in_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path),
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    with asking(tmp_path, agent(command=["bash", "-c", MINI])) as driver:
        number = driver.start(**ROW)
        assert isinstance(driver.hear(), TurnWanted)
        assert '"returncode": 0' in prompt_of(driver.say(number, bash("echo 5 > sum.txt")))
        episode = ended(driver.say(number, bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")))
        assert (episode.num_turns, len(episode.branches)) == (2, 1)

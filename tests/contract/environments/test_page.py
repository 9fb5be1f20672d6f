"""The class of the how-to page plays an episode, and its reward function scores the final state."""

import asyncio
import re
from pathlib import Path

import pytest

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore_runtime.environments.pod_protocol import Finished
from longshore_runtime.rewards.child_scorer import ChildScorer
from longshore_runtime.rewards.scoring import ScoreItem
from tests.contract.environments.environment_pods import PATIENT_S, connected, python, serving, texts
from tests.contract.how_to.pages import PAGES


def test_example_of_a_class_is_scored_by_its_final_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PAGES / "train-with-environments.md").read_text(encoding="utf-8")
    section = page.partition("## A class\n")[2].partition("\n## ")[0]
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code)
    monkeypatch.setenv(contract.ENV_MODULES, str(tmp_path))

    async def played(port: int) -> Finished:
        async with connected(port) as client:
            await client.open(1, "game", secret=42)
            assert texts(await client.say(1, "I guess")) == ["Say a number."]
            assert texts(await client.say(1, "7")) == ["higher"]
            assert texts(await client.say(1, "42")) == []
            finished = await client.finish(1, wants_state=True)
            assert isinstance(finished, Finished), finished
            return finished

    with serving(python("game", "games:Higher")) as pod:
        finished = asyncio.run(played(pod))
    assert finished.reward == 1.0
    fields = {"name": "quick", "kind": "Python", "importPath": "scores:quick", "timeoutSeconds": PATIENT_S}
    scorer = ChildScorer(RewardFunction.model_validate(fields), [ScoreItem("row 1", "p", "", "", {})])
    assert scorer.score(ScoreItem("row 1", "p", "42", "", {}, state=finished.state)).reward == 0.9
    scorer.close()

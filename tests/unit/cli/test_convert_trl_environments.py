"""`longshore convert` of agents of TRL: tools and environments become environments of the job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from longshore_cli.convert import sources
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.trl import TRL
from tests.unit.cli.conversions import FIXED, TRL_RUN, spec, trl

CLASS: Final = "class Game:\n    def reset(self, **row): ...\n    def get_reward(self): ...\n"


def of_script(directory: Path, text: str, *settings: str) -> Conversion:
    """Convert a script that sets what `TRL_RUN` sets, but rewards as it does."""
    script = directory / "train.py"
    script.write_text(text)
    others = {key: value for key, value in TRL_RUN.items() if key != "reward_funcs"}
    return convert(TRL, {**others, **sources.read([str(script), *settings]).given}, FIXED)


def says(found: Conversion, text: str) -> bool:
    """Return whether a sentence is left to do."""
    return any(text in one for one in found.to_do)


def test_tools_of_trl_are_an_environment_of_functions(tmp_path: Path) -> None:
    found = of_script(
        tmp_path,
        "from mine import search\nimport lib\nadd = lambda a: a\ndef f(completions): ...\n"
        "async def fetch(a): ...\nTOOLS = [search, lib.deep.read, add, fetch]\n"
        "GRPOTrainer('a/b', f, tools=TOOLS, args=GRPOConfig(max_tool_calling_iterations=3))\n",
    )
    tools = ["mine:search", "lib.deep:read", "train:add", "train:fetch"]
    assert spec(found)["environments"] == [{"name": "tools", "kind": "Python", "tools": tools, "maxTurns": 4}]
    assert spec(found)["data"]["chat"] == {}
    assert [one["kind"] for one in spec(found)["reward"]["functions"]] == ["Python"]
    assert says(found, "Submit the job with `--with mine.py`, which has search.")
    assert says(found, "which has add and fetch. Move it into a file of its own")
    assert says(found, "Set spec.image to an image that has the package lib")


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("tools=[partial(f, 1)]", "partial(f, 1)"),
        ("tools=[lambda a: a]", "lambda a: a"),
        ("tools=make_tools()", "make_tools()"),
        ("tools=[f, inner]", "inner"),
        ("environment_factory=Inner", "Inner"),
        ("environment_factory=lambda: Game(1)", "lambda: Game(1)"),
        ("environment_factory={'one': Game, 'other': Inner}", "Inner"),
    ],
)
def test_objects_that_nothing_can_import_are_refused(tmp_path: Path, argument: str, shown: str) -> None:
    found = of_script(
        tmp_path,
        f"from functools import partial\n{CLASS}def f(completions): ...\ndef main():\n    def inner(a): ...\n"
        f"    class Inner(Game): ...\n    GRPOTrainer('a/b', f, {argument})\n",
    )
    key = argument.partition("=")[0]
    assert found.prevented[key].startswith(f"{shown} (made by the program): a job imports it, so write a ")
    elsewhere = of_script(tmp_path, (tmp_path / "train.py").read_text(), f"{key}=mine.thing")
    assert elsewhere.job is not None, "a setting takes the place of what the script has"


def test_environment_of_trl_alone_is_environment_and_reward(tmp_path: Path) -> None:
    found = of_script(
        tmp_path,
        f"{CLASS}GRPOTrainer('a/b', args=GRPOConfig(chat_template_kwargs={{'enable_thinking': False}}), "
        "environment_factory=Game)\n",
    )
    assert spec(found)["environments"] == [
        {"name": "game", "kind": "Python", "importPath": "train:Game", "maxTurns": 1000}
    ]
    assert spec(found)["reward"]["functions"] == [{"name": "environment", "kind": "Environment"}]
    assert spec(found)["data"]["chat"] == {"templateArguments": {"enable_thinking": False}}
    assert says(found, "Look at maxTurns of spec.environments, 1000: TRL has no limit of turns")
    assert says(found, "Set spec.data.chat.template if")
    assert not says(found, "has get_reward")


@pytest.mark.parametrize(
    ("before", "kinds", "asks"),
    [
        (CLASS, ["Python", "Environment"], False),
        ("class Game:\n    def reset(self): ...\n", ["Python"], False),
        ("class Game(Base):\n    def reset(self): ...\n", ["Python"], True),
        ("from games import Game\n", ["Python"], True),
        ("def Game(): ...\n", ["Python"], True),
    ],
)
def test_get_reward_is_added_to_other_rewards_where_it_is_known(
    tmp_path: Path, before: str, kinds: Sequence[str], asks: bool
) -> None:
    found = of_script(tmp_path, f"from mine import f\n{before}GRPOTrainer('a/b', f, environment_factory=Game)\n")
    assert [one["kind"] for one in spec(found)["reward"]["functions"]] == kinds
    assert says(found, "kind: Environment} to spec.reward.functions if") == asks


def test_key_says_whether_a_class_elsewhere_has_get_reward() -> None:
    rewards = trl(environment_factory="games:Game", get_reward=True, reward_weights=[0.5])
    assert [(one["kind"], one.get("weight")) for one in spec(rewards)["reward"]["functions"]] == [
        ("Maths", 0.5), ("Environment", None)
    ]  # fmt: skip
    missing = trl(environment_factory="games:Game", get_reward=False, reward_funcs=None)
    assert "reward_funcs" in missing.missing


def test_get_reward_of_a_class_elsewhere_is_assumed_where_nothing_else_rewards() -> None:
    assumed = trl(environment_factory="games:Game", reward_funcs=None)
    assert spec(assumed)["reward"]["functions"] == [{"name": "environment", "kind": "Environment"}]
    assert (
        "See that the environment has get_reward, which was assumed because no other reward is named: if it has none, "
        "convert again with get_reward=false and reward_funcs=module.function."
    ) in assumed.to_do
    known = trl(environment_factory="games:Game", reward_funcs=None, get_reward=True)
    assert not says(known, "was assumed")


WITHOUT: Final = "class Code:\n    def reset(self, **row): ...\n"
ELSEWHERE: Final = "from other import Code\n"
REWARDED: Final = {"name": "environment", "kind": "Environment"}


@pytest.mark.parametrize(
    ("other", "settings", "reward", "left"),
    [
        (WITHOUT, [], REWARDED | {"domains": ["game"]}, "Add a function with domains: [code] to spec.reward.functions"),
        (ELSEWHERE, [], REWARDED, "See that the environment code has get_reward, which was assumed"),
        (ELSEWHERE, ["get_reward.code=true"], REWARDED, None),
        (ELSEWHERE, ["get_reward=true"], REWARDED, None),
        (
            ELSEWHERE,
            ["get_reward.code=false"],
            REWARDED | {"domains": ["game"]},
            "the environment code has no get_reward, and nothing else scores its rows",
        ),
    ],
)
def test_rows_of_classes_without_get_reward_are_said_to_need_another(
    tmp_path: Path, other: str, settings: Sequence[str], reward: dict[str, Any], left: str | None
) -> None:
    script = f"{CLASS}{other}GRPOTrainer('a/b', environment_factory={{'game': Game, 'code': Code}})\n"
    found = of_script(tmp_path, script, *settings)
    assert spec(found)["reward"]["functions"] == [reward]
    assert [one for one in found.to_do if "get_reward" in one] == [one for one in found.to_do if left and left in one]
    assert left is None or says(found, left)


@pytest.mark.parametrize(("other", "asks"), [(WITHOUT, False), (ELSEWHERE, True)])
def test_get_reward_of_some_classes_is_added_to_rewards_of_all(tmp_path: Path, other: str, asks: bool) -> None:
    script = f"{CLASS}{other}GRPOTrainer('a/b', 'm.f', environment_factory={{'game': Game, 'code': Code}})\n"
    found = of_script(tmp_path, script)
    assert spec(found)["reward"]["functions"][1:] == [REWARDED | {"domains": ["game"]}]
    assert not says(found, "nothing else scores")
    assert asks == says(
        found,
        "Add {name: environment-code, kind: Environment, domains: [code]} to spec.reward.functions if the environment "
        "code has get_reward",
    )


def test_several_classes_without_get_reward_need_a_reward_function(tmp_path: Path) -> None:
    script = f"{WITHOUT}GRPOTrainer('a/b', environment_factory={{'code': Code, 'chat': Code}})\n"
    assert "reward_funcs" in of_script(tmp_path, script).missing


@pytest.mark.parametrize(
    "function",
    ["def f(environments, **kwargs): ...", "def f(completions, **kwargs):\n    kwargs['environments']"],
)
def test_rewards_that_read_environments_become_the_one_of_the_environment(tmp_path: Path, function: str) -> None:
    found = of_script(
        tmp_path,
        f"from games import Game\n{function}\n"
        "GRPOTrainer('a/b', f, args=GRPOConfig(reward_weights=[0.5]), environment_factory=Game)\n",
    )
    assert spec(found)["reward"]["functions"] == [{"name": "environment", "kind": "Environment"}]
    assert says(
        found, "Let get_reward() of the environment return what f reads of its environments, times its weight 0.5:"
    )


def test_several_environments_of_trl_are_chosen_by_their_column(tmp_path: Path) -> None:
    found = of_script(
        tmp_path,
        f"{CLASS}from other import Code\nCHOICE = {{'board_game': Game, 'code': Code}}\n"
        "GRPOTrainer('a/b', 'm.f', environment_factory=CHOICE)\n",
    )
    environments = [(one["name"], one["importPath"], one["domains"]) for one in spec(found)["environments"]]
    assert environments == [("board-game", "train:Game", ["board_game"]), ("code", "other:Code", ["code"])]
    assert spec(found)["data"]["domainField"] == "environment"


def test_functions_beside_a_class_are_refused() -> None:
    found = trl(tools=["mine.add"], environment_factory="games:Game")
    assert "make them methods of the one of environment_factory" in found.prevented["tools"]


def test_data_are_asked_for_with_the_row_that_an_environment_needs() -> None:
    found = trl(environment_factory="games:Game", dataset_name=None)
    assert 'rows {"prompt": [{"role": "user", "content": ""}], "answer": ""}' in found.prevented["dataset_name"]


def test_rows_are_asked_for_in_a_whole_sentence() -> None:
    assert (
        'Give each row a prompt and an answer, which a job needs: {"prompt": [{"role": "user", "content": ""}], '
        '"answer": ""} in at least promptsPerStep rows where reset returns the prompt.'
    ) in trl(environment_factory="games:Game").to_do


@pytest.mark.parametrize("unset", [None, [], {}])
def test_run_without_tools_has_no_environment(unset: Any) -> None:
    for key in ("tools", "environment_factory"):
        found = trl(**{key: unset})
        assert key in found.same
        assert "environments" not in spec(found)

"""`longshore convert` of agents of verl: functions become tools of an environment, and others are refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from longshore_cli.convert import sources
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.verl import VERL
from longshore_cli.simulate.errors import BadInput
from tests.unit.cli.conversions import FIXED, VERL_RUN, spec, verl

TURNS: Final = "actor_rollout_ref.rollout.multi_turn"
FILE: Final = f"{TURNS}.function_tool_path"
FILE_OF_DATA: Final = "data.function_tool_path"


def of_verl(**changed: Any) -> Conversion:
    """Convert a run of verl with functions; `__` in names stands for dots."""
    keys = {f"{TURNS}.{key}" if "__" not in key else key.replace("__", "."): value for key, value in changed.items()}
    return convert(VERL, VERL_RUN | {FILE: "tools.py", "function_tools": ["add"]} | keys, FIXED)


def says(found: Conversion, text: str) -> bool:
    """Return whether a sentence is left to do."""
    return any(text in one for one in found.to_do)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ({}, 1000),
        ({"max_assistant_turns": 5}, 5),
        ({"max_user_turns": 3}, 4),
        ({"max_assistant_turns": 5, "max_user_turns": 3}, 4),
    ],
)
def test_functions_of_verl_are_an_environment(limits: Mapping[str, int], turns: int) -> None:
    found = of_verl(enable=True, format="hermes", **limits)
    wanted = {"name": "tools", "kind": "Python", "tools": ["tools:add"], "maxTurns": turns}
    assert spec(found)["environments"] == [wanted]
    assert spec(found)["data"]["chat"] == {}
    assert f"{TURNS}.format" in found.same
    assert says(found, "Remove @function_tool and the import of verl from tools.py")
    assert says(found, "agent_name is tool_agent")
    assert f"{TURNS}.max_tool_response_length = 256 (by default)" in found.left_out


def test_rewards_of_verl_are_said_to_see_the_last_turn() -> None:
    assert says(of_verl(custom_reward_function__path="mine.py"), "solution_str is the last turn")
    assert not says(verl(custom_reward_function__path="mine.py"), "solution_str")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("tool_config_path", "write one class with a method for each, name it in spec.environments"),
        ("interaction_config_path", "write a class whose reply() answers each turn, name it in spec.environments"),
    ],
)
def test_classes_of_verl_are_refused_with_what_to_write_instead(key: str, instead: str) -> None:
    assert instead in of_verl(**{key: "them.yaml"}).prevented[f"{TURNS}.{key}"]


def test_functions_of_a_file_are_read_from_it(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "import verl\nfrom verl.tools.function_tool import function_tool as function_tool\n"
        "@function_tool\ndef add(a): ...\n@verl.tools.function_tool.function_tool('find')\nasync def search(a): ...\n"
        "def helper(): ...\n"
    )
    given = sources.read([f"{FILE}={file}"]).given
    assert given["function_tools"] == ["add", "search"]
    assert sources.read([f"{FILE}={file}", "function_tools=[add]"]).given["function_tools"] == ["add"]
    assert "function_tools" not in sources.read([f"{FILE}=elsewhere.py"]).given
    file.write_text("def :")
    with pytest.raises(BadInput, match="cannot be read"):
        sources.read([f"{FILE}={file}"])


@pytest.mark.parametrize(
    ("key", "others"),
    [
        (FILE, []),
        (FILE_OF_DATA, []),
        (FILE_OF_DATA, [f"{FILE}=null"]),
        (FILE_OF_DATA, [f"{FILE}=${{{FILE_OF_DATA}}}"]),
        (FILE, [f"{FILE_OF_DATA}=${{oc.select:{FILE},null}}"]),
    ],
)
def test_either_key_for_the_file_of_functions_is_read(tmp_path: Path, key: str, others: Sequence[str]) -> None:
    file = tmp_path / "tools.py"
    file.write_text("@function_tool\ndef add(a): ...\n")
    found = convert(VERL, VERL_RUN | sources.read([f"{key}={file}", *others]).given, FIXED)
    assert spec(found)["environments"][0]["tools"] == ["tools:add"]


def test_functions_are_those_of_the_file_that_becomes_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("@function_tool\ndef add(a): ...\n")
    (tmp_path / "other.py").write_text("@function_tool\ndef search(a): ...\n")
    typed = [f"{FILE_OF_DATA}={tmp_path / 'other.py'}", f"{FILE}={tmp_path / 'tools.py'}"]
    found = convert(VERL, VERL_RUN | sources.read(typed).given, FIXED)
    assert spec(found)["environments"][0]["tools"] == ["tools:add"]


def test_functions_of_a_file_elsewhere_are_asked_for() -> None:
    found = convert(VERL, VERL_RUN | {FILE: "/verl/tools.py"}, FIXED)
    assert "function_tools" in found.missing
    assert "name the functions of /verl/tools.py" in found.prevented["function_tools"]

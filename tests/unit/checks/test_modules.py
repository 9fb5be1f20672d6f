"""Modules are looked at before they travel: what could not be imported never reaches a cluster."""

import pytest

from longshore.api.spec import RLJobSpec
from longshore.checks.modules import MAX_BYTES, import_paths, module_mistakes
from tests.unit.api.specs import reward, spec

MINE = {"reward.functions[mine].importPath": "mine:score"}


@pytest.mark.parametrize(
    "content",
    [b"def score(p, r, a): return 1.0", b"async def score(x): ...", b"from other import one as score",
     b"score = lambda p, r, a: 1.0", b"if True:\n    def score(p, r, a): ...", b"class score: ..."],
)  # fmt: skip
def test_a_module_that_defines_the_function_is_accepted(content: bytes) -> None:
    assert module_mistakes({"mine.py": content}, MINE) == []


def test_modules_may_support_one_another_and_functions_may_come_from_the_image() -> None:
    files = {"mine.py": b"from helpers import score", "helpers.py": b"def score(p, r, a): ..."}
    assert module_mistakes(files, MINE | {"algorithm.objective.importPath": "installed.package:loss"}) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("my-rewards.py", b"", "my-rewards.py: a module needs a name as my_rewards.py"),
        ("rewards.txt", b"", "rewards.txt: a module needs a name as"),
        ("class.py", b"", "class.py: a module needs a name as"),
        ("json.py", b"", "json.py: Python has a standard module json; rename the file"),
        ("mine.py", b"def score(:\n", "mine.py, line 1: not valid Python (invalid syntax)"),
        ("mine.py", b"\xff\xfe", "mine.py: the file is not UTF-8; save it as UTF-8"),
        ("mine.py", b"#" * (MAX_BYTES + 1), "the files have 1,048,577 bytes together, and a ConfigMap holds 1,048,576"),
        ("mine.py", b"def grade(): ...",
         "reward.functions[mine].importPath: mine.py defines no 'score'; it has grade"),
        ("mine.py", b"", "reward.functions[mine].importPath: mine.py defines no 'score'"),
        ("other.py", b"def score(): ...",
         "no importPath, tool or command of a reward function, an environment or the objective leads into other.py; "
         "set one to other:N"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_reported_with_the_fix(name: str, content: bytes, message: str) -> None:
    (mistake,) = module_mistakes({name: content}, MINE)
    assert mistake.startswith(message)


@pytest.mark.parametrize(
    "program",
    [
        {"kind": "Agent", "command": ["python", "-m", "my_agent"]},
        {"kind": "Agent", "command": ["sh", "-c", "exec python /etc/longshore-modules/my_agent.py"]},
        {"kind": "Verifiers", "verifiers": {"id": "me/My-Agent@1.0"}},
    ],
)
def test_the_program_of_an_agent_may_be_a_module(program: dict[str, object]) -> None:
    changes = {"environments": [{"name": "coder", **program}], "data": {"path": "rows.jsonl", "chat": {}}}
    job = RLJobSpec.model_validate(spec(reward(kind="Maths") | changes))
    assert module_mistakes({"my_agent.py": b""}, import_paths(job)) == []
    (mistake,) = module_mistakes({"my_agents.py": b""}, import_paths(job))
    assert mistake.startswith("no importPath, tool or command of")


def test_a_class_and_the_tools_of_environments_may_be_in_a_module() -> None:
    game = {"name": "game", "kind": "Python", "domains": ["games"], "importPath": "games:Game"}
    calculator = {"name": "calculator", "kind": "Python", "tools": ["games:add", "games:multiply"]}
    data = {"path": "rows.jsonl", "domainField": "kind"}
    changes = reward(kind="Maths") | {"environments": [game, calculator], "data": data}
    job = RLJobSpec.model_validate(spec(changes))
    (mistake,) = module_mistakes({"games.py": b"class Game: ...\ndef add(a, b): ..."}, import_paths(job))
    assert mistake.startswith("environments[calculator].tools[1]: games.py defines no 'multiply'")

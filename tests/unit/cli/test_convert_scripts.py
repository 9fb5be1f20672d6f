"""`longshore convert` of Python scripts with TRL: what the text says for certain is read, and all else is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from longshore_cli.convert import sources
from longshore_cli.convert.conversion import Conversion, convert
from longshore_cli.convert.trl import TRL
from longshore_cli.simulate.errors import BadInput
from tests.unit.cli.conversions import FIXED, TRL_RUN, spec

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str, name: str = "train.py") -> Path:
        script = tmp_path / name
        script.write_text(text)
        return script

    return written


def converted(script: Path, *settings: str) -> Conversion:
    """The conversion of a script that sets what `TRL_RUN` sets, but rewards as it does."""
    others = {key: value for key, value in TRL_RUN.items() if key != "reward_funcs"}
    return convert(TRL, {**others, **sources.read([str(script), *settings]).given}, FIXED)


def functions(found: Conversion) -> list[tuple[str, str | None]]:
    """Kinds and import paths."""
    return [(one["kind"], one.get("importPath")) for one in spec(found)["reward"]["functions"]]


_TRAINER: Final = "GRPOTrainer(model='Qwen/Qwen3-8B', reward_funcs=accuracy_reward)\n"


@pytest.mark.parametrize(
    ("before", "kind", "path"),
    [
        ("def accuracy_reward(completions, **kwargs): ...\n", "Python", "train:accuracy_reward"),
        ("from open_r1.rewards import accuracy_reward\n", "Python", "open_r1.rewards:accuracy_reward"),
        ("from mine import exact as accuracy_reward\n", "Python", "mine:exact"),
        ("from mine import *\n", "Python", "mine:accuracy_reward"),
        ("from trl.rewards import accuracy_reward\ndef accuracy_reward(x): ...\n", "Python", "train:accuracy_reward"),
        ("def accuracy_reward(x): ...\nfrom trl.rewards import accuracy_reward\n", "Maths", None),
        ("from trl.rewards.accuracy_rewards import accuracy_reward\n", "Maths", None),
        ("from trl.rewards import *\n", "Maths", None),
    ],
)
def test_only_trls_own_accuracy_reward_is_kind_maths(write: Write, before: str, kind: str, path: str | None) -> None:
    assert functions(converted(write(before + _TRAINER))) == [(kind, path)]


def test_rewards_of_modules_are_found_through_their_names(write: Write) -> None:
    script = write(
        "import trl, my_pkg.rewards\nimport other.lib as lib\nfrom trl import rewards\n"
        "def main():\n    from local import fmt\n"
        "    GRPOTrainer(model='a/b', reward_funcs=[trl.rewards.accuracy_reward, rewards.think_format_reward,\n"
        "                my_pkg.rewards.form, lib.f, fmt])\n"
    )
    assert functions(converted(script)) == [
        ("Maths", None), ("Python", "trl_rewards:think_format_reward"), ("Python", "my_pkg.rewards:form"),
        ("Python", "other.lib:f"), ("Python", "local:fmt"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["get_soft_overlong_punishment", "think_format_reward"])
def test_a_function_of_the_script_is_not_trls_whatever_its_name(write: Write, name: str) -> None:
    script = write(f"def {name}(completions, **kwargs): ...\nGRPOTrainer(model='a/b', reward_funcs={name})\n")
    assert functions(converted(script)) == [("Python", f"train:{name}")]


def test_a_reward_function_that_may_be_one_of_several_is_named(write: Write) -> None:
    script = write(
        "try:\n    from trl.rewards import accuracy_reward\nexcept ImportError:\n    from mine import accuracy_reward\n"
        "def main(given):\n    def inner(): ...\n"
        "    GRPOTrainer(reward_funcs=[accuracy_reward, inner, given])\n"
    )
    read = sources.read([str(script), "seed=1"])
    assert "reward_funcs" not in read.given
    assert read.computed == tuple(f"reward_funcs: {name}" for name in ("accuracy_reward", "inner", "given"))


def test_a_reward_model_is_refused() -> None:
    found: dict[str, Any] = dict(convert(TRL, TRL_RUN | {"reward_funcs": ["org/model"]}, FIXED).prevented)
    assert "org/model is a reward model" in found["reward_funcs"]


def test_several_configurations_are_refused_with_their_lines_unless_they_are_equal(write: Write) -> None:
    several = "def smoke():\n    return GRPOConfig(max_steps=5)\ndef full():\n    return GRPOConfig(max_steps={})\n"
    with pytest.raises(BadInput, match=r"several calls of GRPOConfig\(...\), in lines 2 and 4.*keep one of them, or"):
        sources.read([str(write(several.format(500)))])
    assert sources.read([str(write(several.format(5)))]).given == {"max_steps": 5}


def test_mappings_with_two_stars_are_read_where_the_script_assigns_them_once(write: Write) -> None:
    script = write(
        "LR = 1e-6\nbase = {'beta': 0.1, 'seed': 7}\ncommon = dict(learning_rate=LR, max_steps=10 * 2, **base)\n"
        "GRPOConfig(**common, **{'run_name': f'run-{LR}'}, temperature=make())\n"
    )
    read = sources.read([str(script)])
    assert read.given == {"learning_rate": 1e-6, "max_steps": 20, "beta": 0.1, "seed": 7, "run_name": "run-1e-06"}
    assert read.computed == ("temperature",)


@pytest.mark.parametrize(
    "change",
    ["common['seed'] = 2", "common.update(seed=2)", "common |= {'seed': 2}", "if x:\n    common = {}",
     "def f():\n    global common\n    common = {}", "for common in y: pass"],
)  # fmt: skip
def test_a_mapping_that_the_script_may_change_is_named_and_not_read(write: Write, change: str) -> None:
    read = sources.read([str(write(f"common = {{'seed': 1}}\n{change}\nGRPOConfig(beta=0.0, **common)\n"))])
    assert read.given == {"beta": 0.0}
    assert read.computed == ("**common in GRPOConfig(...), which may set any key",)


def test_arguments_are_read_by_position(write: Write) -> None:
    script = write(
        "from trl import GRPOConfig as Config, GRPOTrainer\nfrom mine import f\nfuncs = [f]\n"
        "GRPOTrainer('a/b', funcs, Config('out', max_steps=3), data, *rest)\n"
    )
    read = sources.read([str(script)])
    assert read.given == {"model": "a/b", "reward_funcs": ["mine.f"], "output_dir": "out", "max_steps": 3}
    assert read.computed == ("*rest in GRPOTrainer(...)",)


def test_reward_functions_that_the_program_collects_are_its_own(write: Write) -> None:
    for made in ("funcs = [f]\nfuncs.append(g)\n", "funcs = get_reward_funcs()\n"):
        read = sources.read([str(write(f"from mine import f\n{made}GRPOTrainer('a/b', funcs)\n"))])
        assert (read.given, read.computed) == ({"model": "a/b"}, ("reward_funcs: funcs",))


def test_a_script_whose_configuration_comes_from_elsewhere_says_so(write: Write) -> None:
    read = sources.read([str(write("GRPOTrainer(model='a/b', args=parsed)\n"))])
    (computed,) = read.computed
    assert computed.startswith("args = parsed, since the script does not call GRPOConfig: let it write that")
    with pytest.raises(BadInput, match=r"has no call of GRPOConfig\(...\), .* which are read") as refused:
        sources.read([str(write("TrlParser((ScriptArguments, GRPOConfig))\n")), "num_processes=8"])
    assert refused.value.fix is not None and "YAML file" in refused.value.fix


@pytest.mark.parametrize(
    "expression", ["A", "B + 1", "1 // 0", "{1: 2}", "dict(x=y)", "dict([1])", "'a' * 9", "len([])"]
)
def test_a_value_that_the_text_does_not_say_is_the_programs(write: Write, expression: str) -> None:
    read = sources.read([str(write(f"A = B\nB = A\nGRPOConfig(beta=0.0, seed={expression})\n"))])
    assert (read.given, read.computed) == ({"beta": 0.0}, ("seed",))


@pytest.mark.parametrize("value", ["LoraConfig(r=16)", "config"])
def test_an_adapter_is_reported_in_whatever_form_it_is_given(write: Write, value: str) -> None:
    found = converted(write(f"GRPOTrainer('a/b', 'm.f', peft_config={value})\n"), "reward_funcs=m.f")
    assert found.left_out["peft_config"] == "every weight is trained, and no adapter"
    assert "peft_config" in converted(write("GRPOTrainer('a/b', 'm.f', peft_config=None)\n")).same
    nested = converted(write("GRPOTrainer('a/b', 'm.f')\n"), "peft_config={r:16}")
    assert "peft_config.r" not in nested.left_out


@pytest.mark.parametrize(
    ("argument", "value"),
    [("rollout_func", "play"), ("quantization_config", "BitsAndBytesConfig(load_in_4bit=True)")],
)
def test_objects_that_make_another_training_prevent_a_job(write: Write, argument: str, value: str) -> None:
    found = converted(write(f"GRPOTrainer('a/b', 'm.f', {argument}={value})\n"))
    assert argument in found.prevented
    assert converted(write(f"GRPOTrainer('a/b', 'm.f', {argument}=None)\n")).job is not None


@pytest.mark.parametrize(
    ("argument", "value"),
    [("optimizers", "(adam, None)"), ("processing_class", "tokenizer"), ("callbacks", "[Stop()]")],
)
def test_objects_that_change_a_training_are_reported(write: Write, argument: str, value: str) -> None:
    found = converted(write(f"GRPOTrainer('a/b', 'm.f', {argument}={value})\n"))
    assert argument in found.left_out and argument not in found.beside_learning
    assert "optimizers" in converted(write("GRPOTrainer('a/b', 'm.f', optimizers=(None, None))\n")).same


@pytest.mark.parametrize("argument", ["peft_config", "quantization_config"])
def test_an_object_that_options_of_the_script_decide_is_named(write: Write, argument: str) -> None:
    call = f"get_{argument}(model_args)"
    script = write(f"from trl import get_{argument}\nGRPOTrainer('a/b', 'm.f', {argument}={call})\n")
    read = sources.read([str(script)])
    assert read.computed == (f"{argument} = {call}, which options of the script decide",)
    assert converted(script).job is not None


def test_the_model_and_the_adapter_of_unsloth_are_noticed(write: Write) -> None:
    script = (
        "model, tokenizer = FastLanguageModel.from_pretrained(model_name='unsloth/Qwen3-4B', load_in_4bit=True)\n"
        "model = FastLanguageModel.get_peft_model(model, r=32)\n"
        "GRPOTrainer(model=model, args=GRPOConfig(max_steps=5))\n"
    )
    read = sources.read([str(write(script))])
    assert read.given == {
        "model_name_or_path": "unsloth/Qwen3-4B", "load_in_4bit": True, "use_peft": True, "max_steps": 5
    }  # fmt: skip
    assert read.computed == ()

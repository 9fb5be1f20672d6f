"""What `longshore convert` reads: files, settings and options as both systems read them, and references."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from longshore_cli.convert import sources
from longshore_cli.convert.conversion import convert
from longshore_cli.convert.mapping import ForeignSettings
from longshore_cli.convert.systems import job_name
from longshore_cli.convert.verl import VERL
from longshore_cli.main import app
from longshore_cli.simulate.errors import BadInput
from tests.unit.cli.conversions import FIXED, VERL_RUN, VLLM, converted, spec, trl, verl


def test_files_are_yaml_json_or_python_and_settings_go_before_them(tmp_path: Path) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text("data: {train_batch_size: 64, shuffle: true}\nactor_rollout_ref: {actor: {optim: {lr: 1e-6}}}\n")
    read = sources.read([str(file), "data.train_batch_size=128", "+trainer.nnodes=2", "~data.shuffle"])
    assert read.given == {"data.train_batch_size": 128, "actor_rollout_ref.actor.optim.lr": 1e-6, "trainer.nnodes": 2}
    assert sources.read(["actor_rollout_ref.actor.optim.betas=[0.9,0.95]"]).given == {
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.95]
    }


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("{enable_thinking:False}", {"enable_thinking": False}),
        ("{a: {b:[1,2.5,null],c:TRUE}, d:x y}", {"a": {"b": [1, 2.5, None], "c": True}, "d": "x y"}),
        ("{url:http://h:80/p,'quoted key':1}", {"url": "http://h:80/p", "quoted key": 1}),
        ('{"a": {"b": "c, d\\n"}}', {"a": {"b": "c, d\n"}}),
        ("['a, b',\"it's\",'don\\'t','1','true']", ["a, b", "it's", "don't", "1", "true"]),
        ("[{a:1},[]]", [{"a": 1}, []]),
        ("[1_000,-2,+3,1e-6,.5,1.,-inf,007,1:30]", [1000, -2, 3, 1e-6, 0.5, 1.0, float("-inf"), "007", "1:30"]),
        ("2025-02-30", "2025-02-30"),
        ("yes", "yes"),
        ("no", "no"),
        ("a\\, b", "a, b"),
        (r"C:\dir", r"C:\dir"),
        ("a=b#c", "a=b#c"),
        ("${oc.select:a.b,7}/x", "${oc.select:a.b,7}/x"),
        ("", None),
    ],
)
def test_values_of_settings_are_read_as_hydra_reads_them(typed: str, value: Any) -> None:
    given_value = sources.read([f"+key={typed}"]).given
    nested: dict[str, Any] = ForeignSettings(given_value).below("key")
    assert (nested or given_value["key"]) == value


def test_a_mapping_is_added_to_the_one_that_is_there() -> None:
    assert sources.read(["k={a:1,b:2}", "k={b:3}"]).given == {"k.a": 1, "k.b": 3}
    assert sources.read(["k={a:1,b:2}", "k=3"]).given == {"k": 3}
    assert sources.read(["--k", '{"a": 1}', "--k", '{"b": 2}']).given == {"k.b": 2}, "TRL's options replace it"


def test_a_mapping_that_the_shell_has_split_is_refused_with_its_key() -> None:
    for key in ("data.apply_chat_template_kwargs", VLLM):
        found = converted(f"+{key}=enable_thinking:False", f"+{key}=b:1")
        assert found.prevented[key].startswith("'b:1' is no mapping: put quotes around {…}")
    assert "no mapping" in trl(chat_template_kwargs="b:1").prevented["chat_template_kwargs"]


def test_a_text_of_an_option_stays_one_whatever_it_begins_with() -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    typed = ["--chat_template", template, "--system_prompt", "Note: be brief, please", "--kwargs", "{a:1}"]
    assert sources.read(typed).given == {
        "chat_template": template, "system_prompt": "Note: be brief, please", "kwargs.a": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("a.parquet,b.parquet", "sweep of Hydra; put quotes around a text, or write a list [a.parquet,b.parquet]"),
        ("{a}", "a mapping is {key:value"),
        ("{a:1", "a mapping needs ',' or '}' where nothing follows"),
        ("[1,,2]", "a value is missing"),
        ("'a", "the text that ' begins has no end"),
        ("'a'b", "follows where it should end"),
        ("don't", "' stands inside a text"),
        ("choice(1,2)", "choice(…) is a function of Hydra"),
        ("[" * 500, "nested too deeply"),
    ],
)
def test_a_value_that_cannot_be_read_for_certain_is_refused_with_its_key(typed: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        sources.read([f"+some.key={typed}"])
    assert "+some.key=" in refused.value.message and message in refused.value.message


def test_trls_own_command_line_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "trl.yaml"
    file.write_text("learning_rate: 1e-6\nchat_template_kwargs: '{\"enable_thinking\": false}'\n")
    typed = ["trl", "grpo", "--config", str(file), "--learning_rate", "5e-6", "--bf16", "--max_steps=7",
             "--reward_funcs", "accuracy_reward", "think_format_reward", "--config-name=x", "seed=3"]  # fmt: skip
    assert sources.read(typed).given == {
        "learning_rate": 5e-6, "chat_template_kwargs.enable_thinking": False, "bf16": True, "max_steps": 7,
        "reward_funcs": ["accuracy_reward", "think_format_reward"], "--config-name": "x", "seed": 3,
    }  # fmt: skip


def test_what_follows_an_option_is_its_value_whatever_it_looks_like() -> None:
    typed = ["--run_name", "learning_rate=0.5", "--chat_template", "x" * 5000, "--stop", '{"end": "a=b"}', "seed=3"]
    assert sources.read(typed).given == {
        "run_name": "learning_rate=0.5", "chat_template": "x" * 5000, "stop.end": "a=b", "seed": 3
    }  # fmt: skip


def test_a_reward_function_that_a_call_makes_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("GRPOTrainer(reward_funcs=[accuracy_reward, get_soft_overlong_punishment(512, 128)])\n")
    read = sources.read([str(script)])
    assert read.given == {"reward_funcs": ["accuracy_reward"]}
    assert read.computed == ("reward_funcs: get_soft_overlong_punishment(512, 128)",)


def test_a_script_of_trl_is_read_and_not_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "raise SystemExit('it was run')\n"
        "args = GRPOConfig(learning_rate=1e-5, num_generations=8, max_steps=NUM)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', reward_funcs=[mine, lib.other], args=args, train_dataset=data)\n"
    )
    read = sources.read([str(script)])
    assert read.given == {
        "learning_rate": 1e-5, "num_generations": 8, "model": "Qwen/Qwen2.5-0.5B", "reward_funcs": ["mine", "lib.other"]
    }  # fmt: skip
    assert read.computed == ("max_steps",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "There is no file nothing.yaml"),
        ([], "There is nothing to convert"),
        (["a=[1"], "the value cannot be read"),
        (["a.yaml", "b.yaml"], "one file too many"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        sources.read(arguments)


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    for name, content, message in (
        ("nul.py", "x\0", "cannot be read: source code string cannot contain null bytes"),
        ("bad.py", "def x(:", "cannot be read: invalid syntax"),
        ("deep.yaml", "[" * 5000, "nested too deeply"),
        ("self.yaml", "a: &a {b: *a}", "nested too deeply"),
        ("list.json", "[1]", "holds no mapping of settings"),
    ):
        (file := tmp_path / name).write_text(content)
        with pytest.raises(BadInput, match=message):
            sources.read([str(file)])
    with pytest.raises(BadInput, match="is a directory: name a file in it"):
        sources.read([str(tmp_path)])


def test_a_launch_script_is_to_be_run_with_convert_in_place_of_its_program(tmp_path: Path) -> None:
    for name, content in (("run.sh", "python3 -m verl.trainer.main_ppo a=1"), ("run", "#!/bin/bash\ntrl grpo")):
        (file := tmp_path / name).write_text(content)
        with pytest.raises(BadInput, match="is a shell script, which is not run here") as refused:
            sources.read([str(file)])
        assert "with `longshore convert`, and run the script" in str(refused.value.fix)


def test_dates_in_files_are_texts(tmp_path: Path) -> None:
    (file := tmp_path / "verl.yaml").write_text("trainer: {experiment_name: 2025-02-30, project_name: 2025-02-03}")
    read = sources.read([str(file)]).given
    assert read == {"trainer.experiment_name": "2025-02-30", "trainer.project_name": "2025-02-03"}


@pytest.mark.parametrize(
    "key", ["trainer.save_freq", "actor_rollout_ref.rollout.temperature", "data.max_prompt_length"]
)
def test_a_number_that_is_not_finite_is_refused(key: str) -> None:
    for value in (float("inf"), float("-inf"), float("nan")):
        assert "is no finite number" in convert(VERL, VERL_RUN | {key: value}, FIXED).prevented[key]


def test_numbers_that_are_too_large_to_multiply_are_refused() -> None:
    found = trl(max_steps=None, num_train_epochs=1e308, num_rows=10**300)
    assert "too large" in found.prevented["max_steps"]


def test_options_that_cannot_be_used_are_one_sentence(tmp_path: Path) -> None:
    (file := tmp_path / "verl.yaml").write_text(yaml.safe_dump(VERL_RUN))
    for options, message in (
        (["-o", str(tmp_path)], f"--out: {tmp_path} cannot be written: Is a directory."),
        (["-o", str(tmp_path / "none" / "job.yaml")], "cannot be written: No such file or directory."),
        (["--name", "My_Job"], "--name My_Job: the name must begin with a letter"),
        (["--name", "a" * 60], "the name must have at most 45 characters"),
    ):
        done = CliRunner().invoke(app, ["convert", str(file), *options])
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr


def test_values_that_refer_to_other_keys_are_followed() -> None:
    for reference in (
        "${data.train_batch_size}",
        "${oc.select:data.train_batch_size,7}",
        "${oc.select:data.none,1024}",
    ):
        found = verl(actor_rollout_ref__actor__ppo_mini_batch_size=reference)
        assert "promptsPerUpdate" not in spec(found)["algorithm"]
    circular = verl(data__train_batch_size="${data.gen_batch_size}", data__gen_batch_size="${data.train_batch_size}")
    assert "is no number" in circular.prevented["data.train_batch_size"]


@pytest.mark.parametrize(
    "value", ["${oc.env:HOME}/data/x.parquet", "${data.unknown}", "${.val_files}", "${oc.select:.x,y}/z", ["${a.b}/x"]]
)
def test_a_reference_that_cannot_be_followed_is_refused_with_its_key(value: Any) -> None:
    assert "until ${…} is replaced" in verl(data__train_files=value).prevented["data.train_files"]
    assert "data.val_files" in verl(data__val_files=value).left_out, "a value that is not used does not matter"


def test_references_inside_texts_and_lists_are_followed() -> None:
    files = ["${data.root}/gsm8k/a.parquet", "${oc.select:data.none,/tmp}/b.parquet"]
    found = spec(verl(data__root="/mnt", data__train_files=files))
    assert [one["path"] for one in found["data"]["sources"]] == ["data/gsm8k/a.parquet", "data/tmp/b.parquet"]
    assert job_name({"trainer.experiment_name": "${oc.env:RUN}"}) == "converted"

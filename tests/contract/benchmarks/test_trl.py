"""The comparison with TRL, without TRL: what both sides are given, what is measured, and what is made of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import trl
from benchmarks.local_pods import run_in_coordinator
from benchmarks.trl_task import TRL_SIDES, task_of, trl_settings
from benchmarks.workload import merged

from longshore.api.spec import RLJobSpec
from longshore_cli.convert.conversion import convert
from longshore_cli.convert.trl import TRL
from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer
from longshore_runtime.tasks.rows import builtin_prompt_sets
from tests.warm import WarmProgram


def spec_of(side: str, **changes: Any) -> RLJobSpec:
    spec = trl.spec_of(side, seed=3, num_steps=4).model_dump(by_alias=True, exclude_unset=True, mode="json")
    return RLJobSpec.model_validate(merged(spec, changes))


def test_the_settings_of_trl_convert_back_into_the_job() -> None:
    """`longshore convert` reads them as anybody's."""
    job = spec_of("Synchronous")
    given = trl_settings(job) | {"model_name_or_path": "model", "dataset_name": "data", "num_processes": 1}
    found = convert(
        TRL, {**given, "reward_funcs": ["accuracy_reward"]}, {"metadata.name": "job", "spec.storage.claimName": "none"}
    )
    assert found.job is not None, found.prevented
    assert not found.unknown
    converted = RLJobSpec.model_validate(found.job["spec"])
    corrected = {"rollout_correction"}  # What TRL trains on without vLLM, the model that is trained has sampled itself.
    assert converted.algorithm.model_dump(exclude=corrected) == job.algorithm.model_dump(exclude=corrected)
    assert converted.rollout.strategy == job.rollout.strategy
    assert converted.model.max_context_tokens == job.model.max_context_tokens
    assert converted.evaluation.responses_per_prompt == job.evaluation.responses_per_prompt


@pytest.mark.parametrize("side", TRL_SIDES)
def test_processes_of_trl_share_batch_and_cores(side: str) -> None:
    job, one = spec_of("Synchronous"), TRL_SIDES[side]
    settings = task_of(job, Path("model"), one, 2)["settings"]
    assert settings["per_device_train_batch_size"] * one.num_processes == 32 * 8
    assert settings["per_device_eval_batch_size"] * one.num_processes == 64 * 4
    threads = int(one.environment(Path("/root"), {}, num_cores=4)["OMP_NUM_THREADS"])
    assert threads * one.num_processes == (1 if "one thread" in side else 4)


def test_trl_gets_the_prompts_that_a_synchronous_job_trains_on_in_that_order() -> None:
    job = spec_of("Synchronous")
    task = task_of(job, Path("model"), TRL_SIDES["TRL"], 2)
    prompts = builtin_prompt_sets(job.data, job.algorithm.seed, build_tokenizer())
    draws = prompts.draws(job.algorithm.seed).take(4 * 32)
    assert task["train"] == [
        {"prompt": one.prompt, "answer": one.answer} for one in (prompts.train[d.index] for d in draws)
    ]
    assert task["held_out"] == [{"prompt": one.prompt, "answer": one.answer} for one in prompts.held_out]
    assert task["learning_rates"] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])


def test_every_step_of_a_job_is_measured_and_every_prompt_trained(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model", seed=0)
    fake: dict[str, Any] = {
        "algorithm": {"steps": 5, "promptsPerStep": 8, "responsesPerPrompt": 4, "maxResponseTokens": 60},
        "data": {"heldOutPrompts": 4},
        "rollout": {"engine": {"backend": "Fake", "extraArgs": {"median_tokens": 10, "step_s": 0.001}}},
        "trainer": {"backend": "Fake"},
    }
    result = tmp_path / "result.json"
    arguments = [str(tmp_path / "model"), "2", str(result)]
    job = spec_of("TailBatching", **fake)
    assert run_in_coordinator("benchmarks.timed_job", arguments, job, run_module=WarmProgram) == 0
    found = json.loads(result.read_text())
    steps, evaluations = found["steps"], found["evaluations"]
    assert [one["step"] for one in evaluations] == [0, 2, 4]
    assert len(steps) == 5
    for step in steps:
        assert step["step_s"] >= step["rollout_s"] + step["train_s"] + step["publish_s"]
        assert step["cpu_s"] > 0
        assert 8 * 4 <= step["tokens"] <= 8 * 4 * step["max_tokens"]
    assert found["whole_s"] > sum(step["step_s"] for step in steps)
    assert [step["is_long"] for step in steps] == [0, 0, 0, 0, 1]


def test_cpu_seconds_are_those_of_a_process_and_all_that_it_has_started() -> None:
    """Of children that have ended, and of a grandchild whose parent has ended before it."""
    ended = "import time\nwhile time.process_time() < 0.6: pass\n"  # The kernel tells it in ticks, rounded down.
    orphan = ended + "print(flush=True)\ninput()\n"
    middle = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {orphan!r}])"
    program = f"""
import os, subprocess, sys
from benchmarks.process_tree import cpu_s
from longshore_runtime.sandbox.linux import adopt_orphans
adopt_orphans()
before_s = cpu_s(os.getpid())
subprocess.run([sys.executable, "-c", {ended!r}], check=True)
ended_s = cpu_s(os.getpid())
with subprocess.Popen([sys.executable, "-c", {middle!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
    started.stdout.readline()
    orphan_s = cpu_s(os.getpid())
assert ended_s - before_s >= 0.5, "of an ended child"
assert orphan_s - ended_s >= 0.5, "of an orphan"
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": str(trl.ROOT)})


def run(side: str, seed: int, *steps: tuple[float, int, int]) -> dict[str, Any]:
    """`steps`: seconds, tokens, longest response; CPU seconds are twice the seconds."""
    rows = [{"step_s": s, "cpu_s": 2 * s, "tokens": tokens, "max_tokens": longest} for s, tokens, longest in steps]
    evaluations = [{"step": 0, "reward": 0.5 + seed / 10}, {"step": 2, "reward": 0.9}]
    return {"side": side, "seed": seed, "evaluations": evaluations, "steps": rows, **trl.totals(rows)}


def test_ratios_pair_runs_of_a_seed_with_and_without_steps_that_reach_the_limit() -> None:
    runs = [
        run("Synchronous", 1, (1.0, 1000, 100), (3.0, 3000, 400)),
        run("TRL", 0, (6.0, 500, 400), (2.0, 500, 30)),
        run("TRL", 1, (8.0, 2000, 400), (8.0, 2000, 400)),
        run("Synchronous", 0, (1.0, 500, 40), (1.0, 500, 400)),
    ]
    found = trl.ratios(runs)
    assert found["TRL/Synchronous/step_s"] == [4.0, 4.0]
    assert found["TRL/Synchronous/cpu_ms_per_token"] == [4.0, 4.0]
    assert found["TRL/Synchronous/without_limit/step_s"] == [2.0], "seed 1 has no step of TRL below the limit"
    assert not any(name.startswith("TRL, vLLM") for name in found), "it was not run"
    assert trl.held_out(runs)["TRL"]["0"] == {"mean": 0.55, "sd": 0.071}


def test_without_its_environment_the_benchmark_names_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["trl"])
    monkeypatch.setattr(trl, "TRL_PYTHON", tmp_path / "python")
    assert trl.main() == 2
    assert capsys.readouterr().err == "trl: TRL is not installed: run `make bench NAME=trl`, which installs it\n"


def test_steps_are_whole_periods_of_tail_batching(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["trl", "--steps", "12"])
    with pytest.raises(SystemExit):
        trl.main()
    assert "--steps must be a multiple of 5" in capsys.readouterr().err

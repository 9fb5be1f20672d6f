"""What `longshore simulate` refuses: one sentence that names field, or line and column; exit code 2."""

from pathlib import Path

import pytest

from tests.unit.cli.simulated import Json, manifest, refusal, run

MODEL = ("--model", "Qwen2.5-7B")


def test_a_path_says_nothing_of_the_size_of_a_model(tmp_path: Path) -> None:
    message = refusal(manifest(tmp_path))
    assert "names a path (models/qwen) but no size of the model" in message
    other = manifest(tmp_path, model={"hub": "acme/own-7B", "maxContextTokens": 2048})
    assert "names a repository (acme/own-7B) but no size of the model" in refusal(other)
    assert "--model Qwen2.5-7B" in message


@pytest.mark.parametrize("source", [{"hub": "Qwen/Qwen2.5-7B"}, {"path": "models/Qwen2.5-7B-Instruct"}])
def test_a_repository_or_path_of_a_known_model_says_its_size(tmp_path: Path, source: Json) -> None:
    job = manifest(tmp_path, model={**source, "maxContextTokens": 2048}, data={"hub": "openai/gsm8k"})
    found = run(job, "--steps", "1", "--strategies", "Synchronous")
    assert found.exit_code == 0
    assert found.stdout.startswith("small: Qwen2.5-7B on")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm__steps": "ten"}, 'spec.algorithm.steps: input should be a valid integer, not "ten"'),
        ({"algorithm__steps": "10"}, 'spec.algorithm.steps: input should be a valid integer, not "10"'),
        ({"algorithm__steps": 0}, "spec.algorithm.steps: input should be greater than or equal to 1, not 0"),
        ({"rollout__strategy": "Tail"}, "spec.rollout.strategy: input should be 'Synchronous', 'TailBatching'"),
        ({"rollout__speed": 1}, "spec.rollout.speed: there is no such field"),
        ({"algorithm": {"steps": 1}}, "spec.algorithm.promptsPerStep: the field is required (and 2 more)"),
        ({"algorithm__promptsPerUpdate": 3}, "spec.algorithm.promptsPerUpdate: promptsPerUpdate must divide"),
        ({"rollout__strategy": "PartialRollout"}, "spec.rollout.onPolicy: onPolicy must be Relaxed with strategy"),
        ({"rollout__engine": {"tensorParallelSize": 3}}, "spec.rollout.engine.tensorParallelSize: tensorParallel"),
        ({"rollout__engine": {"kvCache": "much"}}, "spec.rollout.engine.kvCache: a quantity is a number"),
        ({"rollout__engine": {"kvCache": "10Mi"}},
         "rollout.engine: a KV cache of 182 tokens is below model.maxContextTokens, 2,048, so no engine starts; "
         "raise kvCache"),
        ({"rollout__engine": {"gpuMemoryUtilization": 0.241}},
         "is below model.maxContextTokens, 2,048, so no engine starts; raise gpuMemoryUtilization or tensorParallel"),
        ({"rollout__engine": {"tensorParallelSize": 8}, "workers__gpusPerPod": 8},
         "rollout.engine.tensorParallelSize: engines of 8 GPUs cannot divide the attention heads of Qwen2.5-7B (28); "
         "set 1, 2 or 4"),
        ({"trainer": {"dataParallelSize": 5}}, "spec.trainer.dataParallelSize: dataParallelSize exceeds"),
    ],
)  # fmt: skip
def test_a_manifest_that_the_api_server_would_refuse_names_its_field(
    tmp_path: Path, changes: Json, sentence: str
) -> None:
    assert sentence in refusal(manifest(tmp_path, **changes), *MODEL)


@pytest.mark.parametrize("options", [(), ("--search",)])
def test_engines_that_would_not_start_are_refused_whatever_is_asked(tmp_path: Path, options: tuple[str, ...]) -> None:
    # Long enough for nearly all responses, so that only some simulations would meet one that does not fit.
    small = manifest(tmp_path, rollout__engine={"kvCache": "65Mi"})
    assert "raise kvCache" in refusal(small, *MODEL, *options)


def test_a_model_that_does_not_fit_its_gpus_names_the_field(tmp_path: Path) -> None:
    assert "rollout.engine.gpuMemoryUtilization" in refusal(manifest(tmp_path), "--model", "70B")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is no YAML"),
        ("", "is empty"),
        ("- 1\n", "no Kubernetes object"),
        ("kind: RLJob\n", "no Kubernetes object"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "holds 0 RLJobs; exactly one is simulated"),
        ("apiVersion: longshore.dev/v1alpha1\nkind: RLJob\nmetadata: {name: x}\n", "spec: the field is required"),
        ("apiVersion: longshore.dev/v2\nkind: RLJob\nmetadata: {name: x}\nspec: {}\n", "apiVersion"),
    ],
)
def test_a_file_without_a_usable_job_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert sentence in refusal(path, *MODEL)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "binary.yaml cannot be read" in refusal(binary, *MODEL)
    assert "There is no file" in refusal(tmp_path / "none.yaml", *MODEL)
    assert "There is no file" in refusal(manifest(tmp_path), *MODEL, "--lengths", tmp_path / "none.csv")
    assert "nothing to simulate" in refusal()


def test_a_trace_is_refused_at_line_and_column(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt,num_tokens\na,5\na,-5\n")
    message = refusal(manifest(tmp_path), *MODEL, "--lengths", trace)
    assert "trace.csv, line 3, column num_tokens: input should be greater than or equal to 1, not -5\n" in message
    other = tmp_path / "trace.parquet"
    other.touch()
    assert "neither a .csv nor a .jsonl file" in refusal(manifest(tmp_path), *MODEL, "--lengths", other)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("publishSeconds: -1\n", "publishSeconds: input should be greater than or equal to 0, not -1"),
        ("publishTime: 1\n", "publishTime: there is no such field"),
        ("decode: [{tpSize: 1}]\n", "decode.0.numRunning: the field is required"),
        ("[", "is no YAML"),
        ("7\n", "profile.yaml: input should be an object, not 7"),
    ],
)
def test_a_profile_that_cannot_be_used_names_its_field(tmp_path: Path, text: str, sentence: str) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(text)
    assert sentence in refusal(manifest(tmp_path), *MODEL, "--profile", profile)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--strategies", "Fast"), "--strategies: 'Fast' is not known; choose from Synchronous, TailBatching"),
        (("--strategies", "TailBatching,"), "--strategies: something is missing between the commas"),
        (("--gpu-type", "H1000"), "--gpu-type: GPU H1000 is not known; choose one of A100-40, A100-80, B200"),
        (("--model", "GPT"), "--model: model GPT is not known; choose one of Qwen2.5-14B"),
        (("--model", "inf"), "--model: model inf is not known; choose one of Qwen2.5-14B"),
        (("--model", "0B"), "--model: model 0B is not known; choose one of Qwen2.5-14B"),
        (("--gpus", "3"), "--gpus: 3 GPUs do not fill pods of 2 (workers.gpusPerPod)"),
        (("--gpus", "4,x"), "--gpus: 'x' is no number of GPUs"),
        (("--gpus", "0"), "--gpus: '0' is no number of GPUs"),
        (("--gpus", "99998"), "--gpus: 99998: workers.replicas: input should be less than or equal to 4096"),
        (("--timeline", "picture.pdf"), "--timeline: picture.pdf ends neither in .svg nor in .png"),
        (("--timeline", "/none/picture.svg"), "--timeline: there is no directory /none"),
        (("--steps", "0"), "Error"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal(manifest(tmp_path), *MODEL, *options)

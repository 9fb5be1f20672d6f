"""`longshore profile`, as far as no cluster is needed: the job that measures, what is shown, what is refused."""

from pathlib import Path

import pytest
import yaml
from rich.console import Console

from longshore.api.names import MAX_JOB_NAME_LENGTH
from longshore.api.rljob import RLJob
from longshore.sim.profile import JudgePoint
from longshore_cli import profile as profiling
from longshore_cli.errors import CliError
from longshore_cli.profile import ProfilePlan, profiling_job, profiling_name
from longshore_client.errors import ClientError
from longshore_client.kube import Kube
from longshore_kube.access import Access
from longshore_kube.blocking import Blocking
from longshore_kube.resources import Json
from tests.unit.cli.simulated import manifest, refusal, simulated
from tests.unit.sim.measured import profile, subject

NO_CLUSTER = Kube(Blocking(Access("http://nowhere.invalid"), "test"), "default")
QWEN = subject(model="models/qwen")


def given(directory: Path, **changes: object) -> Json:
    """The small job, as its file says it."""
    document: Json = yaml.safe_load(manifest(directory, **changes).read_text())
    return document


def test_the_job_that_measures_differs_in_name_output_and_purpose_only(tmp_path: Path) -> None:
    job = given(tmp_path, storage={"claimName": "data", "output": "runs/1"}, suspend=True, ttlSecondsAfterFinished=1)
    measuring = profiling_job(job, shares_claim=False)
    assert measuring["metadata"]["name"] == "small-profile"
    assert measuring["spec"] == {
        **given(tmp_path)["spec"],
        "storage": {"claimName": "data"},
        "suspend": False,
        "profiling": "Only",
    }
    RLJob.model_validate(measuring)


def test_a_claim_that_the_operator_made_for_the_job_is_shared_where_there_is_one(tmp_path: Path) -> None:
    job = given(tmp_path, storage={"create": {"size": "1Gi"}})
    assert profiling_job(job, shares_claim=True)["spec"]["storage"] == {"claimName": "small-storage"}
    assert profiling_job(job, shares_claim=False)["spec"]["storage"] == {"create": {"size": "1Gi"}}


@pytest.mark.parametrize("name", ["a", "a" * MAX_JOB_NAME_LENGTH, "a" * 36 + "-" + "b" * 8])
def test_its_name_is_never_too_long(name: str) -> None:
    found = profiling_name(name)
    assert len(found) <= MAX_JOB_NAME_LENGTH
    assert found.endswith("-profile")
    assert "--" not in found


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    out.write_text("{}")
    with pytest.raises(CliError, match=r"profile\.json exists already"):
        profiling.run(NO_CLUSTER, ProfilePlan(manifest(tmp_path), out), Console())


def test_a_manifest_without_a_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    with pytest.raises(ClientError, match="holds 0 RLJobs; exactly one is profiled"):
        profiling.run(NO_CLUSTER, ProfilePlan(path, tmp_path / "out.json"), Console())


def test_every_figure_is_shown_with_the_number_of_its_measurements() -> None:
    judge = JudgePoint(function="taste", question_tokens=1024, seconds=0.5, peak_bytes=6 * 10**9, measurements=3)
    console = Console(width=100, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    profiling.show(profile(1, 4, judge=[judge], train_tokens_per_s=5_200.0), console)
    shown = console.export_text()
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "requests TP 1, short TP 1, long TP 4, short TP 4, long" in lines
    assert "64 10.77 at 100 15.76 at 4,000 4.69 at 100 6.86 at 4,000" in lines
    assert "prefill, TP 4, prompts of 2,048 tokens 120,000 tokens/s 3" in lines
    assert "forward and backward, per trainer GPU 5,200 tokens/s" in lines
    assert "publication of weights 2.0s 4" in lines
    assert "judge taste, questions of 1,024 tokens 500.0 ms, 6.0 GB 3" in lines
    assert "optimizer step" not in shown, "it was not measured"


# With `longshore simulate` ------------------------------------------------------------------------------------------


def saved(directory: Path, **changes: object) -> Path:
    """A profile of the model of the small job."""
    path = directory / "profile.json"
    path.write_text(profile(1, 2, **{"subject": QWEN, **changes}).model_dump_json(by_alias=True, exclude_none=True))
    return path


def test_a_profile_gives_the_simulator_model_and_gpu(tmp_path: Path) -> None:
    from tests.unit.cli.simulated import run

    result = run(manifest(tmp_path), "--profile", saved(tmp_path), "--steps", "2")
    assert result.exit_code == 0, result.output
    assert "small: models/qwen on 4 x H100" in result.stdout
    assert "for want of --gpu-type" not in result.stdout


def test_a_size_in_round_figures_is_the_same_model(tmp_path: Path) -> None:
    simulated(manifest(tmp_path), "--profile", saved(tmp_path), "--steps", "2")


@pytest.mark.parametrize(
    ("measured", "options", "sentence"),
    [
        (subject(model="models/other"), (), "is of the model models/other, but the manifest names models/qwen."),
        (QWEN, ("--model", "13B"), "is of a model of 7.62B parameters, but --model names one of 13B."),
        (QWEN, ("--gpu-type", "H20"), "is of NVIDIA H100 80GB HBM3, but --gpu-type names H20."),
    ],
    ids=["model", "size", "gpu"],
)
def test_a_profile_of_something_else_is_refused_and_both_are_named(
    tmp_path: Path, measured: object, options: tuple[str, ...], sentence: str
) -> None:
    message = refusal(manifest(tmp_path), "--profile", saved(tmp_path, subject=measured), *options)
    assert sentence in message
    assert "longshore profile" in message

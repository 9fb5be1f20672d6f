"""`submit --with`: what becomes of a manifest and the files beside it."""

from pathlib import Path
from typing import Any

import pytest

from longshore.api.rljob import RLJob
from longshore.api.spec import Modules
from longshore_client.errors import ClientError
from longshore_client.modules import read_modules, with_modules

FILES = {"mine.py": b"def score(p, r, a): return 1.0\n"}
JOB: dict[str, Any] = {
    "apiVersion": "longshore.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "demo", "namespace": "team"},
    "spec": {
        "model": {"hub": "Qwen/Qwen2.5-1.5B"},
        "data": {"hub": "openai/gsm8k", "config": "main"},
        "algorithm": {"steps": 1, "promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "reward": {"functions": [{"name": "mine", "kind": "Python", "importPath": "mine:score"}]},
        "storage": {"claimName": "shared"},
    },
}
CLAIM: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}}


def with_objective(import_path: str) -> dict[str, Any]:
    """A job without reward functions of its own, and with an objective of its own."""
    algorithm = JOB["spec"]["algorithm"] | {"objective": {"name": "Custom", "importPath": import_path}}
    reward = {"functions": [{"name": "maths", "kind": "Maths"}]}
    return JOB | {"spec": JOB["spec"] | {"algorithm": algorithm, "reward": reward}}


def test_the_files_of_an_objective_alone_are_used() -> None:
    (job,), _ = with_modules([with_objective("mine:score")], FILES)
    assert job["spec"]["modules"]["files"] == ["mine.py"]


def test_the_job_names_a_config_map_with_the_files() -> None:
    (claim, job), config_map = with_modules([CLAIM, JOB], FILES)
    assert claim == CLAIM
    modules = RLJob.model_validate(job).spec.modules
    assert modules == Modules(config_map=config_map["metadata"]["name"], files=["mine.py"])
    assert config_map["data"] == {"mine.py": "def score(p, r, a): return 1.0\n"}
    assert config_map["metadata"]["namespace"] == "team"
    assert "modules" not in JOB["spec"], "the manifest stays as it is"


def test_other_files_are_another_config_map_so_that_a_running_job_keeps_its_own() -> None:
    def name(**files: bytes) -> str:
        contents = {f"{module}.py": content for module, content in files.items()}
        return str(with_modules([JOB], contents)[1]["metadata"]["name"])

    mine = FILES["mine.py"]
    names = [name(mine=mine), name(mine=mine + b"#"), name(mine=mine, a=b""), name(mine=mine, b=b"")]
    assert len(set(names)) == len(names)
    assert name(mine=mine) == names[0]
    assert all(len(one) <= 253 and one.startswith("demo-modules-") for one in names)


@pytest.mark.parametrize(
    ("documents", "files", "expected"),
    [
        ([CLAIM], FILES, "Python files belong to one RLJob, and this file has 0."),
        ([JOB, JOB], FILES, "Python files belong to one RLJob, and this file has 2."),
        ([JOB], {"mine.py": b"def score("}, "Python files: mine.py, line 1: not valid Python"),
        ([JOB | {"spec": {**JOB["spec"], "modules": {"configMap": "a", "files": ["a.py"]}}}], FILES,
         "spec.modules is set in the file."),
        ([with_objective("mine:loss")], FILES,
         "Python files: algorithm.objective.importPath: mine.py defines no 'loss'; it has score."),
        ([JOB | {"spec": {}}], FILES, "spec.model: the field is required"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_reported_before_anything_is_applied(
    documents: list[Any], files: dict[str, bytes], expected: str
) -> None:
    with pytest.raises(ClientError) as caught:
        with_modules(documents, files)
    assert caught.value.message.startswith(expected)


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "mine.py").write_bytes(b"x = 1")
    assert read_modules([tmp_path / "a" / "mine.py"]) == {"mine.py": b"x = 1"}
    with pytest.raises(ClientError, match=r"Two files are called mine\.py"):
        read_modules([tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"])
    with pytest.raises(ClientError, match="There is no file"):
        read_modules([tmp_path / "a"])

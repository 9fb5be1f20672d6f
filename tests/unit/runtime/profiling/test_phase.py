"""Which profile a job may use, and what of its model and machine identifies one."""

import re
from pathlib import Path
from typing import Any

import pytest

from longshore.api.spec import Profiling, RLJobSpec
from longshore.sim.profile import Profile, ProfileMismatch
from longshore_runtime.profiling import phase
from longshore_runtime.profiling.subject import model_fingerprint, setup_fingerprint, shape_of
from tests.unit.sim.measured import profile, spec, subject

CONFIG = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}


class Notices(list[tuple[str, str]]):
    """What people are shown."""

    def notice(self, reason: str, message: str) -> None:
        self.append((reason, message))


def test_the_profile_of_an_earlier_attempt_is_used(tmp_path: Path) -> None:
    path, notices = tmp_path / phase.FILE, Notices()
    phase.write(path, profile(1))
    assert phase.read_fitting(path, subject(), notices.notice) == profile(1)
    assert not notices
    assert [one.name for one in tmp_path.iterdir()] == [phase.FILE]


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        (
            profile(1, subject=subject(model="models/b", model_fingerprint="bb")),
            "is of model models/b .* has model models/a",
        ),
        (profile(1, subject=subject(gpu="NVIDIA L4")), "on NVIDIA L4 and the job has .* on NVIDIA H100"),
        (profile(1, subject=subject(setup="t")), "options for engines, trainers or pods have changed"),
        (profile(1, subject=None), "does not say what it was measured with"),
    ],
    ids=["model", "gpu", "options", "unknown"],
)
def test_another_profile_is_refused_and_the_job_measures_again(
    tmp_path: Path, measured: Profile, sentence: str
) -> None:
    with pytest.raises(ProfileMismatch, match=sentence):
        phase.require_fit(measured, subject())
    path = tmp_path / phase.FILE
    phase.write(path, measured)
    notices = Notices()
    assert phase.read_fitting(path, subject(), notices.notice) is None
    ((reason, message),) = notices
    assert reason == "ProfileMismatch"
    assert re.search(f"^profile.json is measured again: .*{sentence}", message)


@pytest.mark.parametrize("text", ["", "{", '{"publishSeconds": -1}'])
def test_a_file_that_is_no_profile_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / phase.FILE
    path.write_text(text)
    notices = Notices()
    assert phase.read_fitting(path, subject(), notices.notice) is None
    assert [reason for reason, _ in notices] == ["ProfileMismatch"]


def test_the_same_model_saved_by_another_program_has_the_same_fingerprint() -> None:
    saved = {**CONFIG, "transformers_version": "5.0", "_name_or_path": "/models/a"}
    assert model_fingerprint(CONFIG) == model_fingerprint(saved)
    assert model_fingerprint(CONFIG) != model_fingerprint({**CONFIG, "num_hidden_layers": 3})


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({"rollout": {"engine": {"gpuMemoryUtilization": 0.8}}}, True),
        ({"trainer": {"maxTokensPerMicroBatch": 1}}, True),
        ({"workers": {"replicas": 3, "gpusPerPod": 4}}, True),
        ({"algorithm": {"steps": 11, "promptsPerStep": 8, "responsesPerPrompt": 2, "maxResponseTokens": 9}}, False),
        ({"rollout": {"strategy": "Synchronous"}}, False),
    ],
)
def test_options_of_engines_trainers_and_pods_make_another_setup(changes: dict[str, Any], is_other: bool) -> None:
    changed = RLJobSpec.model_validate({**spec().model_dump(by_alias=True), **changes})
    assert (setup_fingerprint(changed) != setup_fingerprint(spec())) is is_other


def test_an_elastic_job_keeps_its_profile_when_its_size_changes() -> None:
    workers = {"workers": {"replicas": 3, "minReplicas": 1, "gpusPerPod": 4}}
    elastic = RLJobSpec.model_validate({**spec().model_dump(by_alias=True), **workers})
    assert len({setup_fingerprint(elastic.resized(num_workers)) for num_workers in (1, 2, 3)}) == 1


def test_sizes_of_a_model_come_from_its_configuration() -> None:
    shape = shape_of({**CONFIG, "num_key_value_heads": 2}, 17, value_bytes=2)
    assert shape.num_parameters == 17
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert shape_of(CONFIG, 1, 2).kv_bytes_per_token == 2 * shape.kv_bytes_per_token, "as many as there are heads"


def test_other_sizes_are_measured_if_engines_may_take_them_or_nothing_else_is_done() -> None:
    def sizes(job: RLJobSpec) -> list[int]:
        return list(phase.scope_of(job, CONFIG, (1, 2, 4)).other_tp_sizes)

    assert sizes(spec()) == []
    assert sizes(spec(engine={"parallelism": "Adaptive"})) == [2, 4]
    assert sizes(spec().model_copy(update={"profiling": Profiling.ONLY})) == [2, 4]

"""Measured costs: what they hold for, and how figures between the measured ones come about."""

import pytest

from longshore.sim.hardware import GPUS, gpu_described
from longshore.sim.profile import PrefillPoint, Profile, ProfileMismatch
from tests.unit.sim.measured import subject


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_gpu_is_known_by_the_name_that_its_driver_gives(name: str, known: str) -> None:
    assert gpu_described(name) == GPUS[known]


@pytest.mark.parametrize("name", ["CPU", "NVIDIA A100", "NVIDIA L4"])
def test_of_another_one_nothing_but_its_name_is_known(name: str) -> None:
    found = gpu_described(name)
    assert found.name == name
    assert found not in GPUS.values()


def test_a_profile_of_the_same_model_and_gpu_fits() -> None:
    subject().require(subject(setup="other", versions={"vllm": "9"}))


@pytest.mark.parametrize(
    "other", [subject(model="models/b", model_fingerprint="bb"), subject(gpu="NVIDIA L4")], ids=["model", "gpu"]
)
def test_a_profile_of_another_model_or_gpu_is_refused_in_a_sentence_that_names_both(other: object) -> None:
    with pytest.raises(ProfileMismatch) as refused:
        subject().require(other)  # type: ignore[arg-type]
    sentence = str(refused.value)
    assert "the profile is of model models/a (configuration aa) on NVIDIA H100 80GB HBM3" in sentence
    assert f"the job has model {other.model}" in sentence  # type: ignore[attr-defined]
    assert f"on {other.gpu}" in sentence  # type: ignore[attr-defined]
    assert "\n" not in sentence


def test_prefill_has_its_measured_rate_and_at_other_sizes_that_of_their_gpus() -> None:
    points = [
        PrefillPoint(tp_size=2, prompt_tokens=tokens, tokens_per_s=rate) for tokens, rate in ((256, 300), (2048, 600))
    ]
    profile = Profile(prefill=points, prefill_tokens_per_s=7)
    assert profile.prefill_of_engine(2) == pytest.approx(400), "as many tokens of either length"
    assert profile.prefill_of_engine(4) == pytest.approx(800)
    assert Profile(prefill_tokens_per_s=7).prefill_of_engine(4) == 28
    assert Profile().prefill_of_engine(1) is None

"""Models that ranks read in shards are those that one rank reads as a whole, and are refused for the same reasons."""

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from longshore.checks import pod_memory
from longshore_runtime.backends.hf_mapping import files as hf_files
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.world import World
from tests.contract.trainers.ranks import Ranks, kept_ranks
from tests.contract.trainers.replicas import OPTIONS, make_samples, own_part, without_kl
from tests.contract.trainers.test_packing import PACKED, ROWS
from tests.contract.trainers.test_torch_sharding import HALVES, QUARTERS, WHOLE, moments_of, train
from tests.contract.trainers.tiny_models import FAMILIES, GEMMA, MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SAMPLES = make_samples(seed=0)
M_MMAP_THRESHOLD = -3
"""Number of an option of glibc."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def opened(world: World, directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], bool, list[float]]:
    """Whole parameters, buffers, whether sequences are packed, and log-probabilities of this rank's samples."""
    trainer = TorchTrainer(directory, without_kl(), world, HALVES if world.size == 2 else WHOLE)
    module = trainer._model.module
    parameters = {name: trainer._replica.whole(one).clone() for name, one in module.named_parameters()}
    found = trainer.log_probs(SAMPLES)
    log_probs = [value for place in sorted(found) for value in found[place]]
    return parameters, dict(module.named_buffers()), trainer._model._packs, log_probs


def assert_same_model(directory: Path) -> None:
    parameters, buffers, packs, log_probs = opened(World(), directory)
    for own_parameters, own_buffers, own_packs, own_log_probs in kept_ranks(2).run(opened, directory):
        assert own_packs == packs
        for own, expected in ((own_parameters, parameters), (own_buffers, buffers)):
            assert own.keys() == expected.keys()
            assert all(torch.equal(own[name], values) for name, values in expected.items())
        assert own_log_probs == pytest.approx(log_probs, abs=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, *GEMMA, *MIXTURES], ids=str)
def test_shards_and_buffers_are_those_of_the_whole_model(family: Family, tmp_path: Path) -> None:
    assert_same_model(build(tmp_path, family))


@pytest.mark.parametrize("config", [*PACKED.values(), *ROWS.values()], ids=[*PACKED, *ROWS])
def test_ranks_agree_whether_sequences_can_be_packed(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert_same_model(tmp_path)


@pytest.mark.parametrize("family", [Family("qwen2", tied=True), *MIXTURES], ids=str)
def test_ranks_without_rows_of_a_tensor_restore_every_bit(family: Family, tmp_path: Path) -> None:
    """Four ranks share three experts."""
    model = build(tmp_path / "model", family)
    kept_ranks(4).run(train, model, QUARTERS, None, tmp_path / "first", [SAMPLES])
    train(World(), model, WHOLE, tmp_path / "first", tmp_path / "whole", [])
    kept_ranks(4).run(train, model, QUARTERS, tmp_path / "whole", tmp_path / "again", [])
    expected = load_file(tmp_path / "first" / "model.safetensors") | moments_of(tmp_path / "first")
    for name in ("whole", "again"):
        restored = load_file(tmp_path / name / "model.safetensors") | moments_of(tmp_path / name)
        assert expected.keys() == restored.keys()
        assert all(torch.equal(expected[name], restored[name]) for name in expected)


def peak_bytes(action: Callable[[], object]) -> int:
    """Most memory that this process takes while it acts, beyond what it takes before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from here on.
    before = memory_bytes("VmRSS")
    action()
    return memory_bytes("VmHWM") - before


def memory_bytes(field: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


def peaks(world: World, directory: Path, saved: Path) -> tuple[int, int, int]:
    """Peaks while a rank loads a model, saves it with moments, and loads that."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)  # Freed tensors go back to the system, also small ones.
    trainers: list[Any] = []
    loads = peak_bytes(lambda: trainers.append(TorchTrainer(directory, without_kl(), world, HALVES)))
    (trainer,) = trainers
    trainer.accumulate(own_part(SAMPLES, world, HALVES))
    trainer.update(100.0)
    hf_files.WEIGHT_FILE_BYTES = 10_000_000  # type: ignore[misc]
    pod_memory._LEAST_FILE_BYTES = 10_000_000  # type: ignore[misc]
    saves = peak_bytes(lambda: trainer.begin_save(saved)())
    trainer._optimizer.state.clear()
    torch.distributed.barrier()
    return loads, saves, peak_bytes(lambda: trainer.load(saved))


def test_a_rank_needs_memory_for_its_shards_and_few_tensors(tmp_path: Path) -> None:
    """A rank of two has half of the weights, and as much of each moment."""
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 14, "head_dim": 64}
    model = build(tmp_path / "model", Family("qwen3", tied=True), **shape)
    size = (model / "model.safetensors").stat().st_size
    small = build(tmp_path / "small", Family("qwen3", tied=True))
    ranks = Ranks(2)
    try:
        ranks.run(peaks, small, tmp_path / "first")  # Later calls need no memory for modules.
        for loads, saves, restores in ranks.run(peaks, model, tmp_path / "saved"):
            assert 0.5 * size < loads < 0.75 * size
            assert saves < 0.25 * size
            assert restores < 1.25 * size
    finally:
        ranks.stop()
    assert len(list((tmp_path / "saved").glob("model-*-of-*.safetensors"))) > 10
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")


def refusal(world: World, directory: Path) -> str:
    """What a rank says of a model that it does not load, or nothing."""
    try:
        TorchTrainer(directory, OPTIONS, world, HALVES)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("family", "change", "sentence"),
    [
        (Family("qwen2", tied=False), lambda weights: weights.pop(HEAD), "its files lack 1 parameters, first 'lm_head"),
        (
            Family("qwen2", tied=True),
            lambda weights: weights.update({HEAD: 2 * weights[EMBEDDING]}),
            "set tie_word_embeddings to false",
        ),
        (Family("qwen2", tied=True), lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()}), "^$"),
        (MIXTURES[0], lambda weights: weights.update({"model.visual.patch": torch.zeros(2)}), "does not load, first"),
    ],
    ids=["no head", "two heads", "a copy of the embedding", "more tensors"],
)
def test_models_are_refused_for_the_same_reasons(
    family: Family, change: Callable[[dict[str, torch.Tensor]], Any], sentence: str, tmp_path: Path
) -> None:
    build(tmp_path, family)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert all(re.search(sentence, said) for said in kept_ranks(2).run(refusal, tmp_path))


def test_logits_that_are_bent_are_refused_by_all_ranks(tmp_path: Path) -> None:
    from transformers import Gemma2Config

    shape = PACKED["qwen3"].to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    config = Gemma2Config(**{name: shape[name] for name in names}, num_key_value_heads=2, final_logit_softcapping=0.01)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert all("linear map" in said for said in kept_ranks(2).run(refusal, tmp_path))

"""Mixtures of experts: engines and checkpoints get the tensors of the model's files, whatever transformers fuses."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from longshore.api.training import Recompute, TrainerDtype
from longshore_runtime.backends.devices import HOST
from longshore_runtime.backends.experts import choose_experts_function, expert_modules
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.pretrained import empty_pretrained
from longshore_runtime.backends.spread_experts import spread_mistake
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import TrainerOptions
from longshore_runtime.backends.world import World
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.plans import Named, apart, plain, plan, train_torch
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import LORA, OPTIONS, make_samples, own_part
from tests.contract.trainers.test_torch_sharding import HALVES, assert_same_step
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SAMPLES = make_samples(seed=0)
SPREAD, SPREAD_OVER_FOUR = (ParallelSizes(fsdp=size, spreads_experts=True) for size in (2, 4))
EIGHT_EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8)


@pytest.fixture(scope="module", params=MIXTURES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind."""
    family: Family = request.param
    return build(tmp_path_factory.mktemp(str(family)), family)


FIRST, *OTHERS = MIXTURES


@pytest.fixture(scope="module", params=[FIRST, *(pytest.param(one, marks=pytest.mark.soak) for one in OTHERS)], ids=str)
def model_of_eight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind with as many experts as ranks can share."""
    family: Family = request.param
    return build(tmp_path_factory.mktemp(str(family)), family, **EIGHT_EXPERTS)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of its files that belong to the model's own two layers."""
    found = {name: values for file in directory.glob("*.safetensors") for name, values in load_file(file).items()}
    return {name: values for name, values in found.items() if ".layers.2." not in name}


def tensors(arrays: Weights) -> dict[str, torch.Tensor]:
    """The same as tensors."""
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """The same names, and the same values bit by bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(values, other[name]) for name, values in one.items())


def test_weights_are_those_of_the_files_until_the_first_update(model: Path) -> None:
    published = tensors(dict(TorchTrainer(model, OPTIONS).weights()))
    assert_equal(published, weights(model))
    assert any(".experts.2." in name for name in published)


def test_log_probabilities_are_those_of_transformers(model: Path) -> None:
    trained = TorchTrainer(model, OPTIONS).log_probs(SAMPLES)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for index, sample in enumerate(SAMPLES):
        tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
        with torch.no_grad():
            logits = plain(tokens).logits[0, :-1] / OPTIONS.temperature
        expected = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[len(sample.prompt_tokens) - 1 :, 0]
        torch.testing.assert_close(torch.tensor(trained[index]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("double", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["fp64", "fp32"])
def test_gradients_are_those_of_transformers_with_one_expert_after_the_other(model: Path, double: bool) -> None:
    expected = plain(model)
    trained = train_torch(World(), model, plan(1, seed=1), double)
    assert apart(trained.gradients, expected.gradients) < (1e-10 if double else 2e-5)
    assert trained.norms == pytest.approx(expected.norms, rel=1e-10 if double else 1e-4)


def gradients(world: World, model: Path, options: TrainerOptions, implementation: str) -> Named:
    """What a replica of all ranks accumulates with experts computed in one way."""
    trainer = TorchTrainer(model, options, world, ParallelSizes(fsdp=world.size))
    assert trainer._model.module.get_experts_implementation()[""] == "grouped_mm"
    choose_experts_function(trainer._model.module, implementation)
    trainer.accumulate(own_part(SAMPLES, world, ParallelSizes(fsdp=world.size)))
    trainer._accumulation.collect()
    whole = [trainer._replica.whole(one.grad) for one in trainer._parameters if one.grad is not None]
    # As one, because those of half of an adapter are zero at first.
    return {"all": torch.cat([gradient.float().flatten() for gradient in whole]).cpu().numpy()}


@pytest.mark.parametrize(
    ("options", "num_ranks", "tolerance"),
    [
        (OPTIONS, 2, 2e-5),
        pytest.param(replace(OPTIONS, dtype=TrainerDtype.BFLOAT16), 1, 0.03, marks=pytest.mark.soak),
        (replace(OPTIONS, lora=LORA), 1, 2e-5),
        (replace(OPTIONS, recompute=Recompute.SELECTIVE), 1, 2e-5),
    ],
    ids=["shards", "bfloat16", "adapter", "recomputed"],
)
def test_experts_computed_at_once_have_the_gradients_of_one_after_the_other(
    options: TrainerOptions, num_ranks: int, tolerance: float, tmp_path: Path
) -> None:
    model = build(tmp_path, MIXTURES[0])
    ranks = kept_ranks(num_ranks)
    (found, *_), (expected, *_) = (ranks.run(gradients, model, options, one) for one in ("grouped_mm", "eager"))
    assert apart(found, expected) < tolerance


def test_experts_whose_sizes_have_no_kernel_are_computed_one_after_the_other(tmp_path: Path) -> None:
    model = build(tmp_path, MIXTURES[0], moe_intermediate_size=20)
    trainer = TorchTrainer(model, OPTIONS)
    assert trainer._model.module.get_experts_implementation()[""] == "eager"
    assert trainer.accumulate(SAMPLES).num_loss_tokens > 0


def test_ranks_that_share_the_experts_make_the_same_step(model: Path) -> None:
    assert_same_step(model, HALVES)


@pytest.mark.parametrize(
    ("sizes", "double"),
    [
        (SPREAD, True),
        pytest.param(SPREAD, False, marks=pytest.mark.soak),
        pytest.param(SPREAD_OVER_FOUR, True, marks=pytest.mark.soak),
    ],
    ids=["2 fp64", "2 fp32", "4 fp64"],
)
def test_ranks_that_send_tokens_to_the_experts_have_the_gradients_of_transformers(
    model_of_eight: Path, sizes: ParallelSizes, double: bool
) -> None:
    expected = plain(model_of_eight)
    for rank in kept_ranks(sizes.fsdp).run(train_torch, model_of_eight, plan(1, seed=1), double, sizes):
        assert apart(rank.gradients, expected.gradients) < (1e-10 if double else 2e-5)
        assert rank.norms == pytest.approx(expected.norms, rel=1e-10 if double else 1e-4)


@pytest.mark.parametrize(
    "options",
    [replace(OPTIONS, recompute=Recompute.SELECTIVE), replace(OPTIONS, lora=LORA, recompute=Recompute.FULL)],
    ids=["recomputed", "adapter"],
)
def test_ranks_without_samples_compute_tokens_of_others(options: TrainerOptions, tmp_path: Path) -> None:
    model = build(tmp_path, MIXTURES[0], **EIGHT_EXPERTS)
    assert_same_step(model, SPREAD, options=options, parts=[SAMPLES[:1], SAMPLES[1:]], naps=True)


def held(world: World, model: Path, sizes: ParallelSizes) -> tuple[int, int]:
    """Numbers of the experts of a layer that this rank has between passes, and within one."""
    trainer, within = TorchTrainer(model, OPTIONS, world, sizes), list[int]()
    _, experts = next(expert_modules(trainer._model.module))

    def count(module: Any, *_: object) -> int:
        return sum(getattr(one, "_local_tensor", one).numel() for one in module.parameters())

    experts.register_forward_pre_hook(lambda *given: within.append(count(*given)))
    between = count(experts)
    trainer.accumulate(own_part(SAMPLES, world, sizes))
    return between, max(within)


def test_experts_that_are_spread_are_never_put_together(tmp_path: Path) -> None:
    model = build(tmp_path, MIXTURES[0], **EIGHT_EXPERTS)
    spread, together = (kept_ranks(2).run(held, model, sizes)[0] for sizes in (SPREAD, HALVES))
    assert spread == (together[0], together[0]) and together[1] == 2 * together[0]


@pytest.mark.parametrize(
    ("family", "changes", "mistake"),
    [
        (MIXTURES[0], {}, r"trainer\.fsdpSize: 2 does not divide the model's 3 experts"),
        (Family("qwen3", tied=True), {}, r"trainer\.expertParallel: the model has no routed experts"),
        (MIXTURES[0], EIGHT_EXPERTS | {"moe_intermediate_size": 20}, r"trainer\.expertParallel: the sizes of the"),
    ],
    ids=["number", "dense", "sizes"],
)
def test_experts_that_cannot_be_spread_are_refused(
    family: Family, changes: dict[str, int], mistake: str, tmp_path: Path
) -> None:
    found = spread_mistake(empty_pretrained(build(tmp_path, family, **changes), torch.float32, HOST), 2)
    assert found is not None and re.match(mistake, found)


def refusal(world: World, model: Path, teacher: Path) -> str | None:
    """Why a replica does not train a model with a teacher."""
    try:
        TorchTrainer(model, OPTIONS, world, SPREAD, reference=teacher)
    except ValueError as error:
        return str(error)
    return None


def test_a_dense_teacher_teaches_a_mixture_whose_experts_are_spread(tmp_path: Path) -> None:
    mixture = build(tmp_path / "mixture", MIXTURES[0], **EIGHT_EXPERTS)
    dense = build(tmp_path / "dense", Family("qwen3", tied=True))
    assert kept_ranks(2).run(refusal, mixture, dense) == [None, None]
    assert all("no routed experts" in one for one in kept_ranks(2).run(refusal, dense, mixture))


def test_a_rank_to_which_no_token_comes_takes_part(tmp_path: Path) -> None:
    model = build(tmp_path, next(one for one in MIXTURES if one.kind == "glm4_moe"), **EIGHT_EXPERTS)
    file, first_half = model / "model.safetensors", torch.tensor([9.0] * 4 + [0.0] * 4)
    changed = {
        name: first_half if name.endswith("e_score_correction_bias") else values
        for name, values in load_file(file).items()
    }
    save_file(changed, file, metadata={"format": "pt"})
    expected = plain(model)
    fused = [one for name, one in expected.gradients.items() if name.endswith("experts.down_proj")]
    assert fused and not any(one[4:].any() for one in fused), "the second rank has nothing to compute"
    for rank in kept_ranks(2).run(train_torch, model, plan(1, seed=1), True, SPREAD):
        assert apart(rank.gradients, expected.gradients) < 1e-10


def test_a_checkpoint_has_the_names_of_the_files_and_restores_every_bit(model: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(model, OPTIONS)
    trainer.accumulate(SAMPLES)
    trainer.update(100.0)
    trainer.begin_save(tmp_path)()
    trained = tensors(dict(trainer.weights()))
    assert_equal(weights(tmp_path), trained)
    before = weights(model)
    assert all(not torch.equal(values, before[name]) for name, values in trained.items() if ".experts." in name)
    assert_equal(tensors(restored(World(), model, tmp_path)), trained)


def restored(world: World, model: Path, checkpoint: Path, sizes: ParallelSizes | None = None) -> Weights:
    """The weights of a trainer that goes on from a checkpoint."""
    trainer = TorchTrainer(model, OPTIONS, world, sizes)
    trainer.load(checkpoint)
    return dict(trainer.weights())


@pytest.mark.parametrize("sizes", [HALVES, SPREAD], ids=["sharded", "spread"])
def test_a_checkpoint_is_restored_by_ranks_that_share_the_experts(sizes: ParallelSizes, tmp_path: Path) -> None:
    model = build(tmp_path / "model", MIXTURES[0], **EIGHT_EXPERTS)
    trainer = TorchTrainer(model, OPTIONS)
    trainer.accumulate(SAMPLES)
    trainer.update(100.0)
    trainer.begin_save(tmp_path / "checkpoint")()
    first, _ = kept_ranks(2).run(restored, model, tmp_path / "checkpoint", sizes)
    assert_equal(tensors(first), tensors(dict(trainer.weights())))

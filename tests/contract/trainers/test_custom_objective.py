"""Objectives of users: what is refused before a job trains, and that one computes what the built-in ones do."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longshore.api.objectives.custom import Custom
from longshore_runtime.backends.losses import weighted_losses
from longshore_runtime.backends.objective_trial import objective_mistake
from longshore_runtime.errors import UserError
from tests.contract.trainers.replicas import options_of, without_kl

_PAGE = Path(__file__).parents[3] / "docs/how-to/write-an-objective.md"
CLIPPED = """
def loss(tokens, low, high):
    bounded = tokens.ratio.clamp(1 - low, 1 + high) * tokens.advantages
    gain = tokens.ratio * tokens.advantages
    return -gain.minimum(bounded), bounded < gain
"""


def written(directory: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Custom:
    """The objective at `loss` of a module with this source."""
    (directory / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(directory)
    return Custom(import_path=f"{name}:loss", settings=settings)


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("absent", "def other(tokens): ...", "cannot be imported (AttributeError"),
        ("broken", "import no_such_package", "cannot be imported (ModuleNotFoundError: No module named"),
        ("raises", "def loss(tokens):\n    return tokens.no_such_thing", "raises.py:2 in loss: return tokens.no_such"),
        ("number", "def loss(tokens):\n    return 1.5", "returns 1.5; return a tensor"),
        ("mean", "def loss(tokens):\n    return (tokens.ratio * tokens.advantages).mean()", "shape [] for [9] tokens"),
        ("detached", "def loss(tokens):\n    return tokens.advantages", "without a gradient"),
        ("infinite", "def loss(tokens):\n    return tokens.ratio / 0", "no finite numbers"),
        ("flags", "def loss(tokens):\n    return tokens.ratio, tokens.ratio", "something else than a bool"),
        ("coupled", "def loss(tokens):\n    return tokens.ratio - tokens.ratio.mean()", "from its own tokens"),
        ("arguments", "def loss(tokens, cap):\n    return tokens.ratio", "missing 1 required positional argument"),
    ],
)
def test_what_is_no_objective_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, expected: str
) -> None:
    mistake = objective_mistake(written(tmp_path, name, source, monkeypatch))
    assert mistake is not None and expected in mistake and "\n" not in mistake
    assert mistake.startswith(f"algorithm.objective.importPath: {name}:loss ")


def test_the_objective_of_the_how_to_page_can_be_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_losses.py").write_text("\n".join(line.removeprefix("   ") for line in source.splitlines()))
    monkeypatch.syspath_prepend(tmp_path)
    assert objective_mistake(Custom(import_path="my_losses:soft_gate", settings={"negative": 1.1})) is None


def test_an_own_clipped_loss_equals_the_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = written(tmp_path, "clipped", CLIPPED, monkeypatch, low=0.2, high=0.28)
    assert objective_mistake(own) is None
    generator = torch.Generator().manual_seed(0)
    rollout, advantages = (torch.randn(12, generator=generator, dtype=torch.float64) for _ in range(2))
    found = []
    for options in (options_of("GRPO", without_kl()), replace(without_kl(), objective=own)):
        log_probs = (rollout + 0.3 * advantages.sin()).requires_grad_()
        losses = weighted_losses(log_probs, rollout, advantages, None, [5, 0, 7], options)
        found.append((losses.total, losses.clipped, *torch.autograd.grad(losses.total.sum(), log_probs)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_an_exception_while_training_names_the_field_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = written(tmp_path, "late", "def loss(tokens):\n    return tokens.ratio[:0].max()", monkeypatch)
    values = torch.zeros(2)
    with pytest.raises(UserError, match=r"^algorithm\.objective\.importPath: late:loss raises [^>]* at late\.py:2 in"):
        weighted_losses(values, values, values, None, [2], replace(without_kl(), objective=late))


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate", "CUDA error: uncorrectable ECC error"])
def test_a_gpu_that_fails_in_the_function_is_no_mistake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """The trainers then lower what they compute at once, or start again elsewhere."""
    source = f"def loss(tokens):\n    raise RuntimeError({message!r})"
    failing = written(tmp_path, "failing", source, monkeypatch)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    values = torch.zeros(2)
    with pytest.raises(RuntimeError, match=message.split(".")[0]):
        weighted_losses(values, values, values, None, [2], replace(without_kl(), objective=failing))


def test_losses_that_would_be_broadcast_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def loss(tokens):\n    return tokens.ratio if len(tokens.ratio) == 9 else tokens.ratio[:, None]"
    sometimes = written(tmp_path, "sometimes", source, monkeypatch)
    values = torch.zeros(2)
    with pytest.raises(UserError, match=r"sometimes:loss returns a tensor of shape \[2, 1\] for \[2\] tokens"):
        weighted_losses(values, values, values, None, [2], replace(without_kl(), objective=sometimes))


def test_a_rank_without_tokens_takes_part_without_asking_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = written(tmp_path, "picky", "def loss(tokens):\n    return tokens.ratio * tokens.ratio.max()", monkeypatch)
    log_probs = torch.zeros(0, requires_grad=True)
    found = weighted_losses(log_probs, log_probs, log_probs, None, [0], replace(without_kl(), objective=picky))
    found.total.sum().backward()
    assert log_probs.grad is not None and not len(found.clipped)


def test_means_of_responses_carry_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a ratio of whole responses: every token of a response gets an equal part of the gradient."""
    source = "def loss(tokens):\n    return -tokens.mean_per_response(tokens.log_probs) * tokens.advantages"
    own = written(tmp_path, "means", source, monkeypatch)
    assert objective_mistake(own) is None
    log_probs = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -2.0])
    found = weighted_losses(
        log_probs, log_probs.detach(), advantages, None, [2, 1], replace(without_kl(), objective=own)
    )
    assert found.total.tolist() == [-2.0, -2.0, 10.0]
    assert torch.autograd.grad(found.total.sum(), log_probs)[0].tolist() == [-1.0, -1.0, 2.0]


@pytest.mark.parametrize("source", ["while True: pass", "def loss(tokens):\n    while True: pass"])
def test_a_function_that_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    name = f"hangs_{len(source)}"
    mistake = objective_mistake(written(tmp_path, name, source, monkeypatch), limit_s=0.2)
    assert (
        mistake == f"algorithm.objective.importPath: {name}:loss takes more than 0.2 s for a few tokens; make it faster"
    )

"""The losses, against numbers worked out by hand."""

import math

import pytest
import torch

from longshore_runtime.backends import losses
from longshore_runtime.backends.losses import grpo_token_losses, k3, token_log_probs


def policy_loss(ratio: float, advantage: float) -> tuple[float, float, float]:
    """(loss, whether clipped, gradient by the log-probability) of one token; clips are 0.2 and 0.28."""
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    result = grpo_token_losses(
        log_prob, torch.zeros(1), torch.tensor([advantage]), None, clip_low=0.2, clip_high=0.28, kl_coefficient=0.0
    )
    (gradient,) = torch.autograd.grad(result.total.sum(), log_prob)
    return result.policy.item(), result.clipped.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "gradient"),
    [
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.1, 2.0, -2.2, 0, -2.2),
        (1.5, 2.0, -2.56, 1, 0.0),
        (0.5, 2.0, -1.0, 0, -1.0),
        (0.5, -2.0, 1.6, 1, 0.0),
        (1.5, -2.0, 3.0, 0, 3.0),
        (0.9, -2.0, 1.8, 0, 1.8),
    ],
)
def test_the_ratio_is_clipped_only_where_it_already_moved_the_way_the_advantage_points(
    ratio: float, advantage: float, loss: float, clipped: int, gradient: float
) -> None:
    assert policy_loss(ratio, advantage) == pytest.approx((loss, clipped, gradient), rel=1e-5)


def test_k3_is_zero_at_equality_and_positive_elsewhere() -> None:
    values = k3(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -2.0, -0.5]))
    assert values.tolist() == pytest.approx([0.0, math.exp(-1) + 1 - 1, math.exp(0.5) - 0.5 - 1])


def test_k3_estimates_the_kl_divergence_without_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = (torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    expected = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * k3(policy, reference)).sum().item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_kl_penalty_is_added_with_its_weight() -> None:
    one = torch.tensor([-1.0])
    result = grpo_token_losses(
        one, one, torch.tensor([0.5]), torch.tensor([-2.0]), clip_low=0.2, clip_high=0.2, kl_coefficient=0.1
    )
    assert result.total.item() == pytest.approx(-0.5 + 0.1 * math.exp(-1))


def test_log_probs_and_gradients_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 30, bias=False)
    hidden, targets = torch.randn(25, 8, requires_grad=True), torch.randint(0, 30, (25,))

    def values_and_gradients() -> list[torch.Tensor]:
        log_probs, entropies = token_log_probs(hidden, head, targets, 0.7)
        return [log_probs, entropies, *torch.autograd.grad(log_probs.sum(), [hidden, head.weight])]

    whole = values_and_gradients()
    expected = torch.log_softmax(head(hidden) / 0.7, -1)
    assert torch.allclose(whole[0], expected[torch.arange(25), targets])
    assert torch.allclose(whole[1], -(expected.exp() * expected).sum(-1))
    monkeypatch.setattr(losses, "_TOKENS_PER_CHUNK", 4)
    for one, other in zip(whole, values_and_gradients(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)

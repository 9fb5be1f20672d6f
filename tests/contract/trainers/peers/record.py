"""Write what verl and TRL compute for a few random responses to `recorded.json`, in double precision.

Run it in an environment with both (`make peer-losses`): it imports nothing of Longshore.
"""

import ast
import inspect
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import trl.trainer.grpo_trainer
from torch import Tensor
from trl.experimental.gkd.gkd_trainer import GKDTrainer
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.config import AlgoConfig
from verl.trainer.distillation.fsdp.losses import compute_forward_kl_topk
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

RECORDED = Path(__file__).parent / "recorded.json"
Json = dict[str, Any]
NUM_PROMPTS, NUM_RESPONSES, MAX_TOKENS = 4, 3, 7
VOCABULARY, TOP_TOKENS = 9, 4
BETA, ENTROPY = 0.3, 0.05


def inputs() -> Json:
    """Draw responses whose ratios lie on both sides of every clip; the rewards of one group are all equal."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, MAX_TOKENS + 1, NUM_PROMPTS * NUM_RESPONSES)
    old = -rng.uniform(0.05, 2.5, lengths.sum())
    new = np.minimum(old + rng.normal(0, 0.35, len(old)), -0.01)
    parts = {"answer": rng.integers(0, 2, len(lengths)).astype(float), "format": rng.uniform(0, 5, len(lengths))}
    parts["answer"][:NUM_RESPONSES], parts["format"][:NUM_RESPONSES] = 1.0, 0.5
    parts["answer"][NUM_RESPONSES : 2 * NUM_RESPONSES] = (0.0, 1.0, 0.0)
    return {
        "responses_per_prompt": NUM_RESPONSES,
        "max_response_tokens": MAX_TOKENS,
        "kl_coefficient": BETA,
        "entropy_coefficient": ENTROPY,
        "lengths": lengths.tolist(),
        "log_probs": new.tolist(),
        "old_log_probs": old.tolist(),
        "reference_log_probs": (old + rng.normal(0, 0.3, len(old))).tolist(),
        "entropies": rng.uniform(0.1, 3, len(old)).tolist(),
        "advantages": rng.normal(0, 1, len(lengths)).tolist(),
        "weights": {"answer": 1.0, "format": 0.25},
        "parts": {name: values.tolist() for name, values in parts.items()},
        "logits": rng.normal(0, 2, (len(old), VOCABULARY)).tolist(),
        "teacher_logits": rng.normal(0, 2, (len(old), VOCABULARY)).tolist(),
    }


class Rows:
    """The responses as rows of padded tensors."""

    def __init__(self, given: Json) -> None:
        self.lengths: list[int] = given["lengths"]
        self.mask = torch.zeros(len(self.lengths), MAX_TOKENS, dtype=torch.float64)
        for row, length in enumerate(self.lengths):
            self.mask[row, :length] = 1.0
        self.new, self.entropies = self.padded(given["log_probs"]), self.padded(given["entropies"])
        self.old, self.reference = self.padded(given["old_log_probs"]), self.padded(given["reference_log_probs"])
        self.new.requires_grad_()
        self.entropies.requires_grad_()
        self.advantages = torch.tensor(given["advantages"], dtype=torch.float64)
        self.parts = torch.tensor(list(given["parts"].values()), dtype=torch.float64).T
        self.weights = torch.tensor([given["weights"][name] for name in given["parts"]], dtype=torch.float64)
        self.group = np.arange(len(self.lengths)) // NUM_RESPONSES

    def padded(self, values: list[float]) -> Tensor:
        result = torch.zeros_like(self.mask)
        result[self.mask.bool()] = torch.tensor(values, dtype=torch.float64)
        return result

    def differentiated(self, loss: Tensor) -> Json:
        """Return the loss, and its gradients by log-probabilities and entropies."""
        gradients = torch.autograd.grad(loss, (self.new, self.entropies), allow_unused=True)
        inside = [[] if one is None else one[self.mask.bool()].tolist() for one in gradients]
        return {"loss": loss.item(), "gradient": inside[0], "entropy_gradient": inside[1]}


def verl_config(aggregation: str, **settings: Any) -> ActorConfig:
    policy = PolicyLossConfig(**settings.pop("policy_loss", {}))
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=aggregation, policy_loss=policy,
        **settings,
    )  # fmt: skip
    config.global_batch_info["loss_scale_factor"] = MAX_TOKENS
    return config


VERL_AGGREGATIONS = {
    "TokenMean": "token-mean", "SequenceMean": "seq-mean-token-mean", "SequenceSum": "seq-mean-token-sum",
    "ConstantLength": "seq-mean-token-sum-norm",
}  # fmt: skip
CLIPS = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OURS = {"clipLow": 0.2, "clipHigh": 0.28}
NEVER = 1e6
"""A dual clip that never applies."""


def verl_losses(rows: Rows) -> Iterator[tuple[Json, Json]]:
    """Yield settings of ours, and what verl computes with its own."""

    def computed(mode: str, aggregation: str, **settings: Any) -> Json:
        advantages = rows.advantages.unsqueeze(1) * rows.mask
        function = core_algos.get_policy_loss_fn(mode)
        config = verl_config(VERL_AGGREGATIONS[aggregation], **({"clip_ratio_c": NEVER} | CLIPS | settings))
        loss, _ = function(rows.old, rows.new, advantages, rows.mask, config.loss_agg_mode, config)
        return rows.differentiated(loss)

    for aggregation in VERL_AGGREGATIONS:
        common = {"aggregation": aggregation}
        yield {"name": "GRPO", **OURS, **common}, computed("vanilla", aggregation)
        yield {"name": "GSPO", **OURS, **common}, computed("gspo", aggregation)
        yield {"name": "CISPO", **OURS, **common}, computed("cispo", aggregation)
        yield {"name": "GPG", **common}, computed("gpg", aggregation)
    yield {"name": "GRPO", **OURS, "dualClip": 1.4}, computed("vanilla", "TokenMean", clip_ratio_c=1.4)
    yield {"name": "SAPO"}, computed("sapo", "SequenceMean", tau_pos=1.0, tau_neg=1.05)
    yield {"name": "GMPO", **OURS}, computed("geo_mean", "SequenceMean")
    yield {"name": "DRO", "beta": 0.7}, computed("dro", "TokenMean", policy_loss={"dro_beta": 0.7})
    for mode, divergence in (("dppo_tv", "TotalVariation"), ("dppo_kl", "KL")):
        bounds = {"clip_ratio": 0.05, "clip_ratio_low": 0.02, "clip_ratio_high": 0.05, "clip_ratio_c": 1.5}
        ours = {"divergence": divergence, "divergenceLow": 0.02, "divergenceHigh": 0.05, "maxRatio": 1.5}
        yield {"name": "DPPO", **ours}, computed(mode, "TokenMean", **bounds)


def verl_penalties(rows: Rows) -> Iterator[tuple[Json, Json]]:
    """Yield what verl adds to the loss of GPG for the KL divergence and the entropy."""
    mask = rows.mask
    for estimator in ("k1", "k2", "k3"):
        policy = -rows.new * rows.advantages.unsqueeze(1) * mask
        kl = core_algos.kl_penalty(rows.new, rows.reference, estimator)
        loss = core_algos.agg_loss(policy + BETA * kl - ENTROPY * rows.entropies, mask, "seq-mean-token-mean")
        ours = {"name": "GPG", "aggregation": "SequenceMean"}
        yield {"objective": ours, "klEstimator": estimator.upper(), "entropy": True}, rows.differentiated(loss)


def distilled(given: Json) -> Iterator[Json]:
    """Yield what verl and TRL compute for a teacher, with the gradient by the logits of the student.

    verl computes divergences in single precision.
    """
    student, teacher = (torch.tensor(given[name], dtype=torch.float64) for name in ("logits", "teacher_logits"))
    student.requires_grad_()

    def found(peer: str, top_tokens: int, losses: Tensor) -> Json:
        loss = losses.sum() / len(student)
        (gradient,) = torch.autograd.grad(loss, student)
        return {"peer": peer, "topTokens": top_tokens, "loss": loss.item(), "gradient": gradient.tolist()}

    top = teacher.log_softmax(-1).topk(TOP_TOKENS)
    settings = SimpleNamespace(distillation_loss=SimpleNamespace(log_prob_min_clamp=None))
    parts = (torch.nested.as_nested_tensor([part], layout=torch.jagged) for part in (top.values, top.indices))
    outcome: Any = compute_forward_kl_topk(student.unsqueeze(0), *parts, config=settings, data_format="thd")
    yield found("verl", TOP_TOKENS, outcome["distillation_losses"])
    exact = GKDTrainer.generalized_jsd_loss(student.unsqueeze(0), teacher.unsqueeze(0), beta=0.0, reduction="sum")
    yield found("TRL", VOCABULARY, exact)


def verl_advantages(rows: Rows) -> Iterator[tuple[Json, list[float]]]:
    rewards = (rows.parts * rows.weights).sum(1)
    by_token = torch.zeros_like(rows.mask)
    by_token[torch.arange(len(rewards)), torch.tensor(rows.lengths) - 1] = rewards

    def computed(estimator: str, **more: Any) -> list[float]:
        function: Callable[..., Any] = core_algos.get_adv_estimator_fn(estimator)
        found, _ = function(
            token_level_rewards=by_token.clone(), response_mask=rows.mask, index=rows.group, config=AlgoConfig(), **more
        )
        values: list[float] = found[:, 0].tolist()
        return values

    yield {"advantage": "Normalised"}, computed("grpo")
    yield {"advantage": "Centred"}, computed("grpo", norm_adv_by_std_in_grpo=False)
    yield {"advantage": "LeaveOneOut"}, computed("rloo")
    yield {"advantage": "LengthWeighted"}, computed("opo")
    yield {"advantage": "PassAtK"}, computed("grpo_passk")
    yield {"advantage": "Whitened"}, computed("reinforce_plus_plus")
    yield {"advantage": "CentredWhitened"}, computed("reinforce_plus_plus_baseline")


def trl_losses(rows: Rows) -> Iterator[tuple[Json, Json]]:
    def computed(trainer: type = GRPOTrainer, beta: float = 0.0, entropy: float = 0.0, **settings: Any) -> Json:
        whole = torch.ones_like(rows.mask)
        given = {
            "prompt_ids": whole[:, :1], "prompt_mask": whole[:, :1], "completion_ids": whole,
            "completion_mask": rows.mask, "advantages": rows.advantages, "old_per_token_logps": rows.old,
            "ref_per_token_logps": rows.reference, "num_items_in_batch": rows.mask.sum(),
        }  # fmt: skip
        stub = _trl_trainer(trainer, rows, beta, entropy, settings)
        return rows.differentiated(trainer._compute_loss(stub, None, given))  # type: ignore[attr-defined]

    aggregations = {"dapo": "TokenMean", "bnpo": "TokenMean", "grpo": "SequenceMean", "dr_grpo": "ConstantLength"}
    for loss, aggregation in aggregations.items():
        yield {"objective": {"name": "GRPO", **OURS, "aggregation": aggregation}}, computed(loss_type=loss)
    by_response = {"importance_sampling_level": "sequence"}
    yield {"objective": {"name": "GSPO", **OURS}}, computed(loss_type="grpo", **by_response)
    yield (
        {"objective": {"name": "GSPO", **OURS, "aggregation": "SequenceSum"}},
        computed(loss_type="luspo", **by_response),
    )
    yield {"objective": {"name": "GRPO", **OURS, "dualClip": 1.4}}, computed(loss_type="dapo", delta=1.4)
    yield (
        {"objective": {"name": "CISPO", "clipHigh": 0.28, "clipLow": 1.0}},
        computed(loss_type="cispo", epsilon_high=1.28),
    )
    yield {"objective": {"name": "SAPO"}}, computed(loss_type="sapo")
    yield {"objective": {"name": "VESPO"}}, computed(loss_type="vespo")
    yield {"objective": {"name": "GMPO", **OURS}}, computed(GMPOTrainer)
    yield (
        {"objective": {"name": "GRPO", **OURS}, "klEstimator": "K3", "entropy": True},
        computed(loss_type="dapo", beta=BETA, entropy=ENTROPY),
    )
    corrected = {"klEstimator": "K3", "klBiasCorrection": True}
    yield (
        {"objective": {"name": "GRPO", **OURS}, **corrected},
        computed(loss_type="dapo", beta=BETA, use_bias_correction_kl=True),
    )
    yield (
        {"objective": {"name": "GSPO", **OURS}, **corrected},
        computed(loss_type="grpo", beta=BETA, use_bias_correction_kl=True, **by_response),
    )


def _trl_trainer(trainer: type, rows: Rows, beta: float, entropy: float, settings: Json) -> SimpleNamespace:
    """Return what `_compute_loss` reads of a trainer with one process and one batch per update."""
    defaults = {
        "delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1, "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
    }  # fmt: skip
    accelerator = SimpleNamespace(
        gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1, sync_gradients=True
    )
    return SimpleNamespace(
        args=SimpleNamespace(**(defaults | settings)),
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        _get_per_token_logps_and_entropies=lambda *_, **__: (rows.new, rows.entropies, None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=settings.get("importance_sampling_level", "token"),
        beta=beta,
        epsilon_low=0.2,
        epsilon_high=settings.get("epsilon_high", 0.28),
        loss_type=settings.get("loss_type"),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_TOKENS,
        _entropy_bonus_enabled=bool(entropy),
        entropy_coef=entropy,
        use_adaptive_entropy=False,
    )


def trl_advantages(rows: Rows) -> Iterator[tuple[Json, list[float]]]:
    """Yield what TRL's own lines compute, which are a part of a long method."""
    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    (lines,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and "multi_objective_aggregation == 'sum_then" in ast.unparse(node.test)
    )
    program = compile(ast.Module([lines], []), "trl", "exec")

    def computed(aggregation: str, scale: str) -> list[float]:
        known: dict[str, Any] = vars(trl.trainer.grpo_trainer) | {
            "self": SimpleNamespace(
                multi_objective_aggregation=aggregation,
                scale_rewards=scale,
                reward_weights=rows.weights,
                reward_funcs=[None] * len(rows.weights),
            ),
            "rewards_per_func": rows.parts,
            "unscorable_mask": torch.zeros(len(rows.parts), dtype=torch.bool),
            "num_generations": NUM_RESPONSES,
            "device": "cpu",
        }
        exec(program, known)
        values: list[float] = known["advantages"].tolist()
        return values

    epsilon = {"advantageEpsilon": 1e-4}
    yield {"advantage": "Normalised", **epsilon}, computed("sum_then_normalize", "group")
    yield {"advantage": "NormalisedByBatch", **epsilon}, computed("sum_then_normalize", "batch")
    yield {"advantage": "Centred"}, computed("sum_then_normalize", "none")
    yield {"advantage": "NormalisedByFunction", **epsilon}, computed("normalize_then_sum", "group")


def record() -> Mapping[str, Any]:
    torch.set_default_dtype(torch.float64)  # TRL makes tensors of some settings and counts.
    given = inputs()
    rows = Rows(given)
    verl = [({"objective": objective}, found) for objective, found in verl_losses(rows)]
    losses = {"verl": [*verl, *verl_penalties(rows)], "TRL": [*trl_losses(rows)]}
    advantages = {"verl": [*verl_advantages(rows)], "TRL": [*trl_advantages(rows)]}
    return {
        "inputs": given,
        "losses": [{"peer": peer, "ours": ours, **found} for peer, all_of in losses.items() for ours, found in all_of],
        "advantages": [
            {"peer": peer, "ours": ours, "advantages": found}
            for peer, all_of in advantages.items()
            for ours, found in all_of
        ],
        "distilled": [*distilled(given)],
    }


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=0) + "\n")

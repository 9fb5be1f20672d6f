"""Losses, gradients and advantages are those of verl's and TRL's own code, as recorded."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from longshore.api.algorithm import KlEstimator
from longshore.api.objectives.advantages import Estimator, RewardedGroup
from longshore.api.objectives.aggregation import denominator
from longshore.api.objectives.distillation import Distillation, Teacher
from longshore.api.objectives.grpo import Grpo
from longshore.api.objectives.registry import OBJECTIVES, AnyObjective
from longshore_runtime.backends.losses import (
    ReferenceTokens,
    most_likely_tokens,
    token_log_probs,
    weighted_losses,
)
from tests.contract.trainers.plans import double_precision
from tests.contract.trainers.replicas import OPTIONS

Json = dict[str, Any]
_SCRIPT = Path(__file__).parent / "peers/record.py"
_RECORDED: Json = json.loads(_SCRIPT.with_name("recorded.json").read_text())
_INPUTS: Json = _RECORDED["inputs"]
_PEERS = Path(".venv/peers/bin/python")
OBJECTIVE: TypeAdapter[Any] = TypeAdapter(AnyObjective)


def tensor(name: str) -> Tensor:
    return tensor_of(_INPUTS[name])


def tensor_of(values: Json) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ours(settings: Json) -> tuple[float, Tensor, Tensor]:
    """Compute the loss with these settings, and its gradients by log-probabilities and entropies."""
    objective = OBJECTIVE.validate_python(settings["objective"])
    options = replace(
        OPTIONS,
        objective=objective,
        max_response_tokens=_INPUTS["max_response_tokens"],
        kl_coefficient=_INPUTS["kl_coefficient"],
        kl_estimator=KlEstimator(settings.get("klEstimator", "K3")),
        kl_bias_correction=settings.get("klBiasCorrection", False),
        entropy_coefficient=_INPUTS["entropy_coefficient"],
    )
    lengths, new, entropies = _INPUTS["lengths"], tensor("log_probs"), tensor("entropies")
    leaves = new.requires_grad_(), entropies.requires_grad_()
    found = weighted_losses(
        new,
        tensor("old_log_probs"),
        tensor("advantages").repeat_interleave(torch.tensor(lengths)),
        tensor("reference_log_probs") if "klEstimator" in settings else None,
        lengths,
        options,
        old_log_probs=tensor("old_log_probs"),
        entropies=entropies if settings.get("entropy") else None,
    )
    divisor = denominator(objective.aggregation, [(length, 1.0) for length in lengths], options.max_response_tokens)
    loss = found.total.sum() / divisor
    gradient, of_entropies = torch.autograd.grad(loss, leaves, allow_unused=True)
    return loss.item(), gradient, torch.zeros(0) if of_entropies is None else of_entropies


@pytest.mark.parametrize("case", _RECORDED["losses"], ids=lambda case: f"{case['peer']} {json.dumps(case['ours'])}")
def test_losses_and_gradients_are_those_of_the_peer(case: Json) -> None:
    loss, gradient, of_entropies = ours(case["ours"])
    assert gradient.tolist() == pytest.approx(case["gradient"], abs=1e-9, rel=1e-8)
    assert of_entropies.tolist() == pytest.approx(case["entropy_gradient"], abs=1e-9, rel=1e-8)
    assert loss == pytest.approx(case["loss"], abs=1e-8)
    assert gradient.norm() > 1e-3, "something is compared"


@pytest.mark.parametrize("case", _RECORDED["advantages"], ids=lambda case: f"{case['peer']} {json.dumps(case['ours'])}")
def test_advantages_are_those_of_the_peer(case: Json) -> None:
    size, parts, weights = _INPUTS["responses_per_prompt"], _INPUTS["parts"], _INPUTS["weights"]
    groups = []
    for first in range(0, len(_INPUTS["lengths"]), size):
        part = slice(first, first + size)
        of_functions = [(weights[name], values[part]) for name, values in parts.items()]
        rewards = [sum(weight * values[place] for weight, values in of_functions) for place in range(size)]
        groups.append(RewardedGroup(rewards, _INPUTS["lengths"][part], of_functions))
    found = [value for group in Grpo.model_validate(case["ours"]).advantages(groups) for value in group]
    assert found == pytest.approx(case["advantages"], abs=1e-8)


@pytest.mark.parametrize("case", _RECORDED["distilled"], ids=lambda case: case["peer"])
def test_divergences_from_a_teacher_are_those_of_the_peer(case: Json) -> None:
    student, teacher = tensor("logits").requires_grad_(), tensor("teacher_logits")
    tokens, number, plain = torch.zeros(len(student), dtype=torch.long), case["topTokens"], torch.nn.Identity()
    chunk = len(tokens)  # Nothing is recomputed: that would be in single precision.
    objective = Distillation(teacher=Teacher(path="teacher"), top_tokens=number)
    options, nothing = replace(OPTIONS, objective=objective, kl_coefficient=0.0), torch.zeros(len(tokens))
    with double_precision():
        said = ReferenceTokens.on_host(*most_likely_tokens(teacher, plain, 1.0, 5, number, teacher.shape[-1]))
        log_probs, top = said.split(token_log_probs(student, plain, said.with_targets(tokens), 1.0, chunk)[0])
        found = weighted_losses(log_probs, nothing, nothing, None, [len(tokens)], options, top=top)
        loss = found.total.sum() / len(tokens)
        (gradient,) = torch.autograd.grad(loss, student)
    tolerance = 1e-6 if case["peer"] == "verl" else 1e-9  # verl computes divergences in single precision.
    assert torch.allclose(gradient, tensor_of(case["gradient"]), rtol=0, atol=tolerance)
    assert loss.item() == pytest.approx(case["loss"], abs=tolerance)


def test_every_objective_that_verl_or_trl_has_is_compared() -> None:
    """DAPO, DrGRPO, RLOO and ReinforcePlusPlus are GRPO with other settings, PPO and T-PPO have its loss."""
    compared = {case["ours"]["objective"]["name"] for case in _RECORDED["losses"]}
    others = {"DAPO", "DrGRPO", "RLOO", "ReinforcePlusPlus", "PPO", "TPPO", "Distillation", "Custom"}
    assert {case["peer"] for case in _RECORDED["distilled"]} == {"verl", "TRL"}
    assert set(OBJECTIVES) - compared == others
    assert {case["ours"]["advantage"] for case in _RECORDED["advantages"]} == set(Estimator) - {Estimator.GAE}


@pytest.mark.skipif(not _PEERS.exists(), reason="verl and TRL are not installed: make peer-losses")
def test_the_peers_still_compute_what_is_recorded() -> None:
    code = f"import json, runpy; print(json.dumps(runpy.run_path({str(_SCRIPT)!r})['record']()))"
    printed = subprocess.run([_PEERS.absolute(), "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(printed.splitlines()[-1]) == _RECORDED

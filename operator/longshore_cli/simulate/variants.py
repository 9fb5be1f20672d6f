"""The job as given, and the same job under other strategies and on other numbers of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.rollout import OnPolicy, Rollout, Strategy
from longshore.api.spec import Placement, RLJobSpec
from longshore.sim.result import SimResult
from longshore_cli.simulate.errors import BadInput

COMPARED: Final = tuple(one for one in Strategy if one is not Strategy.AUTO)
"""Strategies that a manifest is simulated under; Auto is one of them at any time."""
_WITHOUT_LEFTOVERS: Final = frozenset({Strategy.SYNCHRONOUS, Strategy.GROUP_PIPELINE, Strategy.PARTIAL_ROLLOUT})


@dataclass(frozen=True)
class StrategyVariant:
    """The job under one strategy."""

    spec: RLJobSpec
    is_given: bool
    """Whether it is the manifest's own strategy."""

    @property
    def strategy(self) -> Strategy:
        """Rollout strategy of this variant."""
        return self.spec.rollout.strategy

    @property
    def on_policy(self) -> OnPolicy:
        """Relaxed if the variant trains on tokens of older weights, even if the manifest says otherwise."""
        return OnPolicy.RELAXED if self.spec.rollout.keeps_tokens else OnPolicy.STRICT


@dataclass(frozen=True)
class SimulatedVariant:
    """Simulated result of a variant on a number of GPUs."""

    variant: StrategyVariant
    num_gpus: int
    result: SimResult


@dataclass(frozen=True)
class Skipped:
    """A strategy that is not simulated."""

    strategy: Strategy
    reason: str


def variants(
    spec: RLJobSpec, wanted: Sequence[Strategy], *, strict_only: bool
) -> tuple[list[StrategyVariant], list[Skipped]]:
    """Return Synchronous, for comparison, the spec's own Auto, and every wanted strategy that it can have."""
    found: list[StrategyVariant] = []
    skipped: list[Skipped] = []
    own_auto = {spec.rollout.strategy} & {Strategy.AUTO}
    for strategy in (one for one in Strategy if one in {*wanted, *own_auto, Strategy.SYNCHRONOUS}):
        is_given = strategy is spec.rollout.strategy
        try:
            variant = StrategyVariant(spec if is_given else with_strategy(spec, strategy), is_given)
        except ValidationError as error:
            skipped.append(Skipped(strategy, sentence(error)))
            continue
        if strict_only and variant.on_policy is OnPolicy.RELAXED:
            skipped.append(Skipped(strategy, "trains on tokens of older weights"))
        else:
            found.append(variant)
    return found, skipped


def with_strategy(spec: RLJobSpec, strategy: Strategy) -> RLJobSpec:
    """Return the same job under another strategy.

    `leftovers` is removed where the strategy cannot have it, and a strategy that keeps tokens relaxes `onPolicy`.

    Raises:
        ValidationError: the rest of the spec forbids the strategy.
    """
    given = spec.rollout
    keeps = strategy is Strategy.PARTIAL_ROLLOUT
    return changed(
        spec,
        rollout={
            "strategy": strategy,
            "on_policy": OnPolicy.RELAXED if keeps else given.on_policy,
            "leftovers": None if strategy in _WITHOUT_LEFTOVERS else given.leftovers,
        },
    )


def with_gpus(spec: RLJobSpec, num_gpus: int) -> RLJobSpec:
    """Return the same job with more or fewer pods, and as many trainer replicas as they hold."""
    per_pod = max(1, spec.workers.gpus_per_pod)
    if num_gpus < 1 or num_gpus % per_pod:
        raise BadInput(f"--gpus: {num_gpus} GPUs do not fill pods of {per_pod} (workers.gpusPerPod)")
    if num_gpus == total_gpus(spec):
        return spec
    try:
        return changed(
            spec, workers={"replicas": num_gpus // per_pod, "min_replicas": None}, trainer={"data_parallel_size": None}
        )
    except ValidationError as error:
        raise BadInput(f"--gpus: {num_gpus}: {sentence(error)}") from error


def total_gpus(spec: RLJobSpec) -> int:
    """Return the GPUs of all worker pods; a pod without GPUs counts as one."""
    return spec.workers.replicas * max(1, spec.workers.gpus_per_pod)


def num_training_gpus(spec: RLJobSpec) -> int:
    """Return the number of GPUs that only train, in addition to those of the workers."""
    if spec.placement is Placement.COLOCATED:
        return 0
    return spec.training_pods.replicas * max(1, spec.training_pods.gpus_per_pod)


def manifest_changes(given: Rollout, chosen: Rollout) -> list[str]:
    """Return what to change in the rollout of a manifest, as fragments of a sentence."""
    changes = []
    if chosen.strategy is not given.strategy:
        changes.append(f"set spec.rollout.strategy: {chosen.strategy}")
    if chosen.leftovers is not given.leftovers:
        changes.append("remove spec.rollout.leftovers")
    if chosen.on_policy is not given.on_policy:
        changes.append(f"set spec.rollout.onPolicy: {chosen.on_policy}")
    return changes


def changed(spec: RLJobSpec, **sections: dict[str, Any]) -> RLJobSpec:
    """Return the spec with fields of some sections replaced, and all rules checked again; ValidationError."""
    stored = spec.model_dump(by_alias=False)
    for name, fields in sections.items():
        stored[name] |= fields
    return RLJobSpec.model_validate(stored, by_name=True)

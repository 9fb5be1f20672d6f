"""The round policies by the name that a user gives."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from longshore.api.rollout import Rollout, Strategy
from longshore.api.round_status import RoundKind
from longshore.policy.auto import Auto
from longshore.policy.draws import DrawCursor
from longshore.policy.engine_load import ConcurrencyLimit
from longshore.policy.group_pipeline import GroupPipeline
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.reorder_rollout import ReorderRollout
from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous
from longshore.policy.tail_batching import TailBatching

# A strategy is registered here.
STRATEGIES: Final[Mapping[Strategy, type[RoundPolicy]]] = MappingProxyType(
    {
        Strategy.SYNCHRONOUS: Synchronous,
        Strategy.TAIL_BATCHING: TailBatching,
        Strategy.PARTIAL_ROLLOUT: PartialRollout,
        Strategy.REORDER_ROLLOUT: ReorderRollout,
        Strategy.GROUP_PIPELINE: GroupPipeline,
        Strategy.AUTO: Auto,
    }
)


def round_policy(
    rollout: Rollout,
    shape: BatchShape,
    cursor: DrawCursor,
    *,
    groups_per_update: int | None = None,
    dynamic_sampling: bool = False,
) -> RoundPolicy:
    """Return the round policy of a job; `groups_per_update` is U, by default P0."""
    admission = rollout.admission
    rules = AdmissionRules(
        acceptance=Acceptance.TRAINABLE if dynamic_sampling else Acceptance.SERVED,
        frontier_width=admission.frontier_width,
        max_active_per_engine=admission.max_active_per_engine,
        load_limit=ConcurrencyLimit(rollout.engine.max_num_seqs) if admission.adaptive else None,
    )
    return STRATEGIES[rollout.strategy].of(rollout, shape, cursor, rules, groups_per_update or shape.num_prompts)


def round_kinds(strategy: Strategy) -> tuple[RoundKind, ...]:
    """Return the kinds of round that a strategy plans."""
    return STRATEGIES[strategy].round_kinds


def usual_period(rollout: Rollout, num_prompts: int) -> tuple[RoundKind, ...]:
    """Return the rounds of a job in their usual order, which then begins again."""
    return STRATEGIES[rollout.strategy].usual_period(rollout, num_prompts)

"""Round policies by the name that a user gives, with the parts that the user combines them with."""

from longshore.api.rollout import Rollout, Strategy
from longshore.policy.auto import Auto, RoundChoice
from longshore.policy.draws import DrawCursor
from longshore.policy.engine_load import ConcurrencyLimit
from longshore.policy.group_pipeline import GroupPipeline
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.reorder_rollout import ReorderRollout
from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous
from longshore.policy.tail_batching import TailBatching


def round_policy(
    rollout: Rollout,
    shape: BatchShape,
    cursor: DrawCursor,
    *,
    groups_per_update: int | None = None,
    dynamic_sampling: bool = False,
) -> RoundPolicy:
    """Return the round policy of a job; `groups_per_update` is U, by default P0."""
    rules = _admission_rules(rollout, dynamic_sampling)
    match rollout.strategy:
        case Strategy.SYNCHRONOUS:
            return Synchronous(shape, cursor, rules)
        case Strategy.TAIL_BATCHING:
            keeps = rollout.keeps_tokens
            return TailBatching(shape, cursor, rollout.tail_batching, rules, keeps_tokens=keeps)
        case Strategy.AUTO:
            return Auto(shape, cursor, RoundChoice.of(rollout), rules, keeps_tokens=rollout.keeps_tokens)
        case Strategy.PARTIAL_ROLLOUT:
            return PartialRollout(shape, cursor, rollout.partial_rollout, rules)
        case Strategy.REORDER_ROLLOUT:
            settings, max_num_seqs = rollout.reorder_rollout, rollout.engine.max_num_seqs
            return ReorderRollout(shape, cursor, settings, max_num_seqs, rules, keeps_tokens=rollout.keeps_tokens)
        case Strategy.GROUP_PIPELINE:
            return GroupPipeline(shape, cursor, rules, groups_per_update or shape.num_prompts)


def _admission_rules(rollout: Rollout, dynamic_sampling: bool) -> AdmissionRules:
    admission = rollout.admission
    return AdmissionRules(
        acceptance=Acceptance.TRAINABLE if dynamic_sampling else Acceptance.SERVED,
        frontier_width=admission.frontier_width,
        max_active_per_engine=admission.max_active_per_engine,
        load_limit=ConcurrencyLimit(rollout.engine.max_num_seqs) if admission.adaptive else None,
    )

"""The ledger, which shows for every step what became of each draw. Pure."""

from typing import Any

from longshore_runtime.checkpoints.run_state import has_zero_variance
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.trainer.updates import StepTraining


def ledger_row(step: int, result: RoundResult, trained: StepTraining) -> dict[str, Any]:
    """Return what a step did with its draws: enough to audit that none was lost or counted twice.

    Draws are trained, deferred, or replaced (dropped or rejected). Where gradients were streamed, `replicas` lists the
    responses of each trainer replica.
    """
    replicas: dict[str, list[str]] = {}
    for response, replica in sorted(trained.replica_of.items()):
        replicas.setdefault(str(replica), []).append(str(response))
    return {
        **({"replicas": replicas} if replicas else {}),
        "step": step,
        "kind": result.end.kind.value,
        "trained": {str(group.draw): [one.response.index for one in group.responses] for group in result.groups},
        "zero_variance": [str(group.draw) for group in result.groups if has_zero_variance(group)],
        "dropped": [str(group.draw) for group in result.dropped],
        "deferred": [str(draw) for draw in result.end.deferred],
        "rejected": {str(draw): why for draw, why in result.rejected.items()},
        "num_updates": len(trained.updates),
        "policy_versions": sorted(
            {
                run.policy_version
                for group in result.groups
                for one in group.responses
                for run in one.completion.trajectory.runs
                if run.policy_version is not None
            }
        ),
    }

"""The state of a run survives a checkpoint."""

import orjson

from longshore.api.round_status import RoundKind
from longshore_runtime.run_state import HeldOutScore, KindTotals, RunState


def test_exported_state_is_json_and_loads_equal() -> None:
    state = RunState(
        step=4,
        policy={"cursor": {"epoch": 0, "offset": 3, "num_prompts": 9}, "leftovers": [[0, 2]]},
        trained=16,
        zero_variance=3,
        kinds={RoundKind.SHORT: KindTotals(3, 1.5, 24, 1), RoundKind.LONG: KindTotals(1, 2.5, 8, 0)},
        held_out_before=HeldOutScore(0.2, 0.1, (0.1, 0.3)),
        held_out_latest=HeldOutScore(0.4, 0.3),
        evaluated_step=2,
    )
    assert RunState.load(orjson.loads(orjson.dumps(state.export())), {}) == state


def test_scores_of_a_version_that_kept_no_single_rewards_load() -> None:
    exported = RunState(held_out_before=HeldOutScore(0.2, 0.1)).export()
    del exported["held_out_before"]["rewards"]
    assert RunState.load(exported, {}).held_out_before == HeldOutScore(0.2, 0.1)


def test_a_checkpoint_of_a_version_that_kept_no_step_of_its_evaluation_counts_as_evaluated() -> None:
    exported = RunState(step=6, held_out_latest=HeldOutScore(0.2, 0.1)).export()
    del exported["evaluated_step"]
    assert RunState.load(exported, {}).evaluated_step == 6

"""A manifest under other strategies is one that the API server would take."""

import pytest

from longshore.api.rollout import Leftovers, Strategy
from longshore.api.spec import RLJobSpec
from longshore_cli.simulate.variants import with_strategy
from tests.unit.api.specs import spec


@pytest.mark.parametrize("leftovers", [None, *Leftovers])
@pytest.mark.parametrize("strategy", [one for one in Strategy if one is not Strategy.AUTO])
def test_any_leftovers_allow_every_strategy(leftovers: Leftovers | None, strategy: Strategy) -> None:
    given = {"rollout.leftovers": None if leftovers is None else leftovers.value, "rollout.onPolicy": "Relaxed"}
    job = RLJobSpec.model_validate(spec(given))
    variant = with_strategy(job, strategy)
    assert RLJobSpec.model_validate(variant.model_dump(by_alias=True, exclude_none=True)) == variant

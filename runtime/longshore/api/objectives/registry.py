"""The objectives by name, and the field that chooses one of them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.cispo import Cispo
from longshore.api.objectives.custom import Custom
from longshore.api.objectives.dapo import Dapo
from longshore.api.objectives.distillation import Distillation
from longshore.api.objectives.dppo import Dppo
from longshore.api.objectives.dr_grpo import DrGrpo
from longshore.api.objectives.dro import Dro
from longshore.api.objectives.gmpo import Gmpo
from longshore.api.objectives.gpg import Gpg
from longshore.api.objectives.grpo import Grpo
from longshore.api.objectives.gspo import Gspo
from longshore.api.objectives.objective import Objective
from longshore.api.objectives.ppo import Ppo
from longshore.api.objectives.reinforce_plus_plus import ReinforcePlusPlus
from longshore.api.objectives.rloo import Rloo
from longshore.api.objectives.sapo import Sapo
from longshore.api.objectives.tppo import Tppo
from longshore.api.objectives.vespo import Vespo
from longshore.api.rules import Rule, check, in_schema

# An objective is registered here.
_Registered = (
    Grpo
    | Dapo
    | DrGrpo
    | Rloo
    | ReinforcePlusPlus
    | Gspo
    | Gmpo
    | Sapo
    | Cispo
    | Dppo
    | Vespo
    | Gpg
    | Dro
    | Ppo
    | Tppo
    | Distillation
    | Custom
)

OBJECTIVES: Final[Mapping[str, Objective]] = MappingProxyType(
    {one.model_fields["name"].default: one.model_construct() for one in get_args(_Registered)}
)
"""Each objective with its default settings; `Custom` without its function."""
WITH_CRITIC: Final = [name for name, one in OBJECTIVES.items() if one.has_critic]
UNFINISHED: Final = [name for name, one in OBJECTIVES.items() if one.trains_unfinished]


def having_advantage(objective: str, estimators: Collection[Estimator]) -> str:
    """Return the condition in CEL that the objective at this path has one of these estimators, chosen or by default."""
    names = [name for name, one in OBJECTIVES.items() if one.advantage in estimators]
    chosen = f"{objective}.advantage in {[str(one) for one in estimators]}"
    return f"(has({objective}.advantage) ? {chosen} : {objective}.name in {names})"


def _rules() -> tuple[Rule, ...]:
    """Return what the schema of each objective says: the field's schema is that of all of them together."""
    names = list(OBJECTIVES)
    rules = [Rule("name", f"self.name in {names}", f"name must be one of {', '.join(names)}", in_schema=False)]
    having: dict[str, list[str]] = {}
    for name, one in OBJECTIVES.items():
        for field in type(one).model_fields.values():
            alias = str(field.alias)
            having.setdefault(alias, []).append(name)
            if field.is_required():
                missing = f"{alias} is required by {name}: set it"
                rules.append(Rule(alias, f"self.name != '{name}' || has(self.{alias})", missing))
    alike: dict[tuple[str, ...], list[str]] = {}
    for alias, known in having.items():
        alike.setdefault(tuple(known), []).append(alias)
    for those, aliases in alike.items():
        if len(those) < len(names):
            absent = " && ".join(f"!has(self.{alias})" for alias in aliases)
            belong = "belong" if len(aliases) > 1 else "belongs"
            message = f"{', '.join(aliases)} {belong} to {', '.join(those)}: remove what is set, or choose another name"
            rules.append(Rule("name", f"self.name in {list(those)} || {absent}", message))
    return tuple(rules)


_RULES: Final = _rules()


def _named(value: Any) -> Any:
    """Add the default name, and refuse fields that the objective does not have."""
    if isinstance(value, str):
        raise PydanticCustomError("objective", "write the name as {name: " + value[:40] + "}")
    if not isinstance(value, dict):
        return value
    value = {"name": Grpo().name, **value}
    check(_RULES, {key: value[key] if key == "name" else True for key in value}, "objective")
    return value


AnyObjective = Annotated[
    _Registered,
    Field(discriminator="name", json_schema_extra=in_schema(_RULES)),
    BeforeValidator(_named),
]
"""One of the objectives."""

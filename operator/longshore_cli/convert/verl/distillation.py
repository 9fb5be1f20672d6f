"""verl's distillation of a teacher."""

from fnmatch import fnmatchcase
from typing import Any, Final

from longshore.api.objectives.distillation import AT as TEACHER
from longshore_cli.convert import places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, entry
from longshore_cli.convert.verl.objective import OBJECTIVE
from longshore_cli.convert.verl.sections import DISTILLATION_LOSS, IS_TAUGHT, ROLLOUT, USES_REWARDS, named

_MODELS: Final = "distillation.teacher_models.*.model_path"
_MODEL: Final = _MODELS.replace("*", "teacher_model")
_MODE: Final = f"{DISTILLATION_LOSS}.loss_mode"
_TOP: Final = f"{DISTILLATION_LOSS}.topk"
_BY_POLICY_GRADIENT: Final = f"{DISTILLATION_LOSS}.use_policy_gradient"
_WEIGHT: Final = f"{DISTILLATION_LOSS}.distillation_loss_coef"
_CLAMPS: Final = named(DISTILLATION_LOSS, "loss_max_clamp log_prob_min_clamp")
_CLIPS: Final = {"clipLow": f"{DISTILLATION_LOSS}.clip_ratio_low", "clipHigh": f"{DISTILLATION_LOSS}.clip_ratio_high"}
_DUAL_CLIP: Final = 3.0
"""Dual clip of verl's distillation, which no setting changes."""


@entry(
    [IS_TAUGHT, _MODEL, _MODELS, _MODE, _TOP, _BY_POLICY_GRADIENT, USES_REWARDS, _WEIGHT, *_CLAMPS, *_CLIPS.values()],
    [f"spec.{TEACHER}.hub", f"spec.{TEACHER}.path",
     *(f"{OBJECTIVE}.{name}" for name in ("topTokens", "rewardWeight", *_CLIPS, "dualClip"))],
    "with `enabled`, objective Distillation. `forward_kl_topk` has `topTokens: topk`, `k3` the default of it, and `k1` "
    "with `use_policy_gradient` 0. `rewardWeight` is 1 / `distillation_loss_coef` with `use_task_rewards`, else 0",
    distillation__distillation_loss__loss_mode="k3",
    distillation__distillation_loss__topk=32,
    distillation__distillation_loss__use_task_rewards=True,
    distillation__distillation_loss__distillation_loss_coef=1.0,
    distillation__distillation_loss__clip_ratio_low=0.2,
    distillation__distillation_loss__clip_ratio_high=0.2,
)  # fmt: skip
def distillation(settings: ForeignSettings) -> EntryOutcome:
    if not settings.flag(IS_TAUGHT):
        unused = [key for key in settings.given if distillation.matches(key) and key != IS_TAUGHT]
        return EntryOutcome({}, dict.fromkeys(unused, "there is no teacher"), beside_learning=frozenset(unused))
    taught = _teacher(settings)
    fields, lost = _loss(settings)
    lost |= {key: "it is not bounded" for key in _CLAMPS if settings[key] is not None}
    hot = settings.number(f"{ROLLOUT}.temperature") not in (None, 1)
    look = ("Look at spec.algorithm.temperature: verl's teachers have temperature 1, and here both models have it.",)
    return EntryOutcome(taught.fields | fields, lost, to_do=(*taught.to_do, *(look if hot else ())))


def _teacher(settings: ForeignSettings) -> EntryOutcome:
    paths = {key: settings.text(key) for key in settings.given if fnmatchcase(key, _MODELS)}
    named = {key: path for key, path in paths.items() if path is not None}
    if not named:
        raise Missing(_MODEL, "it is unset, and a job that distils needs a teacher")
    if len(named) > 1:
        raise Refused(_MODEL, "a job has one teacher: name one, and make a job for the data of each other")
    [(key, path)] = named.items()
    found = places.model(path, key)
    own = {name.replace("spec.model", f"spec.{TEACHER}"): value for name, value in found.fields.items()}
    return EntryOutcome(own, to_do=found.to_do)


def _loss(settings: ForeignSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of the loss, and what they do not express."""
    mode, by_policy_gradient = settings.text(_MODE), settings.flag(_BY_POLICY_GRADIENT)
    uses_rewards, weight = settings.flag(USES_REWARDS), settings.number(_WEIGHT) or 0.0
    fields, lost = dict[str, Any](), dict[str, str]()
    match mode, by_policy_gradient:
        case "forward_kl_topk", False:
            fields["topTokens"] = settings.wanted(_TOP, "the divergence needs a number of tokens")
            lost[_MODE] = "verl leaves out tokens at which the sum over so few tokens is below 0"
        case "k3" | "low_var_kl", False:
            lost[_MODE] = "it estimates the gradient of the forward KL divergence, which is computed over topTokens"
        case "k1" | "kl", True:
            fields["topTokens"] = 0
            if uses_rewards:
                lost[USES_REWARDS] = "the advantages of teacher and rewards are added up, and clipped together"
            else:
                fields |= {name: settings[key] for name, key in _CLIPS.items()} | {"dualClip": _DUAL_CLIP}
        case _:
            choice = "choose forward_kl_topk or k3 with use_policy_gradient=false, or k1 with true"
            raise Refused(_MODE, f"{mode} with use_policy_gradient={str(by_policy_gradient).lower()}: {choice}")
    if uses_rewards:
        if weight <= 0:
            raise Refused(_WEIGHT, f"it is {weight:g}, so nothing is learned from the teacher: raise it")
        fields["rewardWeight"] = 1 / weight
        if weight != 1:
            lost[_WEIGHT] = "the whole loss is divided by it, which matters to the clip of gradients"
    return {f"{OBJECTIVE}.{name}": value for name, value in fields.items()}, lost


ENTRIES: Final[tuple[MappingEntry, ...]] = (distillation,)

"""verl's correction of the difference between engines and trainers."""

from dataclasses import dataclass
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, entry
from longshore_cli.convert.verl.objective import OBJECTIVE, objective
from longshore_cli.convert.verl.sections import ACTOR, ALGORITHM, CORRECTION, named

_LEVELS: Final = {"token": "Token", "sequence": "Sequence"}
_REJECTIONS: Final = {
    "token": "Token", "sequence": "Sequence", "geometric": "Geometric",
    "token_k1": "Token", "seq_sum_k1": "Sequence", "seq_mean_k1": "Geometric",
}  # fmt: skip
_BYPASS: Final = f"{CORRECTION}.bypass_mode"
_IS: Final = f"{CORRECTION}.rollout_is"
_RS: Final = f"{CORRECTION}.rollout_rs"
_LOSS: Final = f"{CORRECTION}.loss_type"
_NO_CLIP: Final = f"{CORRECTION}.use_policy_gradient"
_OLD_CAP: Final = f"{ACTOR}.tis_imp_ratio_cap"


@dataclass(frozen=True)
class _Weights:
    """Importance weights: those of tokens or of responses, up to a largest one."""

    level: str
    most: float
    least: float | None
    """Weights outside least and most are 0 (IcePop); None: larger ones are cut down."""


@entry(
    [*named(CORRECTION, "bypass_mode loss_type use_policy_gradient rollout_is rollout_is_threshold rollout_rs "
                        "rollout_rs_threshold rollout_rs_threshold_lower"), _OLD_CAP],
    [f"{ALGORITHM}.rolloutCorrection", f"{OBJECTIVE}.name", f"{OBJECTIVE}.clipLow", f"{OBJECTIVE}.clipHigh"],
    "without a correction `{rolloutIs: None, rolloutRs: None}`, but no field with GSPO or `bypass_mode: true`, which "
    "with `loss_type: reinforce` and weights of tokens is CISPO. Bounds of `*_k1` are those of the reciprocal ratio; "
    "`tis_imp_ratio_cap` and `use_policy_gradient` are older names",
    algorithm__rollout_correction__rollout_is_threshold=2.0,
)  # fmt: skip
def correction(settings: ForeignSettings) -> EntryOutcome:
    weights, rejection = _weights(settings), settings.text(_RS)
    is_gspo = settings.text(f"{ACTOR}.policy_loss.loss_mode") == "gspo"
    if settings.flag(_BYPASS):
        return _bypassed(settings, weights, is_gspo=is_gspo)
    if rejection is not None and rejection not in _REJECTIONS:
        raise Refused(_RS, f"{rejection} is not available; choose one *_k1 criterion")
    if is_gspo and weights is None and rejection is None:
        return EntryOutcome()
    fields: dict[str, Any] = {"rolloutIs": "None", "rolloutRs": "None"}
    if weights is not None:
        fields |= {"rolloutIs": _LEVELS[weights.level], "rolloutIsThreshold": weights.most}
        if weights.least is not None:
            fields |= _rejecting(weights.level, weights.least, weights.most)
    if rejection is not None:
        if fields["rolloutRs"] != "None":
            raise Refused(_RS, "it comes on top of the two bounds of rollout_is_threshold, and a job rejects once")
        fields |= _rejecting(rejection, *_bounds(settings, rejection))
    lost = {}
    if is_gspo and rejection is not None and fields["rolloutRs"] == "Token":
        lost[_RS] = (
            "a rejected token has weight 0 and stays in the means over its response; verl's GSPO takes it out of them, "
            "which changes ratio and loss of every response with one"
        )
    return EntryOutcome({f"{ALGORITHM}.rolloutCorrection": fields}, lost)


def _bypassed(settings: ForeignSettings, weights: _Weights | None, *, is_gspo: bool) -> EntryOutcome:
    """Convert bypass mode, without the trainer's log-probabilities: a clip replaces weights, or weights replace it."""
    why = "nothing is rejected without rolloutCorrection, which bypass_mode leaves out"
    rejecting = [key for key in settings.given if key.startswith(_RS)] if settings[_RS] else []
    lost = dict.fromkeys(rejecting, why)
    if is_gspo:
        lost[_BYPASS] = "the ratio of GSPO is relative to the trainer's own log-probabilities, as without bypass_mode"
    unclipped = [key for key in (_LOSS, _NO_CLIP) if settings.plain(key) in ("reinforce", True)]
    is_grpo = objective.convert(settings).fields == {f"{OBJECTIVE}.name": "GRPO"}
    if unclipped and is_grpo and weights is not None and (weights.level, weights.least) == ("token", None):
        is_new = settings.plain("trainer.use_v1") is not False and unclipped == [_LOSS]
        look = f"Look at {OBJECTIVE}: verl 0.9 clips all the same, unless trainer.use_v1 is false."
        weighing = {"name": "CISPO", "clipLow": 1.0, "clipHigh": weights.most - 1.0, "dualClip": None}
        fields = {f"{OBJECTIVE}.{name}": value for name, value in weighing.items()}
        return EntryOutcome(fields, lost, to_do=(look,) if is_new else ())
    clipped = "the loss is clipped; without a clip there are weights of tokens (rollout_is: token, with one bound)"
    return EntryOutcome(lost=lost | dict.fromkeys(unclipped, clipped))


def _weights(settings: ForeignSettings) -> _Weights | None:
    level, bound = settings.text(_IS), settings[f"{_IS}_threshold"]
    if level is None:
        cap = settings.number(_OLD_CAP) or 0.0
        return _Weights("token", cap, None) if cap > 0 else None
    if level not in _LEVELS:
        raise Refused(_IS, f"{level} is not available; choose token or sequence")
    if bound is None:
        return None
    least, most = _pair(f"{_IS}_threshold", bound)
    return _Weights(level, most, least)


def _rejecting(criterion: str, low: float, high: float) -> dict[str, Any]:
    return {"rolloutRs": _REJECTIONS[criterion], "rolloutRsThreshold": high, "rolloutRsThresholdLower": low}


def _bounds(settings: ForeignSettings, rejection: str) -> tuple[float, float]:
    """Return the least and the largest ratio of what is kept."""
    key = f"{_RS}_threshold"
    if settings[key] is None:
        raise Refused(key, "it is unset, and rejection needs a bound")
    if rejection.endswith("_k1"):
        low, high = _pair(key, settings[key])
        return 1 / high, high if low is None else 1 / low
    high, given = _pair(key, settings[key])[1], settings.number(f"{key}_lower")
    return (1 / high if given is None else given), high


def _pair(key: str, bound: Any) -> tuple[float | None, float]:
    """Return the bounds of `lower_upper`, or None and the only one."""
    try:
        least, _, most = str(bound).rpartition("_")
        low, high = float(least) if least else None, float(most)
    except ValueError:
        low, high = None, 0.0
    if isinstance(bound, bool) or high <= 0 or (low is not None and not 0 < low <= high):
        raise Refused(key, f"{bound!r} is neither a bound above 0 nor two, as 0.5_2.0")
    return low, high


ENTRIES: Final[tuple[MappingEntry, ...]] = (correction,)

"""TRL's correction of the difference between engines and trainers."""

from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, entry
from longshore_cli.convert.trl.objective import ALGORITHM, is_gspo

_CORRECTION: Final = "vllm_importance_sampling"
_MODES: Final = {
    "sequence_mask": ("Sequence", "Sequence"), "sequence_truncate": ("Sequence", "None"),
    "token_truncate": ("Token", "None"), "token_mask": ("Token", "Token"),
}  # fmt: skip
_NO_CAP: Final = 1e6
"""The largest bound that a job takes."""


@entry([f"{_CORRECTION}_correction", f"{_CORRECTION}_mode", f"{_CORRECTION}_clip_max", f"{_CORRECTION}_cap",
        f"{_CORRECTION}_clip_min"],
       [f"{ALGORITHM}.rolloutCorrection"],
       "without the correction `{rolloutIs: None, rolloutRs: None}`: the clip compares with the trainer's own old "
       "log-probabilities, as in TRL; GSPO does so without the field",
       vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask",
       vllm_importance_sampling_clip_max=3.0)  # fmt: skip
def correction(settings: ForeignSettings) -> EntryOutcome:
    key, low = f"{_CORRECTION}_mode", settings.number(f"{_CORRECTION}_clip_min")
    if not settings.flag(f"{_CORRECTION}_correction"):
        fields = {f"{ALGORITHM}.rolloutCorrection": {"rolloutIs": "None", "rolloutRs": "None"}}
        return EntryOutcome({} if is_gspo(settings) else fields)
    if settings.text(key) not in _MODES:
        raise Refused(key, f"{settings[key]} is not available; choose one of {', '.join(_MODES)}")
    weights, rejection = _MODES[str(settings[key])]
    cap = settings.number(f"{_CORRECTION}_cap") or settings.number(f"{_CORRECTION}_clip_max")
    if cap is None and rejection == "None":
        raise Refused(f"{_CORRECTION}_clip_max", "it is unset, and weights need a largest value")
    cap = _NO_CAP if cap is None else cap
    bounds = {"rolloutIsThreshold": cap, "rolloutRsThreshold": cap}
    lost = {}
    if low is not None and rejection != "None":
        bounds["rolloutRsThresholdLower"] = low
    elif low is not None:
        lost[f"{_CORRECTION}_clip_min"] = "truncated weights have no least value"
    look = (f"Look at {ALGORITHM}.rolloutCorrection: {key} is unset, so responses whose weight is above {cap:g} are "
            "left out, as in TRL; older versions cut weights of tokens.")  # fmt: skip
    if is_gspo(settings) and weights == "Token":
        lost[key] = "a weight is for the gradient of its own token, and in TRL all of a response have its mean weight"
    return EntryOutcome(
        {f"{ALGORITHM}.rolloutCorrection": {"rolloutIs": weights, "rolloutRs": rejection} | bounds},
        lost,
        to_do=() if settings.given.get(key) else (look,),
    )


ENTRIES: Final[tuple[MappingEntry, ...]] = (correction,)

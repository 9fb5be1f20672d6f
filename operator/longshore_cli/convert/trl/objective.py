"""TRL's objective and batch."""

import math
from typing import Any, Final

from longshore.api.objectives.advantages import OF_WHOLE_BATCH
from longshore.api.objectives.registry import OBJECTIVES
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry

ALGORITHM: Final = "spec.algorithm"
OBJECTIVE: Final = f"{ALGORITHM}.objective"


def num_processes(settings: ForeignSettings) -> int:
    """Return the number of processes, which have a GPU each."""
    why = "the batch of TRL is per process: add num_processes=N, the number that `accelerate launch` starts"
    return settings.wanted("num_processes", why)


@entry(["per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
        "num_generations"],
       [f"{ALGORITHM}.promptsPerStep", f"{ALGORITHM}.promptsPerUpdate", f"{ALGORITHM}.responsesPerPrompt"],
       "a step is one generation batch, an update one accumulated batch, both in prompts; several generations for one "
       "update are one step",
       per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=8)  # fmt: skip
def batch(settings: ForeignSettings) -> EntryOutcome:
    responses = settings.wanted("num_generations", "a prompt needs responses")
    update, generation = _batches(settings)
    for key, samples in (("gradient_accumulation_steps", update), ("generation_batch_size", generation)):
        if samples % responses:
            raise Refused(key, f"it gives {samples} responses, which are no whole groups of {responses}")
    fields = {f"{ALGORITHM}.promptsPerStep": generation // responses, f"{ALGORITHM}.responsesPerPrompt": responses}
    return EntryOutcome(
        fields if update == generation else fields | {f"{ALGORITHM}.promptsPerUpdate": update // responses}
    )


def _batches(settings: ForeignSettings) -> tuple[int, int]:
    """Return the responses of an update, and of a generation."""
    per_device = settings.wanted("per_device_train_batch_size", "a process needs a batch") * num_processes(settings)
    accumulated = settings.wanted("gradient_accumulation_steps", "an update needs a batch")
    whole, num_steps = settings.count("generation_batch_size"), settings.count("steps_per_generation")
    generation = whole or per_device * (num_steps or accumulated)
    update = per_device * accumulated
    is_used_once = settings.count("num_iterations") in (None, 1) and not _normalises_by_batch(settings)
    if is_used_once and update % generation == 0:
        return update, update  # All of them sample with the same weights.
    if generation % update:
        key = "generation_batch_size" if whole else "steps_per_generation"
        raise Refused(key, f"a generation of {generation} responses is no multiple of an update of {update}")
    return update, generation


def _normalises_by_batch(settings: ForeignSettings) -> bool:
    by_function = settings.text("multi_objective_aggregation") == "normalize_then_sum"
    return by_function or settings["scale_rewards"] == "batch"


def updates_per_step(settings: ForeignSettings) -> int:
    """Return the optimizer updates that one generation is used for."""
    update, generation = _batches(settings)
    return generation // update * (settings.count("num_iterations") or 1)


@entry(["max_steps", "num_train_epochs", "num_rows"], [f"{ALGORITHM}.steps"],
       "TRL counts optimizer updates, Longshore generations. Without `max_steps`, epochs of whole batches need "
       "`num_rows=N`, the size of the data", num_train_epochs=3)  # fmt: skip
def steps(settings: ForeignSettings) -> EntryOutcome:
    updates, rows = settings.count("max_steps"), settings.count("num_rows")
    if updates is not None:
        return EntryOutcome({f"{ALGORITHM}.steps": math.ceil(updates / updates_per_step(settings))})
    epochs = settings.number("num_train_epochs") or 0
    if rows is None:
        why = f"it is unset, and {epochs:g} epochs are a number of steps only with the size of the data: add num_rows=N"
        raise Missing("max_steps", why)
    prompts = batch.convert(settings).fields[f"{ALGORITHM}.promptsPerStep"]
    return EntryOutcome({f"{ALGORITHM}.steps": math.ceil(epochs * (rows // prompts))})


def num_updates(settings: ForeignSettings, number: float) -> int:
    """Return a number of updates, which below 1 is given as a share of all of them."""
    if number >= 1:
        return int(number)
    num_steps: int = steps.convert(settings).fields[f"{ALGORITHM}.steps"]
    return math.ceil(number * num_steps * updates_per_step(settings))


_LOSSES: Final = {
    "dapo": ("GRPO", "TokenMean"), "bnpo": ("GRPO", "TokenMean"), "grpo": ("GRPO", "SequenceMean"),
    "dr_grpo": ("GRPO", "ConstantLength"), "luspo": ("GRPO", "SequenceSum"), "cispo": ("CISPO", "TokenMean"),
    "sapo": ("SAPO", "SequenceMean"), "vespo": ("VESPO", "TokenMean"),
}  # fmt: skip
"""Name and aggregation by loss_type; with ratios of responses, GRPO is GSPO."""
_SCALES: Final = {"group": "Normalised", "batch": "NormalisedByBatch", "none": "Centred"}
_SHARES: Final = (
    "where a generation is for several updates, TRL divides each by their mean number of tokens, and a job by its own"
)
_LOCAL: Final = (
    "token losses are averaged over all tokens of the update, and in TRL over those of each batch of a device"
)


@entry(["loss_type", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation"],
       [f"{OBJECTIVE}.name", f"{OBJECTIVE}.advantage", f"{OBJECTIVE}.aggregation", f"{OBJECTIVE}.advantageEpsilon"],
       "`cispo`, `sapo` and `vespo` are the names; others are GRPO, with `importance_sampling_level: sequence` GSPO, "
       "and `dr_grpo` with `scale_rewards: none` DrGRPO, with the aggregation of `loss_type`. `scale_rewards` and "
       "`multi_objective_aggregation` are `advantage`. 0.0001 is added to deviations, as in TRL",
       loss_type="dapo", importance_sampling_level="token", scale_rewards="group",
       multi_objective_aggregation="sum_then_normalize")  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    loss, scaling = settings.text("loss_type"), settings["scale_rewards"]
    if isinstance(scaling, bool):
        scaling = "group" if scaling else "none"
    if loss not in _LOSSES:
        raise Refused("loss_type", f"{loss} is not available; choose one of {', '.join(_LOSSES)}")
    if scaling not in _SCALES:
        raise Refused("scale_rewards", f"{scaling} is not available; choose one of {', '.join(_SCALES)}")
    name, aggregation = _LOSSES[loss]
    if settings.text("importance_sampling_level") == "sequence" and name != "GRPO":
        raise Refused("importance_sampling_level", f"weights of {loss} are those of tokens: set it to token")
    if is_gspo(settings):
        name = "GSPO"
    advantage, lost, (update, generation) = _SCALES[scaling], {}, _batches(settings)
    if settings.text("multi_objective_aggregation") == "normalize_then_sum":
        advantage = "NormalisedByFunction"
    if advantage in OF_WHOLE_BATCH and update != generation:
        key = "scale_rewards" if advantage == "NormalisedByBatch" else "multi_objective_aggregation"
        lost[key] = f"{advantage} needs the whole batch, and makes one update of a generation"
        advantage = "Normalised"
    if name == "GRPO" and (aggregation, advantage) == ("ConstantLength", "Centred"):
        name = "DrGRPO"
    unset = "" if "loss_type" in settings.given else f" = {loss} (by default)"
    if loss == "bnpo":
        lost["loss_type"] = _LOCAL
    if aggregation == "TokenMean" and loss != "bnpo" and update != generation:
        lost[f"loss_type{unset}"] = _SHARES
    fields: dict[str, Any] = {f"{OBJECTIVE}.name": name}
    if advantage != OBJECTIVES[name].advantage:
        fields[f"{OBJECTIVE}.advantage"] = advantage
    if aggregation != OBJECTIVES[name].aggregation:
        fields[f"{OBJECTIVE}.aggregation"] = aggregation
    if advantage != "Centred":
        fields[f"{OBJECTIVE}.advantageEpsilon"] = 1e-4
    return EntryOutcome(fields, lost)


def is_gspo(settings: ForeignSettings) -> bool:
    """Return whether ratios are those of responses."""
    of_responses = settings.text("importance_sampling_level") == "sequence"
    return of_responses and _LOSSES.get(settings.text("loss_type") or "", ("",))[0] == "GRPO"


@entry(["epsilon", "epsilon_high", "delta"],
       [f"{OBJECTIVE}.clipLow", f"{OBJECTIVE}.clipHigh", f"{OBJECTIVE}.dualClip"],
       "with `loss_type: cispo`, `epsilon_high` is the largest weight, which is 1 + `clipHigh`; `delta` is `dualClip`",
       epsilon=0.2)  # fmt: skip
def clipping(settings: ForeignSettings) -> EntryOutcome:
    low, high, loss = settings.number("epsilon"), settings.number("epsilon_high"), settings.text("loss_type")
    if loss in ("sapo", "vespo"):
        return EntryOutcome()
    if loss == "cispo":
        most = (low if high is None else high) or 0.0
        if most <= 1:
            raise Refused("epsilon_high", f"cispo has weights of at most {most:g}, and 1 is on-policy: set it above 1")
        return EntryOutcome({f"{OBJECTIVE}.clipHigh": most - 1.0})
    high = low if high is None else high
    fields, lost, cut = {f"{OBJECTIVE}.clipLow": low, f"{OBJECTIVE}.clipHigh": high}, {}, settings.number("delta")
    if cut is not None and cut > 1 + (high or 0.0):
        fields[f"{OBJECTIVE}.dualClip"] = cut
    elif cut is not None:
        lost["delta"] = "dualClip bounds ratios above 1 + clipHigh alone"
    return EntryOutcome(fields, lost)


_OWN: Final = {
    "sapo_temperature_pos": "temperaturePositive", "sapo_temperature_neg": "temperatureNegative",
    "vespo_k_pos": "kPositive", "vespo_lambda_pos": "lambdaPositive", "vespo_k_neg": "kNegative",
    "vespo_lambda_neg": "lambdaNegative",
}  # fmt: skip


@entry(_OWN, [f"{OBJECTIVE}.{name}" for name in _OWN.values()], "of SAPO and of VESPO")
def own_settings(settings: ForeignSettings) -> EntryOutcome:
    loss = settings.text("loss_type") or ""
    found = {ours: settings.number(theirs) for theirs, ours in _OWN.items() if theirs.startswith(f"{loss}_")}
    return EntryOutcome({f"{OBJECTIVE}.{name}": value for name, value in found.items() if value is not None})


@entry(["beta", "use_bias_correction_kl"], [f"{ALGORITHM}.klCoefficient", f"{ALGORITHM}.klBiasCorrection"],
       "estimated with K3", beta=0.0, use_bias_correction_kl=True)  # fmt: skip
def kl_penalty(settings: ForeignSettings) -> EntryOutcome:
    weight, fields = settings.number("beta") or 0.0, dict[str, Any]()
    if weight and settings.flag("use_bias_correction_kl"):
        fields[f"{ALGORITHM}.klBiasCorrection"] = True
    return EntryOutcome({f"{ALGORITHM}.klCoefficient": weight} | fields)


@entry(["entropy_coef"], [f"{ALGORITHM}.entropyCoefficient"], "averaged as the loss is", entropy_coef=0.0)
def entropy(settings: ForeignSettings) -> EntryOutcome:
    weight = settings.number("entropy_coef") or 0.0
    if not weight:
        return EntryOutcome()
    by_token = _LOSSES.get(settings.text("loss_type") or "", ("", ""))[1] == "TokenMean"
    lost = {} if by_token else {"entropy_coef": "the entropy is averaged as the loss is, and in TRL over all tokens"}
    return EntryOutcome({f"{ALGORITHM}.entropyCoefficient": weight}, lost)


_TEMPERATURE: Final = "generation_kwargs.temperature"


@entry(["temperature", _TEMPERATURE], [f"{ALGORITHM}.temperature"], "`generation_kwargs.temperature` if it is set",
       temperature=1.0)  # fmt: skip
def temperature(settings: ForeignSettings) -> EntryOutcome:
    inner, outer = settings.number(_TEMPERATURE), settings.number("temperature")
    return EntryOutcome({f"{ALGORITHM}.temperature": outer if inner is None else inner})


@entry(["max_completion_length"], [f"{ALGORITHM}.maxResponseTokens"], "", max_completion_length=512)
def response_tokens(settings: ForeignSettings) -> EntryOutcome:
    tokens = settings.wanted("max_completion_length", "responses need a limit")
    look = (f"Look at {ALGORITHM}.maxResponseTokens: max_completion_length is unset, which is {tokens} in TRL, and 256 "
            "in older versions.")  # fmt: skip
    is_default = settings.given.get("max_completion_length") is None
    return EntryOutcome({f"{ALGORITHM}.maxResponseTokens": tokens}, to_do=(look,) if is_default else ())


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    objective,
    steps,
    batch,
    direct("num_iterations", f"{ALGORITHM}.epochsPerStep", default=1),
    response_tokens,
    temperature,
    clipping,
    own_settings,
    kl_penalty,
    entropy,
    direct("seed", f"{ALGORITHM}.seed", default=42),
)

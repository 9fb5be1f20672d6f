"""TRL's objective, batch and optimizer."""

import math
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry

_TO: Final = "spec.algorithm"
_CORRECTION: Final = "vllm_importance_sampling"


def num_processes(settings: ForeignSettings) -> int:
    """Return the number of processes, which have a GPU each."""
    why = "the batch of TRL is per process: add num_processes=N, the number that `accelerate launch` starts"
    return settings.wanted("num_processes", why)


@entry(["per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
        "num_generations"],
       [f"{_TO}.promptsPerStep", f"{_TO}.promptsPerUpdate", f"{_TO}.responsesPerPrompt"],
       "a step is one generation batch, an update one accumulated batch; both in prompts",
       per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=8)  # fmt: skip
def batch(settings: ForeignSettings) -> EntryOutcome:
    responses = settings.wanted("num_generations", "a prompt needs responses")
    update, generation = _batches(settings)
    for key, samples in (("gradient_accumulation_steps", update), ("generation_batch_size", generation)):
        if samples % responses:
            raise Refused(key, f"it gives {samples} responses, which are no whole groups of {responses}")
    fields = {f"{_TO}.promptsPerStep": generation // responses, f"{_TO}.responsesPerPrompt": responses}
    return EntryOutcome(fields if update == generation else fields | {f"{_TO}.promptsPerUpdate": update // responses})


def _batches(settings: ForeignSettings) -> tuple[int, int]:
    """Return the responses of an update, and of a generation."""
    per_device = settings.wanted("per_device_train_batch_size", "a process needs a batch") * num_processes(settings)
    accumulated = settings.wanted("gradient_accumulation_steps", "an update needs a batch")
    whole, num_steps = settings.count("generation_batch_size"), settings.count("steps_per_generation")
    generation = whole or per_device * (num_steps or accumulated)
    update = per_device * accumulated
    if generation % update:
        key = "generation_batch_size" if whole else "steps_per_generation"
        raise Refused(key, f"a generation of {generation} responses is no multiple of an update of {update}")
    return update, generation


def updates_per_step(settings: ForeignSettings) -> int:
    """Return the optimizer updates that one generation is used for."""
    update, generation = _batches(settings)
    return generation // update * (settings.count("num_iterations") or 1)


@entry(["max_steps", "num_train_epochs", "num_rows"], [f"{_TO}.steps"],
       "TRL counts optimizer updates, Longshore generations. Without `max_steps`, epochs need `num_rows=N`, the size "
       "of the data", num_train_epochs=3)  # fmt: skip
def steps(settings: ForeignSettings) -> EntryOutcome:
    updates, rows = settings.count("max_steps"), settings.count("num_rows")
    if updates is not None:
        return EntryOutcome({f"{_TO}.steps": math.ceil(updates / updates_per_step(settings))})
    epochs = settings.number("num_train_epochs") or 0
    if rows is None:
        why = f"it is unset, and {epochs:g} epochs are a number of steps only with the size of the data: add num_rows=N"
        raise Refused("max_steps", why)
    prompts = batch.convert(settings).fields[f"{_TO}.promptsPerStep"]
    return EntryOutcome({f"{_TO}.steps": math.ceil(epochs * rows / prompts)})


def num_updates(settings: ForeignSettings, number: float) -> int:
    """Return a number of updates, which below 1 is given as a share of all of them."""
    if number >= 1:
        return int(number)
    num_steps: int = steps.convert(settings).fields[f"{_TO}.steps"]
    return math.ceil(number * num_steps * updates_per_step(settings))


_LOSSES: Final = {"dapo": "GRPO", "grpo": "GRPO", "bnpo": "GRPO", "dr_grpo": "DrGRPO"}
_TOKENS: Final = "token losses are averaged over all tokens of the update, as loss_type dapo does"


@entry(["loss_type", "importance_sampling_level", "scale_rewards"], [f"{_TO}.name"],
       "`dapo` is GRPO, `dr_grpo` with `scale_rewards: none` DrGRPO, `grpo` with `importance_sampling_level: sequence` "
       "GSPO", loss_type="dapo", importance_sampling_level="token", scale_rewards="group")  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    loss, scaling = settings.text("loss_type"), settings["scale_rewards"]
    if isinstance(scaling, bool):
        scaling = "group" if scaling else "none"
    if loss not in _LOSSES:
        raise Refused("loss_type", f"{loss} is not available; choose one of {', '.join(_LOSSES)}")
    by_sequence = settings.text("importance_sampling_level") == "sequence"
    name = "GSPO" if _is_gspo(settings) else _LOSSES[loss]
    lost = {}
    if loss in ("grpo", "bnpo") and name == "GRPO":
        lost["loss_type"] = _TOKENS
    if by_sequence and name != "GSPO":
        lost["importance_sampling_level"] = f"GSPO is loss_type grpo with this level; with {loss} ratios are of tokens"
    if scaling != (expected := "none" if name == "DrGRPO" else "group"):
        lost["scale_rewards"] = f"{name} scales rewards as {expected!r} does"
    return EntryOutcome({f"{_TO}.name": name}, lost)


def _is_gspo(settings: ForeignSettings) -> bool:
    return (settings.text("loss_type"), settings.text("importance_sampling_level")) == ("grpo", "sequence")


@entry(["epsilon", "epsilon_high"], [f"{_TO}.clipLow", f"{_TO}.clipHigh"], "", epsilon=0.2)
def clipping(settings: ForeignSettings) -> EntryOutcome:
    low, high = settings.number("epsilon"), settings.number("epsilon_high")
    return EntryOutcome({f"{_TO}.clipLow": low, f"{_TO}.clipHigh": low if high is None else high})


@entry(["beta", "use_bias_correction_kl"], [f"{_TO}.klCoefficient"], "estimated with k3", beta=0.0,
       use_bias_correction_kl=True)  # fmt: skip
def kl_penalty(settings: ForeignSettings) -> EntryOutcome:
    weight, key = settings.number("beta") or 0.0, "use_bias_correction_kl"
    lost = {key: "the KL penalty is not multiplied by the ratio"} if weight and settings.flag(key) else {}
    return EntryOutcome({f"{_TO}.klCoefficient": weight}, lost)


_SCHEDULES: Final = {
    "constant": "Constant", "constant_with_warmup": "Constant", "linear": "Linear", "cosine": "Cosine",
    "cosine_with_min_lr": "Cosine",
}  # fmt: skip


@entry(["lr_scheduler_type", "lr_scheduler_kwargs", "lr_scheduler_kwargs.*"],
       [f"{_TO}.learningRateSchedule", f"{_TO}.minLearningRateRatio"], "", lr_scheduler_type="linear")  # fmt: skip
def schedule(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("lr_scheduler_type") or ""
    if name not in _SCHEDULES:
        raise Refused("lr_scheduler_type", f"{name} is not available; choose one of {', '.join(_SCHEDULES)}")
    fields: dict[str, Any] = {f"{_TO}.learningRateSchedule": _SCHEDULES[name]}
    known = "lr_scheduler_kwargs.min_lr_rate"
    if (ratio := settings.number(known)) is not None:
        fields[f"{_TO}.minLearningRateRatio"] = ratio
    others = [key for key in settings.given if key.startswith("lr_scheduler_kwargs") and key != known]
    return EntryOutcome(fields, {key: "only min_lr_rate has a field" for key in others if settings[key]})


@entry(["warmup_steps", "warmup_ratio"], [f"{_TO}.warmupSteps"], "optimizer updates; below 1 a share of all of them")
def warmup(settings: ForeignSettings) -> EntryOutcome:
    number = settings.number("warmup_steps") or settings.number("warmup_ratio") or 0
    return EntryOutcome({f"{_TO}.warmupSteps": num_updates(settings, number) if number > 0 else 0})


_MODES: Final = {
    "sequence_mask": ("Sequence", "Sequence"), "sequence_truncate": ("Sequence", "None"),
    "token_truncate": ("Token", "None"), "token_mask": ("Token", "Token"),
}  # fmt: skip


@entry([f"{_CORRECTION}_correction", f"{_CORRECTION}_mode", f"{_CORRECTION}_clip_max", f"{_CORRECTION}_cap",
        f"{_CORRECTION}_clip_min"],
       [f"{_TO}.rolloutCorrection"],
       "without the correction `{rolloutIs: None, rolloutRs: None}`: the clip compares with the trainer's own old "
       "log-probabilities, as in TRL; GSPO does so without the field",
       vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask",
       vllm_importance_sampling_clip_max=3.0)  # fmt: skip
def correction(settings: ForeignSettings) -> EntryOutcome:
    key, low = f"{_CORRECTION}_mode", settings.number(f"{_CORRECTION}_clip_min")
    if not settings.flag(f"{_CORRECTION}_correction"):
        fields = {f"{_TO}.rolloutCorrection": {"rolloutIs": "None", "rolloutRs": "None"}}
        return EntryOutcome({} if _is_gspo(settings) else fields)
    if settings.text(key) not in _MODES:
        raise Refused(key, f"{settings[key]} is not available; choose one of {', '.join(_MODES)}")
    weights, rejection = _MODES[str(settings[key])]
    cap = settings.number(f"{_CORRECTION}_cap") or settings.number(f"{_CORRECTION}_clip_max")
    if cap is None:
        raise Refused(f"{_CORRECTION}_clip_max", "it is unset, and weights need a largest value")
    bounds = {"rolloutIsThreshold": cap, "rolloutRsThreshold": cap}
    lost = {}
    if low is not None and rejection != "None":
        bounds["rolloutRsThresholdLower"] = low
    elif low is not None:
        lost[f"{_CORRECTION}_clip_min"] = "truncated weights have no least value"
    return EntryOutcome({f"{_TO}.rolloutCorrection": {"rolloutIs": weights, "rolloutRs": rejection} | bounds}, lost)


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    objective,
    steps,
    batch,
    direct("num_iterations", f"{_TO}.epochsPerStep", default=1),
    direct("max_completion_length", f"{_TO}.maxResponseTokens", default=512),
    direct("temperature", f"{_TO}.temperature", default=1.0),
    direct("learning_rate", f"{_TO}.learningRate", default=1e-6),
    schedule,
    warmup,
    direct("weight_decay", f"{_TO}.weightDecay", default=0.0),
    direct("adam_beta1", f"{_TO}.adamBeta1", default=0.9),
    direct("adam_beta2", f"{_TO}.adamBeta2", default=0.999),
    direct("adam_epsilon", f"{_TO}.adamEpsilon", default=1e-8),
    direct("max_grad_norm", f"{_TO}.maxGradNorm", default=1.0),
    clipping,
    kl_penalty,
    correction,
    direct("seed", f"{_TO}.seed", default=42),
)

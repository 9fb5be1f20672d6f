"""TRL's optimizer and its schedule."""

from typing import Any, Final

from longshore_cli.convert import adapters, left_to_do
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry
from longshore_cli.convert.trl.objective import ALGORITHM, num_updates

_SCHEDULES: Final = {
    "constant": "Constant", "constant_with_warmup": "Constant", "linear": "Linear", "cosine": "Cosine",
    "cosine_with_min_lr": "Cosine",
}  # fmt: skip
_RATE: Final = "learning_rate"
_SHARE: Final = "lr_scheduler_kwargs.min_lr_rate"
_LEAST: Final = "lr_scheduler_kwargs.min_lr"


@entry(["lr_scheduler_type", "lr_scheduler_kwargs", "lr_scheduler_kwargs.*"],
       [f"{ALGORITHM}.learningRateSchedule", f"{ALGORITHM}.minLearningRateRatio"],
       "`min_lr_rate`, or `min_lr` as a share of `learning_rate`", lr_scheduler_type="linear")  # fmt: skip
def schedule(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("lr_scheduler_type") or ""
    if name not in _SCHEDULES:
        raise Refused("lr_scheduler_type", f"{name} is not available; choose one of {', '.join(_SCHEDULES)}")
    fields: dict[str, Any] = {f"{ALGORITHM}.learningRateSchedule": _SCHEDULES[name]}
    if (ratio := _least_share(settings)) is not None:
        fields[f"{ALGORITHM}.minLearningRateRatio"] = ratio
    others = [key for key in settings.given if key.startswith("lr_scheduler_kwargs") and key not in (_SHARE, _LEAST)]
    return EntryOutcome(fields, {key: "only min_lr_rate and min_lr have a field" for key in others if settings[key]})


def _least_share(settings: ForeignSettings) -> float | None:
    """Return the least learning rate as a share of the largest."""
    share, least, rate = settings.number(_SHARE), settings.number(_LEAST), settings.number(_RATE)
    return least / rate if share is None and least is not None and rate else share


@entry(["warmup_steps", "warmup_ratio"], [f"{ALGORITHM}.warmupSteps"],
       "optimizer updates; below 1 a share of all of them. `constant` has none, as in TRL")  # fmt: skip
def warmup(settings: ForeignSettings) -> EntryOutcome:
    if settings.text("lr_scheduler_type") == "constant":
        return EntryOutcome({f"{ALGORITHM}.warmupSteps": 0})
    number = settings.number("warmup_steps") or settings.number("warmup_ratio") or 0
    return EntryOutcome({f"{ALGORITHM}.warmupSteps": num_updates(settings, number) if number > 0 else 0})


@entry(["weight_decay"], [f"{ALGORITHM}.weightDecay"], "of every parameter; TRL leaves out biases and norms",
       weight_decay=0.0)  # fmt: skip
def weight_decay(settings: ForeignSettings) -> EntryOutcome:
    return left_to_do.weight_decay(settings.number("weight_decay") or 0.0, "TRL")


_NO_CLIP: Final = 1e6
"""The largest norm that a job takes."""


@entry(["max_grad_norm"], [f"{ALGORITHM}.maxGradNorm"], "0, which does not clip: as large as possible",
       max_grad_norm=1.0)  # fmt: skip
def clipped_norm(settings: ForeignSettings) -> EntryOutcome:
    norm = settings.number("max_grad_norm")
    return EntryOutcome({} if norm is None else {f"{ALGORITHM}.maxGradNorm": norm or _NO_CLIP})


_PEFT: Final = "peft_config"
_UNUSED: Final = ("lora_dropout", "use_dora", "use_rslora")


@entry(
    ["use_peft", _PEFT, f"{_PEFT}.*", "lora_r", "lora_alpha", "lora_target_modules"],
    adapters.FIELDS,
    "without them, every weight is trained; an adapter has no dropout",
    lora_r=16,
    lora_alpha=32,
)
def adapter(settings: ForeignSettings) -> EntryOutcome:
    config = settings.below(_PEFT)
    if config.get("r"):
        lost = {f"{_PEFT}.{name}": "an adapter has none" for name in _UNUSED if config.get(name)}
        targets = config.get("target_modules")
        return adapters.lora(config["r"], config.get("lora_alpha", 8), targets, f"{_PEFT}.target_modules", lost)
    if not config and settings.flag("use_peft"):
        rank, alpha = settings.wanted("lora_r", "an adapter has a rank"), settings.number("lora_alpha") or 32
        lost = {name: "an adapter has none" for name in _UNUSED if settings[name]}
        targets = list(settings.texts("lora_target_modules"))
        return adapters.lora(rank, alpha, targets, "lora_target_modules", lost)
    unknown = [_PEFT, *(f"{_PEFT}.{name}" for name in config)]
    return adapters.no_lora([key for key in unknown if settings.plain(key)], settings[_RATE])


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    direct(_RATE, f"{ALGORITHM}.learningRate", default=1e-6),
    schedule,
    warmup,
    weight_decay,
    direct("adam_beta1", f"{ALGORITHM}.adamBeta1", default=0.9),
    direct("adam_beta2", f"{ALGORITHM}.adamBeta2", default=0.999),
    direct("adam_epsilon", f"{ALGORITHM}.adamEpsilon", default=1e-8),
    clipped_norm,
    adapter,
    direct("torch_compile", "spec.trainer.torchCompile", "layer by layer"),
)

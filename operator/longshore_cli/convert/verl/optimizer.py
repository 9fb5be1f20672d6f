"""verl's optimizer and its schedule."""

from typing import Final

from longshore_cli.convert import adapters, left_to_do
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry
from longshore_cli.convert.verl.objective import prompts_per_step, steps
from longshore_cli.convert.verl.sections import ACTOR, ALGORITHM, MODEL, OPTIM
from longshore_cli.convert.verl.trainer import uses_megatron

_RATE: Final = f"{OPTIM}.lr"


@entry(
    [f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio"],
    [f"{ALGORITHM}.warmupSteps"],
    "Longshore counts optimizer updates: verl's steps, times the updates of a step",
)
def warmup(settings: ForeignSettings) -> EntryOutcome:
    num = settings.count(f"{OPTIM}.lr_warmup_steps")
    ratio = settings.number(f"{OPTIM}.lr_warmup_steps_ratio") or 0.0
    if num is None:
        num = int(ratio * steps.convert(settings).fields[f"{ALGORITHM}.steps"]) if ratio else 0
    return EntryOutcome({f"{ALGORITHM}.warmupSteps": num * _updates_per_step(settings)})


def _updates_per_step(settings: ForeignSettings) -> int:
    prompts = prompts_per_step(settings)
    per_update = settings.wanted(f"{ACTOR}.ppo_mini_batch_size", "an update needs prompts")
    return max(1, prompts // per_update) * (settings.count(f"{ACTOR}.ppo_epochs") or 1)


_SCHEDULES: Final = {"constant": "Constant", "cosine": "Cosine", "linear": "Linear"}


@entry(
    [f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.warmup_style", f"{OPTIM}.lr_decay_style", f"{OPTIM}.min_lr_ratio",
     f"{OPTIM}.min_lr"],
    [f"{ALGORITHM}.learningRateSchedule", f"{ALGORITHM}.minLearningRateRatio"],
    "`warmup_style` is an older name; `lr_decay_style` and `min_lr`, which becomes a share of `lr`, are those of "
    "Megatron",
    actor_rollout_ref__actor__optim__lr_scheduler_type="constant",
)  # fmt: skip
def schedule(settings: ForeignSettings) -> EntryOutcome:
    keys = [f"{OPTIM}.{name}" for name in ("lr_decay_style", "warmup_style", "lr_scheduler_type")]
    key = next((key for key in keys if settings[key]), keys[-1])
    if settings.text(key) not in _SCHEDULES:
        raise Refused(key, f"{settings[key]} is not available; choose one of {', '.join(_SCHEDULES)}")
    name = _SCHEDULES[str(settings[key])]
    ratio = _least_share(settings) if name != "Constant" else 0.0
    fields = {f"{ALGORITHM}.learningRateSchedule": name}
    return EntryOutcome(fields | ({f"{ALGORITHM}.minLearningRateRatio": ratio} if ratio else {}))


def _least_share(settings: ForeignSettings) -> float:
    """Return the least learning rate as a share of the largest."""
    ratio, least = settings.number(f"{OPTIM}.min_lr_ratio"), settings.number(f"{OPTIM}.min_lr")
    rate = settings.number(_RATE)
    return ratio or (least / rate if least and rate else 0.0)


_BETAS: Final = (0.9, 0.999)


@entry(
    [f"{OPTIM}.betas"],
    [f"{ALGORITHM}.adamBeta1", f"{ALGORITHM}.adamBeta2"],
    "",
    actor_rollout_ref__actor__optim__betas=list(_BETAS),
)
def betas(settings: ForeignSettings) -> EntryOutcome:
    key, pair = f"{OPTIM}.betas", settings[f"{OPTIM}.betas"]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise Refused(key, f"{pair!r} are not two numbers")
    used = list(_BETAS) if uses_megatron(settings) else list(pair)
    lost = {} if used == list(pair) else {key: "verl does not pass it on to Megatron, whose Adam has 0.9 and 0.999"}
    return EntryOutcome({f"{ALGORITHM}.adamBeta1": used[0], f"{ALGORITHM}.adamBeta2": used[1]}, lost)


_NORMS: Final = (f"{OPTIM}.grad_clip", f"{OPTIM}.clip_grad", f"{ACTOR}.grad_clip")


@entry(
    _NORMS,
    [f"{ALGORITHM}.maxGradNorm"],
    "the first of them that is set; `grad_clip` is the older name",
)
def clipped_norm(settings: ForeignSettings) -> EntryOutcome:
    norms = {key: norm for key in _NORMS if (norm := settings.number(key)) is not None}
    if not norms:
        return EntryOutcome({f"{ALGORITHM}.maxGradNorm": 1.0})
    first, norm = next(iter(norms.items()))
    lost = {key: f"verl clips by {first}, which is set, too" for key, other in norms.items() if other != norm}
    look = f"Look at {ALGORITHM}.maxGradNorm: older versions of verl clip by {_NORMS[2]}, newer ones by {_NORMS[1]}."
    is_unclear = _NORMS[2] in norms and (first == _NORMS[2] or norms[_NORMS[2]] != norm)
    return EntryOutcome({f"{ALGORITHM}.maxGradNorm": norm}, lost, to_do=(look,) if is_unclear else ())


@entry(
    [f"{OPTIM}.weight_decay"],
    [f"{ALGORITHM}.weightDecay"],
    "of every parameter; verl with Megatron leaves out biases and norms",
    actor_rollout_ref__actor__optim__weight_decay=0.01,
)
def weight_decay(settings: ForeignSettings) -> EntryOutcome:
    exempting = "verl with Megatron" if uses_megatron(settings) else None
    return left_to_do.weight_decay(settings.number(f"{OPTIM}.weight_decay") or 0.0, exempting)


_RANKS: Final = (f"{MODEL}.lora_rank", f"{MODEL}.lora.rank")
_ALPHAS: Final = (f"{MODEL}.lora_alpha", f"{MODEL}.lora.alpha")
_TARGETS: Final = f"{MODEL}.target_modules"
_EXCLUDED: Final = f"{MODEL}.exclude_modules"


@entry(
    [*_RANKS, *_ALPHAS, _TARGETS, _EXCLUDED],
    adapters.FIELDS,
    "rank 0: every weight is trained, and no adapter; so it is with Megatron",
)
def adapter(settings: ForeignSettings) -> EntryOutcome:
    ranks = {key: rank for key in _RANKS if (rank := settings.count(key))}
    if not ranks or uses_megatron(settings):
        return adapters.no_lora(ranks, settings[_RATE])
    alpha = next((alpha for key in _ALPHAS if (alpha := settings.number(key)) is not None), 16)
    lost = {_EXCLUDED: "targetModules names the layers that are adapted"} if settings[_EXCLUDED] else {}
    return adapters.lora(next(iter(ranks.values())), alpha, settings[_TARGETS] or "all-linear", _TARGETS, lost)


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    direct(_RATE, f"{ALGORITHM}.learningRate", default=1e-6),
    schedule,
    warmup,
    betas,
    direct(f"{OPTIM}.eps", f"{ALGORITHM}.adamEpsilon"),
    weight_decay,
    clipped_norm,
    adapter,
)

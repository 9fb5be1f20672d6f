"""verl's objective, batch and optimizer."""

from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry

ACTOR: Final = "actor_rollout_ref.actor"
ROLLOUT: Final = "actor_rollout_ref.rollout"
_OPTIM: Final = f"{ACTOR}.optim"
_CORRECTION: Final = "algorithm.rollout_correction"
_TO: Final = "spec.algorithm"

_ESTIMATORS: Final = {"grpo": "GRPO", "rloo": "RLOO", "reinforce_plus_plus_baseline": "ReinforcePlusPlus"}
_AGGREGATIONS: Final = {
    "GRPO": "token-mean", "GSPO": "seq-mean-token-mean", "DrGRPO": "seq-mean-token-sum-norm",
    "RLOO": "seq-mean-token-sum", "ReinforcePlusPlus": "token-mean",
}  # fmt: skip
_WITH_CRITIC: Final = "gae"


@entry(
    ["algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", f"{ACTOR}.loss_agg_mode",
     f"{ACTOR}.policy_loss.loss_mode"],
    [f"{_TO}.name"],
    "`grpo` is GRPO, with `loss_mode: gspo` GSPO, and without division by the deviation DrGRPO; `rloo` is RLOO; "
    "`reinforce_plus_plus_baseline` is ReinforcePlusPlus. Each has one way to add up token losses",
    algorithm__adv_estimator=_WITH_CRITIC,
    algorithm__norm_adv_by_std_in_grpo=True,
    actor_rollout_ref__actor__loss_agg_mode="token-mean",
    actor_rollout_ref__actor__policy_loss__loss_mode="vanilla",
)  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    estimator, loss = settings.text("algorithm.adv_estimator"), settings.text(f"{ACTOR}.policy_loss.loss_mode")
    if estimator not in _ESTIMATORS:
        why = "it needs a critic, and there is none" if estimator == _WITH_CRITIC else "it is not available"
        raise Refused("algorithm.adv_estimator", f"{estimator}: {why}; choose one of {', '.join(_ESTIMATORS)}")
    if loss not in ("vanilla", "gspo"):
        raise Refused(f"{ACTOR}.policy_loss.loss_mode", f"{loss} is not available; choose vanilla or gspo")
    name = _ESTIMATORS[estimator]
    if name == "GRPO" and not settings.flag("algorithm.norm_adv_by_std_in_grpo"):
        name = "DrGRPO"
    if loss == "gspo":
        if name != "GRPO":
            raise Refused(f"{ACTOR}.policy_loss.loss_mode", "gspo has the advantages of grpo: set adv_estimator")
        name = "GSPO"
    aggregation, ours = settings.text(f"{ACTOR}.loss_agg_mode"), _AGGREGATIONS[name]
    lost = {} if aggregation == ours else {f"{ACTOR}.loss_agg_mode": f"{name} adds token losses up as {ours} does"}
    return EntryOutcome({f"{_TO}.name": name}, lost)


@entry(
    ["data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"],
    [f"{_TO}.promptsPerStep", f"{_TO}.promptsPerUpdate"],
    "prompts, as in verl; `promptsPerUpdate` only where a step makes several updates",
    data__train_batch_size=1024,
    actor_rollout_ref__actor__ppo_mini_batch_size=256,
)
def batch(settings: ForeignSettings) -> EntryOutcome:
    prompts = settings.wanted("data.train_batch_size", "a step needs prompts")
    per_update = settings.wanted(f"{ACTOR}.ppo_mini_batch_size", "an update needs prompts")
    fields = {f"{_TO}.promptsPerStep": prompts}
    return EntryOutcome(fields if per_update == prompts else fields | {f"{_TO}.promptsPerUpdate": per_update})


@entry(
    ["trainer.total_training_steps", "trainer.total_epochs", "num_rows"],
    [f"{_TO}.steps"],
    "`total_training_steps`, or else epochs times whole batches, for which `num_rows=N` gives the size of the data",
    trainer__total_epochs=30,
)
def steps(settings: ForeignSettings) -> EntryOutcome:
    total, rows = settings.count("trainer.total_training_steps"), settings.count("num_rows")
    if total is not None:
        return EntryOutcome({f"{_TO}.steps": total})
    epochs = settings.wanted("trainer.total_epochs", "a job needs an end")
    if rows is None:
        raise Refused(
            "trainer.total_training_steps",
            f"it is unset, and {epochs} epochs are a number of steps only with the size of the data: add num_rows=N",
        )
    return EntryOutcome(
        {f"{_TO}.steps": epochs * (rows // settings.wanted("data.train_batch_size", "a step needs prompts"))}
    )


@entry(
    [f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"],
    [f"{_TO}.klCoefficient"],
    "the coefficient if the loss is used, else 0; the estimator is `low_var_kl` (k3)",
    actor_rollout_ref__actor__kl_loss_coef=0.001,
    actor_rollout_ref__actor__kl_loss_type="low_var_kl",
)
def kl_loss(settings: ForeignSettings) -> EntryOutcome:
    if not settings.flag(f"{ACTOR}.use_kl_loss"):
        return EntryOutcome({f"{_TO}.klCoefficient": 0.0})
    is_k3 = settings.text(f"{ACTOR}.kl_loss_type") in ("low_var_kl", "k3")
    lost = {} if is_k3 else {f"{ACTOR}.kl_loss_type": "the KL penalty is estimated with k3, or low_var_kl"}
    return EntryOutcome({f"{_TO}.klCoefficient": settings.number(f"{ACTOR}.kl_loss_coef") or 0.0}, lost)


@entry(
    [f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"],
    [f"{_TO}.clipLow", f"{_TO}.clipHigh"],
    "`clip_ratio` counts only where the other two are null, as in verl",
    actor_rollout_ref__actor__clip_ratio=0.2,
)
def clipping(settings: ForeignSettings) -> EntryOutcome:
    given, both = settings.given, settings.number(f"{ACTOR}.clip_ratio")
    ends = {"clipLow": f"{ACTOR}.clip_ratio_low", "clipHigh": f"{ACTOR}.clip_ratio_high"}
    fields = {}
    for name, key in ends.items():
        unset = both if key in given else 0.2
        value = settings.number(key)
        fields[f"{_TO}.{name}"] = unset if value is None else value
    is_used = any(key in given and settings[key] is None for key in ends.values())
    lost = {f"{ACTOR}.clip_ratio": "verl clips by clip_ratio_low and clip_ratio_high, which are 0.2 unless set"}
    return EntryOutcome(fields, {} if is_used or both in (None, *fields.values()) else lost)


@entry(
    [f"{_OPTIM}.lr_warmup_steps", f"{_OPTIM}.lr_warmup_steps_ratio"],
    [f"{_TO}.warmupSteps"],
    "Longshore counts optimizer updates: verl's steps, times the updates of a step",
)
def warmup(settings: ForeignSettings) -> EntryOutcome:
    num = settings.count(f"{_OPTIM}.lr_warmup_steps")
    ratio = settings.number(f"{_OPTIM}.lr_warmup_steps_ratio") or 0.0
    if num is None:
        num = int(ratio * steps.convert(settings).fields[f"{_TO}.steps"]) if ratio else 0
    return EntryOutcome({f"{_TO}.warmupSteps": num * _updates_per_step(settings)})


def _updates_per_step(settings: ForeignSettings) -> int:
    prompts = settings.wanted("data.train_batch_size", "a step needs prompts")
    per_update = settings.wanted(f"{ACTOR}.ppo_mini_batch_size", "an update needs prompts")
    return max(1, prompts // per_update) * (settings.count(f"{ACTOR}.ppo_epochs") or 1)


@entry(
    [f"{_OPTIM}.lr_scheduler_type", f"{_OPTIM}.warmup_style", f"{_OPTIM}.lr_decay_style", f"{_OPTIM}.min_lr_ratio"],
    [f"{_TO}.learningRateSchedule", f"{_TO}.minLearningRateRatio"],
    "`warmup_style` is an older name, and `lr_decay_style` that of Megatron",
    actor_rollout_ref__actor__optim__lr_scheduler_type="constant",
)
def schedule(settings: ForeignSettings) -> EntryOutcome:
    keys = [f"{_OPTIM}.{name}" for name in ("lr_decay_style", "warmup_style", "lr_scheduler_type")]
    key = next((key for key in keys if settings[key]), keys[-1])
    names = {"constant": "Constant", "cosine": "Cosine", "linear": "Linear"}
    if settings.text(key) not in names:
        raise Refused(key, f"{settings[key]} is not available; choose one of {', '.join(names)}")
    ratio = settings.number(f"{_OPTIM}.min_lr_ratio")
    fields = {f"{_TO}.learningRateSchedule": names[str(settings[key])]}
    return EntryOutcome(fields | ({f"{_TO}.minLearningRateRatio": ratio} if ratio else {}))


@entry(
    [f"{_OPTIM}.betas"],
    [f"{_TO}.adamBeta1", f"{_TO}.adamBeta2"],
    "",
    actor_rollout_ref__actor__optim__betas=[0.9, 0.999],
)
def betas(settings: ForeignSettings) -> EntryOutcome:
    pair = settings[f"{_OPTIM}.betas"]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise Refused(f"{_OPTIM}.betas", f"{pair!r} are not two numbers")
    return EntryOutcome({f"{_TO}.adamBeta1": pair[0], f"{_TO}.adamBeta2": pair[1]})


_NORMS: Final = (f"{_OPTIM}.grad_clip", f"{_OPTIM}.clip_grad", f"{ACTOR}.grad_clip")


@entry(
    _NORMS,
    [f"{_TO}.maxGradNorm"],
    "the first of them that is set; `grad_clip` is the older name",
)
def clipped_norm(settings: ForeignSettings) -> EntryOutcome:
    numbers = [settings.number(key) for key in _NORMS]
    return EntryOutcome({f"{_TO}.maxGradNorm": next((one for one in numbers if one is not None), 1.0)})


@entry(
    ["algorithm.filter_groups.enable", "algorithm.filter_groups.metric"],
    [f"{_TO}.dynamicSampling"],
    "groups whose rewards are all equal are replaced",
    algorithm__filter_groups__metric="reward",
)
def dynamic_sampling(settings: ForeignSettings) -> EntryOutcome:
    is_on, metric = settings.flag("algorithm.filter_groups.enable"), settings["algorithm.filter_groups.metric"]
    by_reward = not is_on or metric in (None, "reward", "score", "seq_reward", "seq_final_reward")
    lost = {} if by_reward else {"algorithm.filter_groups.metric": "groups are compared by their rewards"}
    return EntryOutcome({f"{_TO}.dynamicSampling": True} if is_on else {}, lost)


_OVERLONG: Final = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
)


@entry(
    [f"{group}.{name}" for group in _OVERLONG for name in ("enable", "len", "penalty_factor")],
    [f"{_TO}.overlongBufferTokens", f"{_TO}.overlongPenalty"],
    "DAPO's penalty; those of `reward_model` are older names",
)
def overlong(settings: ForeignSettings) -> EntryOutcome:
    for group in _OVERLONG:
        if settings.flag(f"{group}.enable"):
            tokens = settings.wanted(f"{group}.len", "the penalty needs a number of tokens")
            penalty = settings.number(f"{group}.penalty_factor")
            fields = {f"{_TO}.overlongBufferTokens": tokens}
            return EntryOutcome(fields | ({} if penalty is None else {f"{_TO}.overlongPenalty": penalty}))
    return EntryOutcome()


_LEVELS: Final = {None: "None", "token": "Token", "sequence": "Sequence"}
_REJECTIONS: Final = {
    None: "None", "token": "Token", "sequence": "Sequence", "geometric": "Geometric",
    "token_k1": "Token", "seq_sum_k1": "Sequence", "seq_mean_k1": "Geometric",
}  # fmt: skip


@entry(
    [f"{_CORRECTION}.{name}" for name in (
        "bypass_mode", "rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold",
        "rollout_rs_threshold_lower")],
    [f"{_TO}.rolloutCorrection"],
    "verl clips the ratio to the trainer's own old log-probabilities, which is `{rolloutIs: None, rolloutRs: None}`, "
    "and what GSPO does without the field; `bypass_mode: true` leaves the field out, which with GSPO makes no "
    "difference. Bounds of `*_k1` are those of the reciprocal ratio",
    algorithm__rollout_correction__rollout_is_threshold=2.0,
)  # fmt: skip
def correction(settings: ForeignSettings) -> EntryOutcome:
    level, rejection = settings.text(f"{_CORRECTION}.rollout_is"), settings.text(f"{_CORRECTION}.rollout_rs")
    is_gspo = settings.text(f"{ACTOR}.policy_loss.loss_mode") == "gspo"
    if settings.flag(bypass := f"{_CORRECTION}.bypass_mode"):
        rejecting = [key for key in settings.given if key.startswith(f"{_CORRECTION}.rollout_rs")]
        why = "nothing is rejected without rolloutCorrection, which bypass_mode leaves out"
        lost = dict.fromkeys(rejecting, why) if rejection else {}
        own = {bypass: "the ratio of GSPO is relative to the trainer's own log-probabilities, as without bypass_mode"}
        return EntryOutcome({}, lost | (own if is_gspo else {}))
    if level not in _LEVELS:
        raise Refused(f"{_CORRECTION}.rollout_is", f"{level} is not available; choose token or sequence")
    if rejection not in _REJECTIONS:
        raise Refused(f"{_CORRECTION}.rollout_rs", f"{rejection} is not available; choose one *_k1 criterion")
    if is_gspo and level is None and rejection is None:
        return EntryOutcome({})
    fields: dict[str, Any] = {"rolloutIs": _LEVELS[level], "rolloutRs": _REJECTIONS[rejection]}
    if level is not None:
        fields["rolloutIsThreshold"] = settings.number(f"{_CORRECTION}.rollout_is_threshold")
    return EntryOutcome({f"{_TO}.rolloutCorrection": fields | (_bounds(settings, rejection) if rejection else {})})


def _bounds(settings: ForeignSettings, rejection: str) -> dict[str, float]:
    key = f"{_CORRECTION}.rollout_rs_threshold"
    if not rejection.endswith("_k1"):
        lower = settings.number(f"{key}_lower") or 0.0
        return {"rolloutRsThreshold": settings.number(key) or 2.0, "rolloutRsThresholdLower": lower}
    try:
        least, _, most = str(settings[key]).rpartition("_")
        low, high = float(least) if least else 1 / float(most), float(most)
        return {"rolloutRsThreshold": 1 / low, "rolloutRsThresholdLower": 1 / high}
    except (ValueError, ZeroDivisionError) as error:
        raise Refused(key, f"{settings[key]!r} is neither a bound nor two, as 0.5_2.0") from error


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    objective,
    steps,
    batch,
    direct(f"{ROLLOUT}.n", f"{_TO}.responsesPerPrompt", default=1),
    direct(f"{ACTOR}.ppo_epochs", f"{_TO}.epochsPerStep", default=1),
    direct("data.max_response_length", f"{_TO}.maxResponseTokens", default=512),
    direct(f"{ROLLOUT}.temperature", f"{_TO}.temperature", default=1.0),
    direct(f"{_OPTIM}.lr", f"{_TO}.learningRate", default=1e-6),
    schedule,
    warmup,
    betas,
    direct(f"{_OPTIM}.eps", f"{_TO}.adamEpsilon"),
    direct(f"{_OPTIM}.weight_decay", f"{_TO}.weightDecay", default=0.01),
    clipped_norm,
    clipping,
    kl_loss,
    dynamic_sampling,
    overlong,
    correction,
    direct("data.seed", f"{_TO}.seed"),
)

"""verl's objective and batch."""

from typing import Any, Final

from longshore.api.objectives.registry import OBJECTIVES
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry
from longshore_cli.convert.verl.sections import ACTOR, ALGORITHM, IS_TAUGHT, MODEL, OPTIM, ROLLOUT, USES_REWARDS

OBJECTIVE: Final = f"{ALGORITHM}.objective"
_ESTIMATORS: Final = {
    "grpo": "Normalised", "grpo_vectorized": "Normalised", "rloo": "LeaveOneOut", "rloo_vectorized": "LeaveOneOut",
    "opo": "LengthWeighted", "grpo_passk": "PassAtK", "gpg": "Centred", "gdpo": "NormalisedByFunction",
    "reinforce_plus_plus": "Whitened", "reinforce_plus_plus_baseline": "CentredWhitened", "gae": "GAE",
}  # fmt: skip
_LOSSES: Final = {
    "gspo": "GSPO", "cispo": "CISPO", "sapo": "SAPO", "geo_mean": "GMPO", "gpg": "GPG", "dro": "DRO",
    "dppo_tv": "DPPO", "dppo_kl": "DPPO",
}  # fmt: skip
_PLAIN: Final = {
    "Centred": "DrGRPO", "LeaveOneOut": "RLOO", "Whitened": "ReinforcePlusPlus", "CentredWhitened": "ReinforcePlusPlus",
    "GAE": "PPO",
}  # fmt: skip
"""Names of the clipped loss by the advantage; others are GRPO."""
_AGGREGATIONS: Final = {
    "token-mean": "TokenMean", "seq-mean-token-mean": "SequenceMean", "seq-mean-token-sum": "SequenceSum",
    "seq-mean-token-sum-norm": "ConstantLength",
}  # fmt: skip
_BY_RESPONSE: Final = ("SAPO", "GMPO")
"""Losses that verl averages over responses, whatever `loss_agg_mode` is."""
_UNAVAILABLE: Final = {
    "remax": "its baseline is a greedy response, which a round does not sample",
}
_LOST_ESTIMATES: Final = {
    "gpg": "verl multiplies all advantages of a batch by responses / responses whose reward is not 0",
    "gdpo": "verl normalises over the tokens of the batch, and NormalisedByFunction over its responses",
}
_FILTER: Final = "algorithm.filter_groups.enable"
_LOSS: Final = f"{ACTOR}.policy_loss.loss_mode"
_DIVIDES: Final = "algorithm.norm_adv_by_std_in_grpo"
_KL_ESTIMATORS: Final = {"kl": "K1", "k1": "K1", "mse": "K2", "k2": "K2", "low_var_kl": "K3", "k3": "K3"}
_DISPATCH: Final = "data.gen_batch_size"
"""Prompts that verl starts with at a time."""


@entry(
    ["algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", f"{ACTOR}.loss_agg_mode",
     f"{ACTOR}.policy_loss.loss_mode"],
    [f"{OBJECTIVE}.name", f"{OBJECTIVE}.advantage", f"{OBJECTIVE}.aggregation", f"{OBJECTIVE}.divergence"],
    "`loss_mode` is the name: `vanilla` GRPO, DrGRPO, RLOO, ReinforcePlusPlus or PPO, whose advantages are those of "
    "`adv_estimator`, `geo_mean` GMPO, `dppo_tv` and `dppo_kl` DPPO, and others as in verl. `loss_agg_mode` is "
    "`aggregation`. With `distillation.enabled`, the name is Distillation",
    algorithm__adv_estimator="gae",
    algorithm__norm_adv_by_std_in_grpo=True,
    actor_rollout_ref__actor__loss_agg_mode="token-mean",
    actor_rollout_ref__actor__policy_loss__loss_mode="vanilla",
)  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    key, estimator, loss = "algorithm.adv_estimator", settings.text("algorithm.adv_estimator"), settings.text(_LOSS)
    is_taught = settings.flag(IS_TAUGHT)
    if is_taught and not settings.flag(USES_REWARDS):
        estimator, loss = "grpo", "vanilla"  # Rewards are only reported.
    if is_taught and estimator == "gae":
        raise Refused(key, "gae has a critic, which no job has beside a teacher; choose another, such as grpo")
    if is_taught and loss != "vanilla":
        raise Refused(_LOSS, f"{loss} is not available beside a teacher; choose vanilla")
    if estimator not in _ESTIMATORS:
        why = _UNAVAILABLE.get(estimator or "", "it is not available")
        raise Refused(key, f"{estimator}: {why}; choose one of {', '.join(_ESTIMATORS)}")
    if loss != "vanilla" and loss not in _LOSSES:
        raise Refused(_LOSS, f"{loss} is not available; choose vanilla or one of {', '.join(_LOSSES)}")
    if loss != "vanilla" and estimator == "gae":
        raise Refused(_LOSS, f"{loss} has no critic; choose vanilla, or another {key}")
    advantage, lost = _ESTIMATORS[estimator], {}
    if estimator in _LOST_ESTIMATES:
        lost[key] = _LOST_ESTIMATES[estimator]
    if not settings.flag(_DIVIDES) and advantage == "Normalised":
        advantage = "Centred"
    elif not settings.flag(_DIVIDES) and advantage in ("PassAtK", "NormalisedByFunction"):
        lost[_DIVIDES] = f"{advantage} divides by the deviation"
    name = _PLAIN.get(advantage, "GRPO") if loss == "vanilla" else _LOSSES[loss]
    if is_taught:
        name = "Distillation"
    mode = settings.text(f"{ACTOR}.loss_agg_mode")
    if mode not in _AGGREGATIONS:
        raise Refused(f"{ACTOR}.loss_agg_mode", f"{mode} is not available; choose one of {', '.join(_AGGREGATIONS)}")
    aggregation = "SequenceMean" if name in _BY_RESPONSE else _AGGREGATIONS[mode]
    fields = {f"{OBJECTIVE}.name": name}
    if advantage != OBJECTIVES[name].advantage:
        fields[f"{OBJECTIVE}.advantage"] = advantage
    if aggregation != OBJECTIVES[name].aggregation:
        fields[f"{OBJECTIVE}.aggregation"] = aggregation
    if loss == "dppo_kl":
        fields[f"{OBJECTIVE}.divergence"] = "KL"
    return EntryOutcome(fields, lost)


_CRITIC: Final = {
    "algorithm.gamma": "gamma", "algorithm.lam": "gaeLambda", "critic.optim.lr": "valueLearningRate",
    "critic.cliprange_value": "valueClip",
}  # fmt: skip
_ALIKE: Final = {
    "critic.ppo_epochs": f"{ACTOR}.ppo_epochs", "critic.ppo_mini_batch_size": f"{ACTOR}.ppo_mini_batch_size",
    "critic.optim.weight_decay": f"{OPTIM}.weight_decay", "critic.grad_clip": f"{ACTOR}.grad_clip",
    "critic.optim.lr_warmup_steps": f"{OPTIM}.lr_warmup_steps",
    "critic.optim.lr_warmup_steps_ratio": f"{OPTIM}.lr_warmup_steps_ratio",
}  # fmt: skip
"""Settings of the critic that are those of the policy."""
_CRITIC_AGGREGATION: Final = "critic.loss_agg_mode"
_CRITIC_MODEL: Final = "critic.model.path"
_OTHERS: Final = (_CRITIC_AGGREGATION, _CRITIC_MODEL)
_DISCOUNTS: Final = ("algorithm.gamma", "algorithm.lam")


@entry(
    [*_CRITIC, *_ALIKE, *_OTHERS],
    [f"{OBJECTIVE}.{name}" for name in (*_CRITIC.values(), "valueModel")],
    "with `gae`; other settings of the critic are those of the policy",
    algorithm__gamma=1.0,
    algorithm__lam=1.0,
    critic__optim__lr=1e-5,
    critic__cliprange_value=0.5,
)
def critic(settings: ForeignSettings) -> EntryOutcome:
    if objective.convert(settings).fields[f"{OBJECTIVE}.name"] != "PPO":
        discounts = {key for key in _DISCOUNTS if settings.number(key) not in (None, 1)}
        unused = {key for key in settings.given if key.startswith("critic.") and key in (*_CRITIC, *_ALIKE, *_OTHERS)}
        lost = dict.fromkeys(discounts, "advantages belong to whole responses, without discount")
        return EntryOutcome({}, lost | dict.fromkeys(unused, "there is no critic"), beside_learning=frozenset(unused))
    fields = {f"{OBJECTIVE}.{name}": settings[key] for key, name in _CRITIC.items() if settings[key] is not None}
    others = [key for key, policy in _ALIKE.items() if settings[key] not in (None, settings[policy])]
    lost = dict.fromkeys(others, "the critic has this setting of the policy")
    if settings[_CRITIC_AGGREGATION] not in (None, "token-mean"):
        lost[_CRITIC_AGGREGATION] = "the loss of the critic is the mean over tokens"
    path, to_do = settings[_CRITIC_MODEL], tuple[str, ...]()
    if path is not None and path != settings[f"{MODEL}.path"]:
        to_do = (f"Copy {path} into the storage, and set {OBJECTIVE}.valueModel to its directory there.",)
    return EntryOutcome(fields, lost, to_do=to_do)


_DIVISOR: Final = f"{ACTOR}.loss_scale_factor"


@entry([_DIVISOR], [], "aggregation ConstantLength divides by `maxResponseTokens`; others have no such number")
def divisor(settings: ForeignSettings) -> EntryOutcome:
    tokens = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    if settings.text(f"{ACTOR}.loss_agg_mode") != "seq-mean-token-sum-norm" or settings.number(_DIVISOR) == tokens:
        return EntryOutcome()
    if settings.number(_DIVISOR) is not None:
        return EntryOutcome(lost={_DIVISOR: "ConstantLength divides by algorithm.maxResponseTokens"})
    why = "ConstantLength divides by maxResponseTokens; newer versions of verl by the longest response of a micro-batch"
    return EntryOutcome(lost={f"{_DIVISOR} = null (by default)": why})


_BATCH: Final = "data.train_batch_size"
_ASYNC: Final = ("require_batches", "trigger_parameter_sync_step")


def prompts_per_step(settings: ForeignSettings) -> int:
    """Return the prompts of a step; fully asynchronous training has none."""
    if settings.number(_BATCH) != 0:
        return settings.wanted(_BATCH, "a step needs prompts")
    prompts = settings.wanted(f"{ACTOR}.ppo_mini_batch_size", "an update needs prompts")
    for name, default in zip(_ASYNC, (1, 4), strict=True):
        prompts *= settings.count(f"async_training.{name}") or default
    raise Missing(
        _BATCH,
        "0 belongs to fully asynchronous training of verl, where engines never wait, and a job has rounds: give the "
        f"prompts between two transfers of weights, here {_BATCH}={prompts} (ppo_mini_batch_size * "
        f"{' * '.join(_ASYNC)})",
    )


@entry(
    ["data.train_batch_size", "data.gen_batch_size", f"{ACTOR}.ppo_mini_batch_size"],
    [f"{ALGORITHM}.promptsPerStep", f"{ALGORITHM}.promptsPerUpdate"],
    "prompts, as in verl; `promptsPerUpdate` only where a step makes several updates",
    data__train_batch_size=1024,
    actor_rollout_ref__actor__ppo_mini_batch_size=256,
)
def batch(settings: ForeignSettings) -> EntryOutcome:
    prompts = prompts_per_step(settings)
    per_update = settings.wanted(f"{ACTOR}.ppo_mini_batch_size", "an update needs prompts")
    fields = {f"{ALGORITHM}.promptsPerStep": prompts}
    if per_update != prompts:
        fields |= {f"{ALGORITHM}.promptsPerUpdate": per_update}
    if settings.count(_DISPATCH) in (None, prompts):
        return EntryOutcome(fields)
    if settings.flag(_FILTER):
        why = "rollout.strategy decides how many prompts a round starts"
        return EntryOutcome(fields, {_DISPATCH: why}, beside_learning=frozenset({_DISPATCH}))
    return EntryOutcome(fields, {_DISPATCH: "a step has data.train_batch_size prompts; older versions take these"})


@entry(
    ["trainer.total_training_steps", "trainer.total_epochs", "num_rows", "rollout.total_rollout_steps"],
    [f"{ALGORITHM}.steps"],
    "`total_training_steps`, or else `total_rollout_steps` prompts of fully asynchronous training, or else epochs "
    "times whole batches, for which `num_rows=N` gives the size of the data",
    trainer__total_epochs=30,
)
def steps(settings: ForeignSettings) -> EntryOutcome:
    total, rows = settings.count("trainer.total_training_steps"), settings.count("num_rows")
    epochs = settings.wanted("trainer.total_epochs", "a job needs an end")
    if total is not None:
        return EntryOutcome({f"{ALGORITHM}.steps": total}, to_do=_until(settings, total, epochs, rows))
    if (sampled := settings.count("rollout.total_rollout_steps")) is not None:
        return EntryOutcome({f"{ALGORITHM}.steps": max(1, sampled // prompts_per_step(settings))})
    if rows is None:
        raise Missing(
            "trainer.total_training_steps",
            f"it is unset, and {epochs} epochs are a number of steps only with the size of the data: add num_rows=N",
        )
    return EntryOutcome({f"{ALGORITHM}.steps": epochs * (rows // prompts_per_step(settings))})


_RESPONSE: Final = "data.max_response_length"
_SAMPLED: Final = f"{ROLLOUT}.response_length"
"""Usually a reference to the first."""


@entry(
    [_RESPONSE, _SAMPLED],
    [f"{ALGORITHM}.maxResponseTokens"],
    "`response_length` if it is set, since engines sample up to it",
    data__max_response_length=512,
)
def response_tokens(settings: ForeignSettings) -> EntryOutcome:
    key = _SAMPLED if settings.given.get(_SAMPLED) is not None else _RESPONSE
    tokens = settings.wanted(key, "responses need a limit")
    is_other = _RESPONSE in settings.given and settings[_RESPONSE] != tokens
    lost = {_RESPONSE: f"verl's engines sample up to {_SAMPLED}"} if is_other else {}
    return EntryOutcome({f"{ALGORITHM}.maxResponseTokens": tokens}, lost)


def _until(settings: ForeignSettings, total: int, epochs: int, rows: int | None) -> tuple[str, ...]:
    """Return what is left to do where verl may end earlier than after all steps: it ends with its epochs, too."""
    prompts = prompts_per_step(settings)
    most = None if rows is None else epochs * (rows // prompts)
    if "trainer.total_epochs" not in settings.given or (most is not None and most >= total):
        return ()
    ends = f"after {most}" if most is not None else f"if {epochs} epochs are fewer"
    return (f"Look at {ALGORITHM}.steps, {total}: verl ends {ends}.",)


@entry(
    [f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"],
    [f"{ALGORITHM}.klCoefficient", f"{ALGORITHM}.klEstimator"],
    "the coefficient if the loss is used, else 0; `low_var_kl` is K3, `kl` K1, `mse` K2, and what ends with `+` has "
    "the gradient of K2",
    actor_rollout_ref__actor__kl_loss_coef=0.001,
    actor_rollout_ref__actor__kl_loss_type="low_var_kl",
)
def kl_loss(settings: ForeignSettings) -> EntryOutcome:
    if not settings.flag(f"{ACTOR}.use_kl_loss"):
        return EntryOutcome({f"{ALGORITHM}.klCoefficient": 0.0})
    kind = settings.text(f"{ACTOR}.kl_loss_type") or ""
    estimator = "K2" if kind.endswith("+") else _KL_ESTIMATORS.get(kind)
    lost = (
        {} if estimator else {f"{ACTOR}.kl_loss_type": f"{kind} is not available; the KL penalty is estimated with K3"}
    )
    fields: dict[str, Any] = {f"{ALGORITHM}.klCoefficient": settings.number(f"{ACTOR}.kl_loss_coef") or 0.0}
    if estimator not in (None, "K3"):
        fields[f"{ALGORITHM}.klEstimator"] = estimator
    return EntryOutcome(fields, lost)


_ENDS: Final = {"Low": f"{ACTOR}.clip_ratio_low", "High": f"{ACTOR}.clip_ratio_high"}
_CUT: Final = f"{ACTOR}.clip_ratio_c"


@entry(
    [f"{ACTOR}.clip_ratio", *_ENDS.values(), _CUT],
    [f"{OBJECTIVE}.clipLow", f"{OBJECTIVE}.clipHigh", f"{OBJECTIVE}.dualClip", f"{OBJECTIVE}.divergenceLow",
     f"{OBJECTIVE}.divergenceHigh", f"{OBJECTIVE}.maxRatio"],
    "`clip_ratio` counts only where the other two are null, as in verl; `clip_ratio_c` is `dualClip`. With DPPO they "
    "are `divergenceLow`, `divergenceHigh` and `maxRatio`",
    actor_rollout_ref__actor__clip_ratio=0.2,
    actor_rollout_ref__actor__clip_ratio_c=3.0,
)  # fmt: skip
def clipping(settings: ForeignSettings) -> EntryOutcome:
    name = objective.convert(settings).fields[f"{OBJECTIVE}.name"]
    given, both = settings.given, settings.number(f"{ACTOR}.clip_ratio")
    if name in ("SAPO", "GPG", "DRO"):
        return EntryOutcome()
    kind, fields = "divergence" if name == "DPPO" else "clip", dict[str, Any]()
    for end, key in _ENDS.items():
        unset = both if key in given else 0.2
        value = settings.number(key)
        fields[f"{OBJECTIVE}.{kind}{end}"] = unset if value is None else value
    is_used = any(key in given and settings[key] is None for key in _ENDS.values())
    lost = {f"{ACTOR}.clip_ratio": "verl clips by clip_ratio_low and clip_ratio_high, which are 0.2 unless set"}
    is_same = f"{ACTOR}.clip_ratio" not in given or both in (None, *fields.values())
    cut = settings.number(_CUT)
    if cut is not None and name == "DPPO":
        fields[f"{OBJECTIVE}.maxRatio"] = cut
    elif cut is not None and settings.text(_LOSS) == "vanilla":
        fields[f"{OBJECTIVE}.dualClip"] = cut
    return EntryOutcome(fields, {} if is_used or is_same else lost)


@entry(
    [f"{ACTOR}.tau_pos", f"{ACTOR}.tau_neg", f"{ACTOR}.policy_loss.dro_beta"],
    [f"{OBJECTIVE}.temperaturePositive", f"{OBJECTIVE}.temperatureNegative", f"{OBJECTIVE}.beta"],
    "of SAPO and of DRO",
)
def own_settings(settings: ForeignSettings) -> EntryOutcome:
    loss = settings.text(_LOSS)
    names = {"sapo": {"tau_pos": "temperaturePositive", "tau_neg": "temperatureNegative"}}.get(loss or "", {})
    if loss == "dro":
        names = {"policy_loss.dro_beta": "beta"}
    found = {f"{OBJECTIVE}.{ours}": settings.number(f"{ACTOR}.{theirs}") for theirs, ours in names.items()}
    return EntryOutcome({name: value for name, value in found.items() if value is not None})


@entry(
    [_FILTER, "algorithm.filter_groups.metric"],
    [f"{ALGORITHM}.dynamicSampling"],
    "groups whose rewards are all equal are replaced",
    algorithm__filter_groups__metric="reward",
)
def dynamic_sampling(settings: ForeignSettings) -> EntryOutcome:
    is_on, metric = settings.flag(_FILTER), settings["algorithm.filter_groups.metric"]
    before_penalty = metric == "score" and overlong.convert(settings).fields
    by_reward = not is_on or (
        metric in (None, "reward", "score", "seq_reward", "seq_final_reward") and not before_penalty
    )
    lost = {} if by_reward else {"algorithm.filter_groups.metric": "groups are compared by their rewards"}
    return EntryOutcome({f"{ALGORITHM}.dynamicSampling": True} if is_on else {}, lost)


REWARD_MANAGERS: Final = ("reward.reward_manager.name", "reward_model.reward_manager", "reward_manager.name")
_REWARD_ARGUMENTS: Final = ("reward.reward_kwargs", "reward_model.reward_kwargs")
_LIMITS: Final = tuple(f"{section}.max_resp_len" for section in _REWARD_ARGUMENTS)
_OVERLONG: Final = (
    *(f"{section}.overlong_buffer_cfg" for section in _REWARD_ARGUMENTS),
    "reward_model.overlong_buffer",
)


@entry(
    [*(f"{group}.{name}" for group in _OVERLONG for name in ("enable", "len", "penalty_factor")), *_LIMITS],
    [f"{ALGORITHM}.overlongBufferTokens", f"{ALGORITHM}.overlongPenalty"],
    "DAPO's penalty, which ends at `maxResponseTokens` as at `max_resp_len`; those of `reward_model` are older names",
)
def overlong(settings: ForeignSettings) -> EntryOutcome:
    group = next((group for group in _OVERLONG if settings.flag(f"{group}.enable")), None)
    if group is None:
        return EntryOutcome()
    manager = next((name for key in REWARD_MANAGERS if (name := settings.plain(key))), None)
    if manager not in (None, "dapo"):
        return EntryOutcome(lost={f"{group}.enable": f"verl's reward manager {manager} has no such penalty, dapo has"})
    tokens = settings.wanted(f"{group}.len", "the penalty needs a number of tokens")
    penalty, most = settings.number(f"{group}.penalty_factor"), response_tokens.convert(settings).fields
    fields: dict[str, float] = {f"{ALGORITHM}.overlongBufferTokens": tokens}
    others = [key for key in _LIMITS if settings[key] not in (None, *most.values())]
    lost = dict.fromkeys(others, "the penalty is largest at algorithm.maxResponseTokens")
    fields |= {} if penalty is None else {f"{ALGORITHM}.overlongPenalty": penalty}
    look = (
        f"Remove {ALGORITHM}.overlongBufferTokens unless verl's reward manager is dapo, which alone has this penalty."
    )
    return EntryOutcome(fields, lost, to_do=(look,) if manager is None else ())


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    objective,
    steps,
    batch,
    direct(f"{ROLLOUT}.n", f"{ALGORITHM}.responsesPerPrompt", default=1),
    direct(f"{ACTOR}.ppo_epochs", f"{ALGORITHM}.epochsPerStep", default=1),
    response_tokens,
    critic,
    divisor,
    direct(f"{ROLLOUT}.temperature", f"{ALGORITHM}.temperature", default=1.0),
    clipping,
    own_settings,
    kl_loss,
    direct(f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropyCoefficient"),
    dynamic_sampling,
    overlong,
    direct("data.seed", f"{ALGORITHM}.seed"),
)

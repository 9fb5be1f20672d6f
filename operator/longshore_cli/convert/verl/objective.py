"""verl's objective and batch."""

from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Missing, Refused, direct, entry
from longshore_cli.convert.verl.sections import ACTOR, ALGORITHM, ROLLOUT

OBJECTIVE: Final = f"{ALGORITHM}.objective"
_ESTIMATORS: Final = {
    "grpo": "GRPO", "grpo_vectorized": "GRPO", "rloo": "RLOO", "rloo_vectorized": "RLOO",
    "reinforce_plus_plus_baseline": "ReinforcePlusPlus",
}  # fmt: skip
_AGGREGATIONS: Final = {
    "GRPO": "token-mean", "CISPO": "token-mean", "GSPO": "seq-mean-token-mean", "DrGRPO": "seq-mean-token-sum-norm",
    "RLOO": "seq-mean-token-sum", "ReinforcePlusPlus": "token-mean",
}  # fmt: skip
_WITH_CRITIC: Final = "gae"
_WHITENING: Final = (
    "ReinforcePlusPlus divides centred rewards by their deviation over responses; verl does so over tokens, where long "
    "responses weigh more, and subtracts their mean"
)
_ALONE: Final = "reinforce_plus_plus"
_FILTER: Final = "algorithm.filter_groups.enable"
_LOSS: Final = f"{ACTOR}.policy_loss.loss_mode"
_DISPATCH: Final = "data.gen_batch_size"
"""Prompts that verl starts with at a time."""


@entry(
    ["algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", f"{ACTOR}.loss_agg_mode",
     f"{ACTOR}.policy_loss.loss_mode"],
    [f"{OBJECTIVE}.name"],
    "`grpo` is GRPO, with `loss_mode: gspo` GSPO, with `cispo` CISPO, and without division by the deviation DrGRPO; "
    "`rloo` is RLOO; `reinforce_plus_plus_baseline`, and with `n: 1` `reinforce_plus_plus`, is ReinforcePlusPlus. "
    "Each has one way to add up token losses",
    algorithm__adv_estimator=_WITH_CRITIC,
    algorithm__norm_adv_by_std_in_grpo=True,
    actor_rollout_ref__actor__loss_agg_mode="token-mean",
    actor_rollout_ref__actor__policy_loss__loss_mode="vanilla",
)  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    estimator, loss = settings.text("algorithm.adv_estimator"), settings.text(f"{ACTOR}.policy_loss.loss_mode")
    if estimator == _ALONE and settings.number(f"{ROLLOUT}.n") == 1:
        estimator = f"{_ALONE}_baseline"  # With one response, both are centred in the batch.
    if estimator == _ALONE:
        why = f"with several responses of a prompt, the baseline is that of the group: choose {_ALONE}_baseline"
        raise Refused("algorithm.adv_estimator", f"{estimator}: {why}")
    if estimator not in _ESTIMATORS:
        why = "it needs a critic, and there is none" if estimator == _WITH_CRITIC else "it is not available"
        raise Refused("algorithm.adv_estimator", f"{estimator}: {why}; choose one of {', '.join(_ESTIMATORS)}")
    if loss not in ("vanilla", "gspo", "cispo"):
        raise Refused(f"{ACTOR}.policy_loss.loss_mode", f"{loss} is not available; choose vanilla, gspo or cispo")
    name = _ESTIMATORS[estimator]
    if name == "GRPO" and not settings.flag("algorithm.norm_adv_by_std_in_grpo"):
        name = "DrGRPO"
    if loss != "vanilla":
        if name != "GRPO":
            key = "algorithm.norm_adv_by_std_in_grpo" if name == "DrGRPO" else "algorithm.adv_estimator"
            raise Refused(key, f"{loss} has the advantages of grpo, divided by their deviation")
        name = loss.upper()
    aggregation, ours = settings.text(f"{ACTOR}.loss_agg_mode"), _AGGREGATIONS[name]
    lost = {} if aggregation == ours else {f"{ACTOR}.loss_agg_mode": f"{name} adds token losses up as {ours} does"}
    if name == "ReinforcePlusPlus":
        lost["algorithm.adv_estimator"] = _WHITENING
    return EntryOutcome({f"{OBJECTIVE}.name": name}, lost)


_DIVISOR: Final = f"{ACTOR}.loss_scale_factor"


@entry([_DIVISOR], [], "DrGRPO divides by `maxResponseTokens`; other objectives have no such number")
def divisor(settings: ForeignSettings) -> EntryOutcome:
    tokens = response_tokens.convert(settings).fields[f"{ALGORITHM}.maxResponseTokens"]
    is_used = objective.convert(settings).fields[f"{OBJECTIVE}.name"] == "DrGRPO"
    if not is_used or settings.number(_DIVISOR) == tokens:
        return EntryOutcome()
    if settings.number(_DIVISOR) is not None:
        return EntryOutcome(lost={_DIVISOR: "DrGRPO divides by algorithm.maxResponseTokens"})
    why = (
        "DrGRPO divides by algorithm.maxResponseTokens; newer versions of verl by the longest response of a micro-batch"
    )
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
    [f"{ALGORITHM}.klCoefficient"],
    "the coefficient if the loss is used, else 0; the estimator is `low_var_kl` (k3)",
    actor_rollout_ref__actor__kl_loss_coef=0.001,
    actor_rollout_ref__actor__kl_loss_type="low_var_kl",
)
def kl_loss(settings: ForeignSettings) -> EntryOutcome:
    if not settings.flag(f"{ACTOR}.use_kl_loss"):
        return EntryOutcome({f"{ALGORITHM}.klCoefficient": 0.0})
    is_k3 = settings.text(f"{ACTOR}.kl_loss_type") in ("low_var_kl", "k3")
    lost = {} if is_k3 else {f"{ACTOR}.kl_loss_type": "the KL penalty is estimated with k3, or low_var_kl"}
    return EntryOutcome({f"{ALGORITHM}.klCoefficient": settings.number(f"{ACTOR}.kl_loss_coef") or 0.0}, lost)


@entry(
    [f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"],
    [f"{OBJECTIVE}.clipLow", f"{OBJECTIVE}.clipHigh"],
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
        fields[f"{OBJECTIVE}.{name}"] = unset if value is None else value
    is_used = any(key in given and settings[key] is None for key in ends.values())
    lost = {f"{ACTOR}.clip_ratio": "verl clips by clip_ratio_low and clip_ratio_high, which are 0.2 unless set"}
    is_same = f"{ACTOR}.clip_ratio" not in given or both in (None, *fields.values())
    return EntryOutcome(fields, {} if is_used or is_same else lost)


_DUAL: Final = f"{ACTOR}.clip_ratio_c"


@entry([_DUAL], [], "there is no dual clip for negative advantages; in verl, GSPO and CISPO have none either")
def dual_clip(settings: ForeignSettings) -> EntryOutcome:
    if settings.text(_LOSS) in ("gspo", "cispo"):
        return EntryOutcome()
    key = _DUAL if settings[_DUAL] is not None else f"{_DUAL} = 3.0 (by default)"
    return EntryOutcome(lost={key: "there is no dual clip for negative advantages"})


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
    divisor,
    direct(f"{ROLLOUT}.temperature", f"{ALGORITHM}.temperature", default=1.0),
    clipping,
    dual_clip,
    kl_loss,
    dynamic_sampling,
    overlong,
    direct("data.seed", f"{ALGORITHM}.seed"),
)

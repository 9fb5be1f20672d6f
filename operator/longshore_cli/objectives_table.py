"""The table of objectives in the reference: one row for each class, and for settings that have a name of their own."""

from typing import Final

from longshore.api.objectives.registry import OBJECTIVES

_TITLES: Final = ("objective", "source", "settings", "also in", "choose it")

_ROWS: Final = (
    ("GRPO", "2402.03300, by token", "", "all", "first"),
    ("GRPO as published", "2402.03300", "`name: GRPO, aggregation: SequenceMean`", "verl, TRL `grpo`", "to compare"),
    ("DAPO", "2503.14476", "", "verl, TRL `dapo`", "where entropy falls early"),
    ("DrGRPO", "2503.20783", "", "verl, TRL `dr_grpo`", "where responses grow without need"),
    ("RLOO", "2402.14740", "", "verl", "for short responses and one update per rollout"),
    ("OPO", "2505.23585", "`name: GRPO, advantage: LengthWeighted`", "verl `opo`", "for lengths that differ much"),
    (
        "pass@k",
        "2503.19595",
        "`name: GRPO, advantage: PassAtK`",
        "verl `grpo_passk`",
        "where one good answer of k counts",
    ),
    (
        "batch-scaled GRPO",
        "2508.08221",
        "`name: GRPO, advantage: NormalisedByBatch`",
        "TRL `scale_rewards: batch`",
        "where groups of nearly equal rewards add noise",
    ),
    (
        "GDPO",
        "2601.05242",
        "`name: GRPO, advantage: NormalisedByFunction`",
        "TRL `normalize_then_sum`, verl `gdpo`",
        "with several reward functions of unlike scales",
    ),
    (
        "ReinforcePlusPlus",
        "2501.03262",
        "`advantage: Whitened`: without baseline",
        "verl `reinforce_plus_plus_baseline`",
        "for few or single responses to a prompt",
    ),
    ("GSPO", "2507.18071", "", "verl, TRL `sequence`", "for models with experts"),
    ("LUSPO", "2602.05261", "`name: GSPO, aggregation: SequenceSum`", "TRL `luspo`", "where GSPO shortens responses"),
    ("GMPO", "2507.20673", "", "verl `geo_mean`, TRL", "where single ratios explode"),
    ("SAPO", "2511.20347", "", "verl, TRL `sapo`", "as GSPO, with a smooth bound by token"),
    ("CISPO", "2506.13585", "", "verl, TRL `cispo`", "for tokens of older weights"),
    (
        "DPPO",
        "2602.04879",
        "",
        "verl `dppo_tv`, `dppo_kl`; prime-rl",
        "for large vocabularies, and rollouts of older weights",
    ),
    ("VESPO", "2602.10693", "", "TRL `vespo`", "for whole responses of older weights"),
    ("GPG", "2504.02546", "", "verl `gpg`", "strictly on-policy"),
    ("DRO", "2405.19107", "`beta`", "verl `dro`", "for data of older weights, without ratios"),
    ("PPO", "1707.06347", "`valueLearningRate`, `valueModel`", "verl, TRL `ppo`", "for long or single responses"),
    ("TPPO", "2506.15050", "the same", "", "with PartialRollout, to learn from responses that go on"),
    ("Distillation", "2306.13649", "`teacher`, `rewardWeight`", "verl, prime-rl", "where a better model is at hand"),
    ("Custom", "", "`importPath`", "", "for a [loss of your own](../how-to/write-an-objective.md)"),
)


def objectives_table() -> list[str]:
    """Return the lines of the table; names of classes are links to their sections."""
    assert OBJECTIVES.keys() <= {name for name, *_ in _ROWS}, "every objective has a row"
    rows = [(_linked(name), *rest) for name, *rest in _ROWS]
    return [f"| {' | '.join(row)} |" for row in (_TITLES, ("---",) * len(_TITLES), *rows)]


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower()})" if name in OBJECTIVES else name

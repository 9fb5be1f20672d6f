"""Adapters (LoRA) of other systems as `spec.trainer.lora`."""

from collections.abc import Collection
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, Refused

_LORA: Final = "spec.trainer.lora"
FIELDS: Final = (f"{_LORA}.rank", f"{_LORA}.alpha", f"{_LORA}.targetModules")
_ALL: Final = "all-linear"
_USUAL_TARGETS: Final = ["q_proj", "v_proj"]
"""Layers that PEFT adapts in most models where nothing is said."""
_GUESSED: Final = (
    f"Look at {_LORA}.targetModules: unset, PEFT adapts q_proj and v_proj of most models, and layers of other names in "
    "some, such as qkv_proj."
)


def lora(rank: int, alpha: float, targets: Any, key: str, lost: dict[str, str] | None = None) -> EntryOutcome:
    """Return the fields of an adapter.

    Args:
        rank: its rank.
        alpha: its scale.
        targets: names of layers, or `all-linear`; empty: those that PEFT chooses.
        key: key of `targets` in messages.
        lost: keys that have no field, with the reason.

    Raises:
        Refused: the targets are a pattern.
    """
    fields: dict[str, Any] = {f"{_LORA}.rank": rank, f"{_LORA}.alpha": alpha}
    if isinstance(targets, str) and not targets.isidentifier() and targets != _ALL:
        raise Refused(key, f"{targets!r} is a pattern; name the layers in a list")
    names = [targets] if isinstance(targets, str) else list(targets or _USUAL_TARGETS)
    if names != [_ALL]:
        fields[f"{_LORA}.targetModules"] = names
    return EntryOutcome(fields, lost or {}, to_do=() if targets else (_GUESSED,))


def no_lora(keys: Collection[str], rate: Any) -> EntryOutcome:
    """Return that the adapter which `keys` ask for is left out; its learning rate `rate` is not one for all weights."""
    look = (
        f"Look at spec.algorithm.learningRate: {rate} was chosen for an adapter, and training of every weight usually "
        "needs about a tenth of it."
    )
    return EntryOutcome(
        lost=dict.fromkeys(keys, "every weight is trained, and no adapter"), to_do=(look,) if keys else ()
    )

"""Adapters (LoRA) of other systems as `spec.trainer.lora`."""

from collections.abc import Collection
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome, Refused

_LORA: Final = "spec.trainer.lora"
FIELDS: Final = (f"{_LORA}.rank", f"{_LORA}.alpha", f"{_LORA}.targetModules")
_ALL: Final = "all-linear"


def lora(rank: int, alpha: float, targets: Any, key: str, lost: dict[str, str] | None = None) -> EntryOutcome:
    """Return the fields of an adapter.

    Args:
        rank: its rank.
        alpha: its scale.
        targets: names of layers, or `all-linear`.
        key: key of `targets` in messages.
        lost: keys that have no field, with the reason.

    Raises:
        Refused: the targets are a pattern.
    """
    fields: dict[str, Any] = {f"{_LORA}.rank": rank, f"{_LORA}.alpha": alpha}
    if isinstance(targets, str) and not targets.isidentifier() and targets != _ALL:
        raise Refused(key, f"{targets!r} is a pattern; name the layers in a list")
    names = [targets] if isinstance(targets, str) else list(targets)
    if names != [_ALL]:
        fields[f"{_LORA}.targetModules"] = names
    return EntryOutcome(fields, lost or {})


def no_lora(keys: Collection[str], rate: Any) -> EntryOutcome:
    """Return that the adapter which `keys` ask for is left out; its learning rate `rate` is not one for all weights."""
    look = (
        f"Look at spec.algorithm.learningRate: {rate} was chosen for an adapter, and training of every weight usually "
        "needs about a tenth of it."
    )
    return EntryOutcome(
        lost=dict.fromkeys(keys, "every weight is trained, and no adapter"), to_do=(look,) if keys else ()
    )

"""Add to a trained model what it needs to be served with the conversations that it was trained on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TEMPLATE: Final = "chat_template.jinja"
_GENERATION: Final = "generation_config.json"


@dataclass(frozen=True)
class TrainedChat:
    """Chat settings of a job that the model's own files do not have."""

    template: str = ""
    """The job's chat template; empty: prompts had that of the tokenizer, or were texts."""
    end_tokens: tuple[int, ...] = ()
    """Tokens that ended responses besides those of the model."""

    def write(self, model: Path) -> None:
        """Add these settings to a Hugging Face directory."""
        if self.template:
            (model / _TEMPLATE).write_text(self.template, encoding="utf-8")
        if self.end_tokens:
            file = model / _GENERATION
            generation = _read(file)
            config = _read(model / "config.json")
            text = config.get("text_config") or {}
            ends = (generation.get("eos_token_id"), config.get("eos_token_id"), text.get("eos_token_id"))
            known = _tokens(next((one for one in ends if one is not None), None))
            if more := [token for token in self.end_tokens if token not in known]:
                wanted = {**generation, "eos_token_id": known + more}
                wanted.pop("_from_model_config", None)  # With it, transformers takes config.json instead.
                file.write_text(json.dumps(wanted, indent=2, ensure_ascii=False), encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}  # It may hold Infinity.
    return found


def _tokens(value: Any) -> list[int]:
    """Return the end tokens of a configuration, which has one, several or none."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]

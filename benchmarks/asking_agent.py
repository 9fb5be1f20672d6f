"""The agent of the benchmark of the gateway, in a module that imports no more than such programs do."""

from collections.abc import Mapping
from typing import Any

from openai import OpenAI


def converse(row: Mapping[str, Any]) -> None:
    """Ask, and ask again."""
    client, messages = OpenAI(), [{"role": "user", "content": "Begin."}]
    for _ in range(row["turns"]):
        reply = client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
        messages.append({"role": "assistant", "content": str(reply.choices[0].message.content)})
        messages.append({"role": "user", "content": "Go on."})

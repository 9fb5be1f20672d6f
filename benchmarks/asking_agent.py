"""The agent of the benchmark of the gateway, in a module that imports no more than such programs do."""

import json
import os
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from openai import OpenAI

Ask = Callable[[list[dict[str, str]]], str]
"""Function that returns what the model says in a conversation."""


def ask_with_openai(base_url: str, key: str) -> Ask:
    """Return a client as most agents have it."""
    client = OpenAI(base_url=base_url, api_key=key)

    def ask(messages: list[dict[str, str]]) -> str:
        reply = client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
        return str(reply.choices[0].message.content)

    return ask


def ask_with_http(base_url: str, key: str) -> Ask:
    """Return a client that costs little."""
    url = urlsplit(base_url)
    connection = HTTPConnection(url.netloc)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(messages: list[dict[str, str]]) -> str:
        body = json.dumps({"model": "any", "messages": messages})
        connection.request("POST", f"{url.path}/chat/completions", body, headers)
        return str(json.load(connection.getresponse())["choices"][0]["message"]["content"])

    return ask


CLIENTS: Final = {"openai": ask_with_openai, "http": ask_with_http}


def converse(row: Mapping[str, Any]) -> None:
    """Ask, and ask again."""
    ask = CLIENTS[row["client"]](os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    messages = [{"role": "user", "content": "Begin."}]
    for _ in range(row["turns"]):
        messages.append({"role": "assistant", "content": ask(messages)})
        messages.append({"role": "user", "content": "Go on."})

"""Agents that users may write: functions and programs that ask the model with the clients of its API."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from openai import APITimeoutError, AsyncOpenAI, BadRequestError, OpenAI

MODEL = "gpt-5"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def answer_once(row: dict[str, Any]) -> float:
    """Ask once, and reward the right answer."""
    reply = OpenAI().chat.completions.create(model=MODEL, messages=[{"role": "user", "content": row["question"]}])
    return float(reply.choices[0].message.content == row["answer"])


async def use_tool(row: dict[str, Any]) -> bool:
    """Run what the model calls until it calls nothing."""
    messages: list[Any] = [{"role": "system", "content": "Add."}, {"role": "user", "content": row["question"]}]
    async with AsyncOpenAI() as client:
        while True:
            reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
            message = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content == row["answer"]
            for call in message.tool_calls:
                given = json.loads(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})


def stream(row: dict[str, Any]) -> float:
    """Read the answer as it comes."""
    messages: Any = [{"role": "user", "content": row["question"]}]
    chunks = OpenAI().chat.completions.create(
        model=MODEL,
        messages=messages,
        stream=True,
        stop=["STOP"],
        max_tokens=40,
        stream_options={"include_usage": True},
    )
    text, tokens = "", 0
    for chunk in chunks:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens += chunk.usage.completion_tokens if chunk.usage else 0
    return float(text == row["answer"] and tokens > 0)


def use_responses(row: dict[str, Any]) -> float:
    """Use the newer API, with a tool."""
    client = OpenAI()
    given: list[Any] = [{"role": "user", "content": row["question"]}]
    tools: Any = [{"type": "function", **ADD["function"]}]  # type: ignore[dict-item]
    first = client.responses.create(model=MODEL, instructions="Add.", input=given, tools=tools)
    given += first.output
    for item in first.output:
        if item.type == "function_call":
            given.append({"type": "function_call_output", "call_id": item.call_id, "output": "5"})
    return float(client.responses.create(model=MODEL, instructions="Add.", input=given, tools=tools).output_text == "5")


def ask_again(row: dict[str, Any]) -> float:
    """Ask the same until the answer is a number, and let a helper of a conversation of its own judge it."""
    client = OpenAI()
    question: Any = [{"role": "user", "content": row["question"]}]
    content = None
    while content is None or not content.isdigit():
        content = client.chat.completions.create(model=MODEL, messages=question).choices[0].message.content
    judge: Any = [{"role": "user", "content": f"Is it {content}?"}]
    verdict = client.chat.completions.create(model=MODEL, messages=judge).choices[0].message.content
    question += [{"role": "assistant", "content": content}, {"role": "user", "content": str(verdict)}]
    last = client.chat.completions.create(model=MODEL, messages=question).choices[0].message.content
    return float(last == "done")


async def ask_at_once(row: dict[str, Any]) -> float:
    """Ask three things at once."""
    async with AsyncOpenAI() as client:

        async def ask(number: int) -> str:
            messages: Any = [{"role": "user", "content": f"{row['question']} {number}"}]
            reply = await client.chat.completions.create(model=MODEL, messages=messages)
            return str(reply.choices[0].message.content)

        return float(len(await asyncio.gather(*map(ask, range(3)))))


def talk_for_ever(row: dict[str, Any]) -> float:
    """Go on until the model answers no more."""
    client, messages = OpenAI(), [{"role": "user", "content": "Say something."}]
    try:
        while True:
            reply = client.chat.completions.create(model=MODEL, messages=messages)  # type: ignore[arg-type]
            messages.append({"role": "assistant", "content": str(reply.choices[0].message.content)})
            messages.append({"role": "user", "content": "And?"})
    except BadRequestError as error:
        assert error.code == "context_length_exceeded"
        return len(messages) / 2


def tell_state(row: dict[str, Any]) -> dict[str, Any]:
    """Ask once, and tell what became of it, as the row says."""
    return {"reward": answer_once(row), **row.get("told", {"state": {"asked": 1}})}


def give_up_waiting(row: dict[str, Any]) -> float:
    """Wait too briefly for an answer, say so, and ask something else."""
    question: Any = [{"role": "user", "content": row["question"]}]
    with suppress(APITimeoutError):
        OpenAI(timeout=0.2, max_retries=0).chat.completions.create(model=MODEL, messages=question)
    Path(row["gave_up"]).touch()
    return answer_once({"question": "Really?", "answer": row["answer"]}) if row["asks_again"] else 0.5


def fail(row: dict[str, Any]) -> None:
    """Ask, and break."""
    answer_once({"question": "?", "answer": ""})
    raise ValueError("no luck")


def spy(row: dict[str, Any]) -> float:
    """Count the ways in which the process of another episode can be reached: its memory, and signals."""
    answer_once(row)
    found = 0
    with suppress(OSError), Path("/proc", row["victim"], "mem").open("rb"):
        found += 1
    with suppress(OSError):
        os.kill(int(row["victim"]), 0)
        found += 1
    return float(found)


def count_imports(row: dict[str, Any]) -> float:
    """Ask, and count the modules of the client that were imported for it."""
    before = set(sys.modules)
    answer_once(row)
    return float(sum(name.startswith("openai.") for name in sys.modules.keys() - before))


def say_nothing(row: dict[str, Any]) -> float:
    """End without asking the model."""
    return 1.0


def hang(row: dict[str, Any]) -> None:
    """Neither ask nor end."""
    asyncio.run(asyncio.Event().wait())


def main() -> None:
    """Ask as a program does, and post the reward."""
    row = json.loads(Path(os.environ["LONGSHORE_ROW"]).read_text(encoding="utf-8"))
    client = OpenAI()
    reward = answer_once(row)
    client.post("/finish", body={"reward": reward, "state": {"right": row["answer"]}}, cast_to=object)


if __name__ == "__main__":
    main()

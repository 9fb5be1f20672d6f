"""Convert rows of a step's samples to groups."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from longshore.page.view import SampleGroup, SampleResponse, SampleTurn

MAX_TEXT_CHARACTERS: Final = 100_000
"""Largest number of characters of a response that are shown."""
MAX_STATE_CHARACTERS: Final = 2_000
"""Largest number of characters of the final state of an episode that are shown; its sample file has all of it."""
MAX_EXCERPT_CHARACTERS: Final = 300
"""Largest number of characters of a prompt in a list."""
HEAD_COLUMNS: Final = (
    "draw", "prompt_index", "domain", "outcome", "prompt", "answer", "response_tokens", "reward",
)  # fmt: skip
"""What a list of groups is made from."""

_BOUNDARY: Final = re.compile(r"\n|<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
"""Ends of lines, and special tokens of chat templates, such as `<|im_start|>` and `[INST]`."""

Row = Mapping[str, Any]


def heads(rows: Iterable[Row]) -> tuple[SampleGroup, ...]:
    """Return the groups of a step without their responses; their prompts and answers are cut."""
    return tuple(
        group.model_copy(
            update={"prompt": group.prompt[:MAX_EXCERPT_CHARACTERS], "answer": group.answer[:MAX_EXCERPT_CHARACTERS]}
        )
        for group in _with_excerpts(_group(draw, own) for draw, own in _by_draw(rows).items())
    )


def groups(rows: Iterable[Row]) -> tuple[SampleGroup, ...]:
    """Return the groups of a step with their responses."""
    return _with_excerpts(
        _group(draw, own, tuple(_response(row) for row in own)) for draw, own in _by_draw(rows).items()
    )


def excerpts(prompts: Sequence[str]) -> list[str]:
    """Return prompts without the begin and the end that all of them share, such as those of a chat template.

    Only whole lines and special tokens are cut off, so that no question loses its first words.
    """
    if len(set(prompts)) < 2:
        return list(prompts)
    start = max((found.end() for found in _BOUNDARY.finditer(_shared_start(prompts))), default=0)
    rests = [prompt[start:] for prompt in prompts]
    shared_end = _shared_start([rest[::-1] for rest in rests])[::-1]
    boundary = _BOUNDARY.search(shared_end)
    num_cut = len(shared_end) - boundary.start() if boundary else 0
    texts = [rest[: len(rest) - num_cut].strip() for rest in rests]
    return [text or prompt for text, prompt in zip(texts, prompts, strict=True)]


def _shared_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    num_shared = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first)
    )
    return first[:num_shared]


def _with_excerpts(found: Iterable[SampleGroup]) -> tuple[SampleGroup, ...]:
    of_step = list(found)
    texts = excerpts([group.prompt for group in of_step])
    return tuple(
        group.model_copy(update={"excerpt": text[:MAX_EXCERPT_CHARACTERS]})
        for group, text in zip(of_step, texts, strict=True)
    )


def within(found: Iterable[SampleGroup], max_characters: int) -> tuple[SampleGroup, ...]:
    """Return the first groups whose texts together have at most this many characters, and at least one, cut to fit."""
    kept: list[SampleGroup] = []
    left = max_characters
    for group in found:
        left -= len(group.prompt) + sum(response.num_characters for response in group.responses)
        if left < 0:
            break
        kept.append(group)
    else:
        return tuple(kept)
    return tuple(kept or [_cut(group, max_characters)])


def _cut(group: SampleGroup, max_characters: int) -> SampleGroup:
    prompt = group.prompt[: max_characters // 2]
    each = (max_characters - len(prompt)) // max(1, len(group.responses))
    return group.model_copy(
        update={"prompt": prompt, "responses": tuple(_cut_response(one, each) for one in group.responses)}
    )


def _cut_response(response: SampleResponse, max_characters: int) -> SampleResponse:
    """Return a response with at most this many characters; of an episode, the first turns are kept.

    The text of an episode repeats its last turn, so it gets what the turns leave, and its final state the rest.
    """
    left, turns = max_characters, []
    for turn in response.turns:
        said = turn.text[:left]
        calls = turn.calls[: left - len(said)]
        left -= len(said) + len(calls)
        turns.append(turn.model_copy(update={"text": said, "calls": calls}))
    text = response.text[:left]
    update = {"text": text, "turns": tuple(turns), "state": response.state[: left - len(text)]}
    cut = response.model_copy(update=update)
    left_out = response.num_characters - cut.num_characters
    return cut.model_copy(update={"left_out_characters": response.left_out_characters + left_out})


def _by_draw(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["draw"], []).append(row)
    return found


def _group(draw: str, rows: Sequence[Row], responses: tuple[SampleResponse, ...] = ()) -> SampleGroup:
    first = rows[0]
    return SampleGroup(
        draw=draw,
        prompt_index=first["prompt_index"],
        domain=first["domain"] or "",
        outcome=first["outcome"],
        prompt=first["prompt"][:MAX_TEXT_CHARACTERS],
        answer=(first["answer"] or "")[:MAX_TEXT_CHARACTERS],
        tokens=tuple(row["response_tokens"] for row in rows),
        scores=tuple(row["reward"] for row in rows),
        responses=responses,
    )


def _response(row: Row) -> SampleResponse:
    whole = SampleResponse(
        index=row["response_index"],
        text=row["response"],
        tokens=row["response_tokens"],
        finish_reason=row["finish_reason"] or "",
        reward=row["reward"],
        penalty=row["penalty"] or 0.0,
        advantage=row["advantage"],
        timed_out=bool(row["timed_out"]),
        rewards={one["function"]: one["reward"] for one in row["rewards"] or ()},
        versions=tuple((one["policy_version"], one["tokens"]) for one in row["versions"] or ()),
        engines=tuple(row["engines"] or ()),
        engine_s=row["engine_s"] or 0.0,
        turns=tuple(
            SampleTurn(
                role=one["role"], text=one["content"], calls=one["tool_calls"] or "", branch=one.get("branch") or 0
            )
            for one in row.get("turns") or ()
        ),
        environment_s=row.get("environment_s"),
        state=(row.get("state") or "")[:MAX_STATE_CHARACTERS],
    )
    return _cut_response(whole, MAX_TEXT_CHARACTERS)

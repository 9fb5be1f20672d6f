"""Rewards as people write them for Longshore."""

import asyncio
from pathlib import Path

limit = asyncio.Semaphore(1)
tasks = set()


def of_cut(prompt, response, answer, is_cut=None):
    return {True: 1.0, False: 0.0}[is_cut]


def of_length(prompt, response, answer):
    return float(len(response))


def of_options(prompt, response, answer, **options):
    """With options of its own, which it passes on."""
    return float(len(options))


async def of_two(prompt, response, answer):
    """Make two questions at once, of which one waits for the semaphore: it then belongs to an event loop."""

    async def ask():
        async with limit:
            await asyncio.sleep(0)
            return float(response == answer)

    return (await asyncio.gather(ask(), ask()))[0]


async def later(prompt, response, answer):
    """Leave a task behind, which writes a file."""

    async def write():
        await asyncio.sleep(0.1)
        await asyncio.to_thread(Path(response).touch)

    tasks.add(asyncio.create_task(write()))
    return 1.0


def of_state(prompt, response, answer, state):
    return 0.0 if state is None else state["score"]


async def of_state_later(prompt, response, answer, *, state=None, is_cut):
    return state["score"] + is_cut

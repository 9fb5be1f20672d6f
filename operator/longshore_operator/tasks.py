"""Running parts of a process together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def until_first_ends(parts: Iterable[Coroutine[Any, Any, object] | asyncio.Task[Any]]) -> None:
    """Run the parts together; when one ends, stop the others and let its error through."""
    tasks = [part if isinstance(part, asyncio.Task) else asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

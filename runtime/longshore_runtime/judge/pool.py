"""A judge that pods of the job serve: each question goes to one of them, and to another where that one fails."""

import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from longshore_runtime.judge.addresses import known
from longshore_runtime.judge.errors import JudgeSetupError, NoReplyYet, NotThere
from longshore_runtime.judge.options import PoolJudgeOptions, RemoteJudgeOptions
from longshore_runtime.judge.remote import RemoteJudge

_CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds to connect: packets to the address of a pod that is gone may vanish without an answer."""
_MAX_ATTEMPTS: Final = 2
"""Number of servers asked in one call, not counting unreachable ones: a slow one costs its time limit."""
_TICK_S: Final = 0.5


class PoolJudge:
    """Implements `models.JudgeModel`. Which server is asked first follows from the question, so load spreads evenly."""

    def __init__(self, options: PoolJudgeOptions) -> None:
        """Keep the options; connects to nothing yet."""
        self._options = options
        self._is_given_up = threading.Event()

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """See `models.JudgeModel`; while no server can be reached, it waits for one."""
        parts: dict[int, list[int]] = {}
        for number, prompt in enumerate(prompts):
            parts.setdefault(zlib.crc32(prompt.encode()) % self._options.num_replicas, []).append(number)
        if not parts:
            return []
        with ThreadPoolExecutor(len(parts)) as executor:
            pending = {
                first: executor.submit(self._ask, first, [prompts[number] for number in numbers], max_tokens)
                for first, numbers in parts.items()
            }
        replies = {
            number: reply
            for first, numbers in parts.items()
            for number, reply in zip(numbers, pending[first].result(), strict=True)
        }
        return [replies[number] for number in range(len(prompts))]

    def give_up(self) -> None:
        """See `WaitingModel`."""
        self._is_given_up.set()

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    def _ask(self, first: int, prompts: Sequence[str], max_tokens: int) -> list[str]:
        deadline_s = time.monotonic() + self._options.wait_s
        while True:
            failures: list[NoReplyYet] = []
            for url in self._urls(first):
                try:
                    return self._server(url).complete(prompts, max_tokens)
                except NotThere:
                    continue
                except (NoReplyYet, JudgeSetupError) as error:
                    # A server that refuses the token of the job is not one of its own: the address has another owner.
                    failures.append(NoReplyYet(str(error)))
                if len(failures) == _MAX_ATTEMPTS:
                    break
            if failures:
                raise failures[-1]
            if time.monotonic() >= deadline_s:
                raise NoReplyYet(f"no pod of the judge could be reached for {self._options.wait_s:g} s")
            if self._is_given_up.wait(_TICK_S):
                raise NoReplyYet("no pod of the judge could be reached before the call was given up")

    def _urls(self, first: int) -> Iterator[str]:
        """Yield the servers that are known now, beginning with the one that is first for the question."""
        options = self._options
        urls = known(options.directory, options.num_replicas, options.attempt)
        for step in range(options.num_replicas):
            if url := urls.get((first + step) % options.num_replicas):
                yield url

    def _server(self, url: str) -> RemoteJudge:
        options = self._options
        return RemoteJudge(
            RemoteJudgeOptions(
                url,
                options.model,
                options.token_file,
                timeout_s=options.timeout_s,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                num_tries=1,
            )
        )

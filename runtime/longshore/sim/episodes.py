"""The environments of a round on the virtual clock: they begin episodes and answer turns, each after a while.

The turns of an episode are alike: each has an equal share of what the environment says and, after it, of what is
sampled. The environment takes as long to begin as for every answer.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.rounds.messages import EpisodeAnswered, EpisodeEnded, EpisodeLength, RoundEvent
from longshore.sim.events import EventQueue
from longshore.sim.lengths import LengthModel


class SimEpisodes:
    """One use per round."""

    def __init__(
        self, lengths: LengthModel, num_places: int | None, queue: EventQueue, tell: Callable[[RoundEvent], None]
    ) -> None:
        """Let environments have `num_places` episodes at once, while the others wait; None: all."""
        self._model = lengths
        self._num_places = num_places
        self._queue = queue
        self._tell = tell
        self._has = cache(lambda draw: lengths.episode(ResponseId(draw, 0)) is not None)
        self._lengths: dict[ResponseId, EpisodeLength] = {}
        """Lengths of all episodes that were launched."""
        self._begun_s: dict[ResponseId, float] = {}
        """When episodes that are not over were launched."""
        self._waiting: dict[ResponseId, None] = {}
        """Those of them that wait for a place, in order."""
        self._num_turns: dict[ResponseId, int] = {}
        """Turns that each of the others has had."""
        self.total_s = 0.0
        """Time from launch to end of all episodes that ended by themselves."""
        self.environments_s = 0.0
        """The part of it in which their environments were at work."""

    def has(self, draw: Draw) -> bool:
        """Return whether responses to a draw are episodes."""
        return self._has(draw)

    def start(self, responses: Sequence[ResponseId]) -> None:
        """Begin episodes, as places become free."""
        self._lengths.update((response, self._length(response)) for response in responses)
        self._begun_s.update(dict.fromkeys(responses, self._queue.now_s))
        self._waiting.update(dict.fromkeys(responses))
        self._fill_places()

    def give_turns(self, responses: Sequence[ResponseId]) -> None:
        """Answer turns."""
        for response in responses:
            self._num_turns[response] += 1
            self._act(response)

    def cancel(self, responses: Sequence[ResponseId]) -> None:
        """Forget episodes that are not needed any more."""
        for response in responses:
            self._begun_s.pop(response, None)
            self._waiting.pop(response, None)
            self._num_turns.pop(response, None)
        self._fill_places()

    def next_turn(self, response: ResponseId) -> tuple[int, int]:
        """Return the tokens that an episode has when its next turn begins, and those at the end of the turn."""
        length, number = self._lengths[response], self._num_turns[response]
        begin, end = (length.num_tokens * one // length.num_turns for one in (number, number + 1))
        return min(begin + length.observed_tokens // length.num_turns, end - 1), end

    def _length(self, response: ResponseId) -> EpisodeLength:
        """Return the length of an episode, none of whose turns is without tokens."""
        num_tokens = self._model.response_tokens(response)
        found = self._model.episode(response) or EpisodeLength(num_tokens, 1, 0.0)
        return found._replace(num_turns=min(found.num_turns, num_tokens))

    def _fill_places(self) -> None:
        while self._waiting and (self._num_places is None or len(self._num_turns) < self._num_places):
            response = next(iter(self._waiting))
            del self._waiting[response]
            self._num_turns[response] = 0
            self._act(response)

    def _act(self, response: ResponseId) -> None:
        length = self._lengths[response]
        answered_s = self._queue.now_s + length.environment_s / (length.num_turns + 1)
        self._queue.at(answered_s, partial(self._answer, response))

    def _answer(self, response: ResponseId) -> None:
        if response not in self._num_turns:
            return  # It was cancelled.
        length = self._lengths[response]
        if self._num_turns[response] < length.num_turns:
            self._tell(EpisodeAnswered(response))
            return
        del self._num_turns[response]
        self.total_s += self._queue.now_s - self._begun_s.pop(response)
        self.environments_s += length.environment_s
        self._fill_places()
        self._tell(EpisodeEnded(response, length, 0))

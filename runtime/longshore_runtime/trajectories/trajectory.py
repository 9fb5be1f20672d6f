"""A trajectory: the tokens of one response as arrays, from the engine to the gradient.

Arrays are read-only, so that everything may share them: a trajectory is never copied to add something to a part of it.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)

TokenIds = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
TokenAdvantages = npt.NDArray[np.float32]
Experts = npt.NDArray[np.unsignedinteger[Any]]
"""Numbers of the experts that tokens pass through, [num_tokens, num_layers, experts per token]; 0 in dense layers."""


class Run(NamedTuple):
    """Consecutive tokens with one origin."""

    policy_version: int | None
    """Version of the weights that sampled the tokens; None: the policy did not sample but observe them."""
    num_tokens: int


class ComparedByValue:
    """Base of dataclasses with arrays, whose own `==` would give an array."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(cast(Any, self)))
        return all(np.array_equal(a, b) if np.ndarray in (type(a), type(b)) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory(ComparedByValue):
    """Everything after the prompt: what the policy sampled, and what it observed in between."""

    tokens: TokenIds
    """Token ids, [num_tokens]."""
    log_probs: LogProbs
    """Log-probabilities, [num_tokens], of the real sampling distribution (temperature applied); 0 if observed."""
    runs: tuple[Run, ...]
    """Origin of the tokens, in their order."""
    experts: Experts | None = None
    """Experts that the engine chose for the token before each token, whose output gave its probabilities. There are
    fewer rows than tokens where the last tokens were observed, because no engine has read them yet. None: the engine
    does not tell, or the model has no experts."""
    prompt_experts: Experts | None = None
    """Experts of all tokens of the prompt but the last, which has the first row of `experts`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", token_ids(self.tokens))
        object.__setattr__(self, "log_probs", log_probs(self.log_probs))
        num_tokens = sum(run.num_tokens for run in self.runs)
        assert len(self.tokens) == len(self.log_probs) == num_tokens, "every token has a log-probability and an origin"
        for name in ("experts", "prompt_experts"):
            if (experts := getattr(self, name)) is not None:
                object.__setattr__(self, name, _read_only(experts, experts.dtype.type))
        assert self.experts is None or len(self.experts) <= num_tokens, "experts belong to tokens"

    @classmethod
    def sampled(cls, policy_version: int, tokens: npt.ArrayLike, log_probs: npt.ArrayLike) -> "Trajectory":
        """Return a trajectory that one version of the weights sampled."""
        ids = token_ids(tokens)
        return cls(ids, _read_only(log_probs, np.float32), (Run(policy_version, len(ids)),) if len(ids) else ())

    @classmethod
    def observed(cls, tokens: npt.ArrayLike) -> "Trajectory":
        """Return a trajectory that nothing sampled: one observation, which may have no token."""
        ids = token_ids(tokens)
        return cls(ids, np.zeros(len(ids), np.float32), (Run(None, len(ids)),))

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, other: "Trajectory") -> "Trajectory":
        """Return this trajectory continued by another, whose experts are not known yet."""
        if not len(self):
            return other
        assert other.experts is None, "an engine tells the experts of all tokens that it reads"
        return replace(
            self,
            tokens=np.concatenate((self.tokens, other.tokens)),
            log_probs=np.concatenate((self.log_probs, other.log_probs)),
            runs=(*self.runs, *other.runs),
        )

    def with_experts(self, rows: Experts, num_prompt_tokens: int) -> "Trajectory":
        """Return the same tokens with the experts of those of prompt and trajectory that have none yet, in order."""
        if self.experts is not None:
            return replace(self, experts=np.concatenate((self.experts, rows)))
        num_before = num_prompt_tokens - 1
        return replace(self, prompt_experts=rows[:num_before], experts=rows[num_before:])

    def first(self, num_tokens: int) -> "Trajectory":
        """Return its beginning, of this many tokens."""
        if not num_tokens:
            return EMPTY
        runs, left = list[Run](), num_tokens
        for version, length in self.runs:
            if left <= 0:
                break
            runs.append(Run(version, min(length, left)))
            left -= length
        experts = None if self.experts is None else self.experts[:num_tokens]
        return replace(
            self,
            tokens=self.tokens[:num_tokens],
            log_probs=self.log_probs[:num_tokens],
            runs=tuple(runs),
            experts=experts,
        )

    @property
    def mask(self) -> Mask:
        """Mask [num_tokens] of the tokens that the policy sampled."""
        is_sampled = np.array([run.policy_version is not None for run in self.runs], np.bool_)
        return np.repeat(is_sampled, [run.num_tokens for run in self.runs])

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(run.num_tokens for run in self.runs if run.policy_version is not None)

    @property
    def turns(self) -> tuple[slice, ...]:
        """Tokens of each turn of the policy, without what it observed before."""
        turns, first, continues = list[slice](), 0, False
        for version, num_tokens in self.runs:
            end = first + num_tokens
            if version is not None:
                turns.append(slice(turns.pop().start if continues else first, end))
            first, continues = end, version is not None
        return tuple(turns)

    @property
    def newest_version(self) -> int | None:
        """Newest version of the weights that sampled a token; None: the policy has sampled nothing."""
        return max((run.policy_version for run in self.runs if run.policy_version is not None), default=None)

    def num_tokens_before(self, policy_version: int) -> int:
        """Return the number of tokens up to the last one that older weights sampled, observed ones included."""
        num_old = end = 0
        for version, num_tokens in self.runs:
            end += num_tokens
            if version is not None and version < policy_version:
                num_old = end
        return num_old

    def copied(self) -> "Trajectory":
        """Return a trajectory with memory of its own, for arrays that lie in Ray's store of objects."""
        experts, prompt_experts = (None if one is None else one.copy() for one in (self.experts, self.prompt_experts))
        return Trajectory(self.tokens.copy(), self.log_probs.copy(), self.runs, experts, prompt_experts)


def token_ids(values: npt.ArrayLike) -> TokenIds:
    """Return token ids as a read-only array; one that has the right type is shared, not copied."""
    return _read_only(values, np.int32)


def joined(first: TokenIds, second: TokenIds) -> TokenIds:
    """Return the tokens of both."""
    return token_ids(np.concatenate((first, second)))


def log_probs(values: npt.ArrayLike) -> LogProbs:
    """Return log-probabilities as a read-only array; one that has the right type is shared, not copied."""
    return _read_only(values, np.float32)


def token_advantages(values: npt.ArrayLike) -> TokenAdvantages:
    """Return advantages as a read-only array; one that has the right type is shared, not copied."""
    return _read_only(values, np.float32)


def mask(values: npt.ArrayLike) -> Mask:
    """Return a mask as a read-only array; one that has the right type is shared, not copied."""
    return _read_only(values, np.bool_)


def _read_only(values: npt.ArrayLike, dtype: type[T]) -> npt.NDArray[T]:
    array = np.asarray(values, dtype)
    if array.flags.writeable:
        array = array.view()  # Whoever gave a writable array keeps it.
        array.flags.writeable = False
    return array


class GrowingExperts:
    """Experts of tokens that an engine reads step by step, in one block of memory."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._like: Experts | None = None
        """An array of the type and shape of the rows."""

    def extend(self, rows: Experts) -> None:
        """Add the rows of further tokens; they are copied, because engines have those of all requests in one array."""
        if self._like is None:
            self._like = np.empty((0, *rows.shape[1:]), rows.dtype)
        self._rows += rows.tobytes()

    @property
    def rows(self) -> Experts | None:
        """All rows so far; None: there were none."""
        if self._like is None:
            return None
        return np.frombuffer(self._rows, self._like.dtype).reshape(-1, *self._like.shape[1:])


EMPTY = Trajectory.sampled(0, (), ())
"""A trajectory without tokens."""

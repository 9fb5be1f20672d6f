"""Calls a reward function of the user as it wants to be called: as Longshore, verl or TRL do."""

import inspect
import json
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any, Final, TypeVar

from longshore.api.reward_kind import Signature
from longshore_runtime.rewards.failure_text import shown
from longshore_runtime.rewards.numbers import is_boolean

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

Sample = Mapping[str, Any]
"""A response to score: prompt, response, answer, is_cut, state as JSON; for verl and TRL also row, reference, messages
and turns."""

_IS_CUT: Final = "is_cut"
_STATE: Final = "state"
"""Names of parameters that functions may have; those of verl find them in `extra_info`. A row may have its own."""
_VERL: Final = ("data_source", "solution_str", "ground_truth", "extra_info")
_NOT_COLUMNS: Final = frozenset({"prompt", "prompts", "completion", "completions", "completion_ids"})
_ENVIRONMENTS: Final = "environments"
"""Argument with which TRL's trainer shows environments to functions."""
_NEVER_GIVEN: Final = ("completion_ids", "prompt_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments that TRL's trainer adds of itself."""


class WrongReward(ValueError):
    """Raised when a function returned what is no reward; the message ends a sentence that begins with its name."""


class EventLoop:
    """The event loop of asynchronous functions, which lives as long as the process, as in TRL and verl.

    A client, lock or semaphore of a module belongs to the loop in which it is first used, and fails in another one.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def result_of(self, returned: Any) -> Any:
        """Return what a function has returned, or the result of it if it is awaitable."""
        if not inspect.isawaitable(returned):
            return returned
        import asyncio  # A tenth of what a scoring process imports, for functions that are rare.

        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_awaited(returned))

    def wait_for(self, call: Callable[[], T]) -> T:
        """Return the result of a call that blocks; meanwhile, tasks that functions have left behind go on."""
        if self._runner is None:
            return call()
        import asyncio

        return self._runner.run(asyncio.to_thread(call))


def caller(function: Callable[..., Any], signature: Signature, loop: EventLoop) -> Callable[[Sample], Any]:
    """Return the function as one of a sample. Asynchronous ones run in the loop.

    Raises:
        ValueError: it cannot be called like this: the end of a sentence that begins with its name.
    """
    match signature:
        case Signature.LONGSHORE:
            _refuse_others(function)
            takes = ("prompt", "response", "answer")
            names = _names(function)
            return lambda sample: loop.result_of(
                function(
                    *(sample[name] for name in takes),
                    **{name: value for name, value in _of_episode(sample).items() if name in names},
                )
            )
        case Signature.VERL:
            _require_verl(function)
            return lambda sample: _plain(loop.result_of(function(**_verl_arguments(sample))), "score")
        case Signature.TRL:
            accepts = _accepted_by_trl(function)
            return lambda sample: _only(loop.result_of(function(**accepts(_trl_arguments(sample)))))


def takes_state(function: Callable[..., Any], signature: Signature) -> bool:
    """Return whether a function has a parameter for the final state of an environment."""
    return signature is not Signature.VERL and _STATE in _names(function)


def _of_episode(sample: Sample) -> dict[str, Any]:
    """Return what functions may ask for besides the row."""
    state = sample[_STATE]
    return {_IS_CUT: sample[_IS_CUT], _STATE: None if state is None else json.loads(state)}


def _refuse_others(function: Callable[..., Any]) -> None:
    """Refuse a function of another system, which would take arguments by position and score nonsense."""
    names = _names(function)
    if {"solution_str", "ground_truth"} <= names:
        raise ValueError("has the parameters of verl's compute_score; set signature to Verl")
    if "completions" in names:
        raise ValueError("has the parameters of TRL's reward functions; set signature to TRL")


def _require_verl(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(**dict.fromkeys(_VERL))
    except TypeError as error:
        raise ValueError(f"does not take {', '.join(_VERL)} ({error}); change it, or set another signature") from error


def _verl_arguments(sample: Sample) -> dict[str, Any]:
    row, given = sample["row"], _of_episode(sample)
    extra = row.get("extra_info")
    if not (isinstance(extra, Mapping) and extra):  # Functions may ask whether there is any.
        extra = {}
        given = {} if given[_STATE] is None else {_STATE: given[_STATE]}
    return {
        "data_source": row.get("data_source") or "",
        "solution_str": sample["response"],
        "ground_truth": sample["reference"],
        "extra_info": {**given, **extra},
    }


def _accepted_by_trl(function: Callable[..., Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Pick the arguments that the function has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    names = {one.name for one in parameters}
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    for one in parameters:
        if one.name == _ENVIRONMENTS and one.default is inspect.Parameter.empty:
            raise ValueError("needs environments, which run elsewhere; take state in its place, which get_state() of "
                             "the environment returns")  # fmt: skip
        if one.name in _NEVER_GIVEN and one.default is inspect.Parameter.empty:
            raise ValueError(f"needs {one.name}, which only TRL's trainer has; give the parameter a default")
    if not takes_all and "completions" not in names:
        raise ValueError("does not take completions; change it, or set another signature")
    return lambda arguments: arguments if takes_all else {k: v for k, v in arguments.items() if k in names}


def _trl_arguments(sample: Sample) -> dict[str, Any]:
    """Return TRL's arguments, which are lists of one; a conversation and its completion are lists of messages."""
    messages, response, turns = sample["messages"], sample["response"], sample["turns"]
    columns = {name: [value] for name, value in sample["row"].items() if name not in _NOT_COLUMNS}
    columns = {name: [value] for name, value in _of_episode(sample).items()} | columns
    if messages:
        said = turns or [{"role": "assistant", "content": response}]
        return {**columns, "prompts": [messages], "completions": [said]}
    return {**columns, "prompts": [sample["prompt"]], "completions": [response]}


def _only(rewards: Any) -> Any:
    """Return the reward of the only completion; in TRL None says that a function has no say about a row."""
    is_list = hasattr(rewards, "__len__") and not isinstance(rewards, str | bytes | Mapping | Set)
    if not is_list or getattr(rewards, "shape", None) == ():  # Arrays without dimensions have no length.
        raise WrongReward(f"returned {shown(rewards)} instead of a list of rewards")
    if len(rewards) != 1:
        raise WrongReward(f"returned {len(rewards)} rewards for one completion")
    return 0.0 if rewards[0] is None else _plain(rewards[0], "reward")


def _plain(reward: Any, key: str) -> Any:
    """Return what `finite_reward` takes out of what these systems also take: verl's dictionaries, and booleans."""
    if isinstance(reward, Mapping):
        if key not in reward:
            raise WrongReward(f"returned {shown(reward)}, a dictionary without {key!r}")
        reward = reward[key]
    return float(reward) if is_boolean(reward) else reward


async def _awaited(result: Any) -> Any:
    return await result


def _names(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()  # Of functions in C nobody knows.

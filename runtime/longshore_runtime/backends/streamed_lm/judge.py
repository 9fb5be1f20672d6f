"""A judge in this process, on a model that shares its GPU with the actor."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from transformers import AutoTokenizer

from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from longshore_runtime.backends.streamed_lm.plan import DecoderShape, DoesNotFit
from longshore_runtime.data.encoding import prompt_encoding
from longshore_runtime.data.turn_end import turn_end
from longshore_runtime.judge.errors import DeviceBroken, JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.judge.options import StreamedJudgeOptions

_TOO_LITTLE_MEMORY: Final = "the GPU has less memory left than judge.gpuMemory reserves"


class StreamedJudge:
    """A judge that replies greedily, as a chat if the tokenizer has a chat template."""

    def __init__(self, options: StreamedJudgeOptions) -> None:
        """Load model and tokenizer; raises JudgeSetupError."""
        self._on_gpu = options.accelerator
        self._timeout_s = options.timeout_s
        device = torch.device("cuda" if options.accelerator else "cpu")
        stream = StreamOptions(reserved_bytes=options.reserved_bytes, max_batch=options.max_batch)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
            self._model: StreamedLM | None = StreamedLM.load(options.model, device, stream)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise JudgeSetupError(f"judge.modelPath: {options.model.name!r} is no usable model ({reason})") from error

    @property
    def shape(self) -> DecoderShape:
        """Sizes of the model."""
        assert self._model is not None, "it was closed"
        return self._model.shape

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str | NoReply]:
        """See `judge.models.JudgeModel`."""
        questions = [self._tokens(prompt) for prompt in prompts]
        with _gpu_errors():
            obstacles = [self._obstacle(len(question), max_tokens) for question in questions]
            possible = [question for question, obstacle in zip(questions, obstacles, strict=True) if obstacle is None]
            replies = iter(self._replies(possible, max_tokens))
        return [next(replies) if obstacle is None else NoReply(obstacle) for obstacle in obstacles]

    def measure(self, question_tokens: int, reply_tokens: int) -> tuple[float, int | None]:
        """Measure the seconds of a question and a reply of such lengths, and the peak of GPU memory in bytes.

        Raises:
            NoReply, NoReplyYet: as `complete` does.
        """
        assert self._model is not None, "it was closed"
        if (obstacle := self._obstacle(question_tokens, reply_tokens)) is not None:
            raise NoReply(obstacle)
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        token = self._tokenizer.eos_token_id or 0
        started_s = time.monotonic()
        try:
            self._model.generate([[token] * question_tokens], reply_tokens, stop=())
        except (DoesNotFit, torch.OutOfMemoryError) as error:
            raise NoReplyYet(_TOO_LITTLE_MEMORY) from error
        elapsed_s = time.monotonic() - started_s
        return elapsed_s, torch.cuda.max_memory_allocated() if self._on_gpu else None

    def close(self) -> None:
        """Free the weights."""
        self._model = None

    def _obstacle(self, question_tokens: int, reply_tokens: int) -> str | None:
        """Return why a question of such a length can have no reply: one sentence."""
        assert self._model is not None, "it was closed"
        limit = self._model.max_context_tokens
        if question_tokens + reply_tokens > limit:
            return (
                f"a question of {question_tokens} tokens and a reply of {reply_tokens} "
                f"exceed the {limit} of the judge's model"
            )
        try:
            self._model.require_room(question_tokens + reply_tokens)
        except DoesNotFit as error:
            return f"{error}: raise judge.gpuMemory"
        return None

    def _replies(self, questions: Sequence[Sequence[int]], max_tokens: int) -> list[str]:
        assert self._model is not None, "it was closed"
        limit_s = math.inf if self._timeout_s is None else self._timeout_s * len(questions)
        try:
            replies = self._model.generate(questions, max_tokens, self._stop, limit_s)
        except TimeoutError as error:
            raise NoReplyYet(f"the judge did not answer within {limit_s:g} s") from error
        return [self._tokenizer.decode(reply, skip_special_tokens=True) for reply in replies]

    @property
    def _stop(self) -> frozenset[int]:
        """Return the tokens that end a reply: the tokenizer's, the chat template's, and those of the model."""
        assert self._model is not None
        return self._model.stop_tokens | {self._tokenizer.eos_token_id, turn_end(None, self._tokenizer)} - {None}

    def _tokens(self, prompt: str) -> list[int]:
        if self._tokenizer.chat_template is None:
            return list(prompt_encoding(self._tokenizer).plain(prompt))
        message = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        chat: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return chat


@contextlib.contextmanager
def _gpu_errors() -> Iterator[None]:
    """Raise NoReplyYet if memory is short, and DeviceBroken after errors that end all use of the GPU."""
    try:
        yield
    except (DoesNotFit, torch.OutOfMemoryError) as error:  # What never fits was refused before.
        raise NoReplyYet(_TOO_LITTLE_MEMORY) from error
    except RuntimeError as error:
        if isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error):
            raise DeviceBroken(f"the judge's GPU failed ({str(error).splitlines()[0]})") from error
        raise

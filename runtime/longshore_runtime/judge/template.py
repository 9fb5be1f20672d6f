"""The question to the judge."""

import string
from typing import Final

PLACEHOLDERS: Final = ("prompt", "response", "answer")


class PromptTemplate:
    """Text with {prompt}, {response} and {answer}; {{ and }} stand for braces."""

    def __init__(self, text: str) -> None:
        """Read the template.

        Raises:
            ValueError: an unknown placeholder or a stray brace, in one sentence that names the field.
        """
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"judge.promptTemplate: {error}; write {{{{ and }}}} for braces") from error
        fields = [(name, spec, conversion) for _, name, spec, conversion in parts if name is not None]
        for name, spec, conversion in fields:
            if name not in PLACEHOLDERS or spec or conversion:
                raise ValueError(
                    f"judge.promptTemplate: {_written(name, spec, conversion)} is no placeholder: "
                    "use {prompt}, {response} and {answer}, and {{ and }} for braces"
                )
        if "response" not in {name for name, _, _ in fields}:
            raise ValueError("judge.promptTemplate: {response} is missing: the judge would not see what it grades")
        self._text = text

    def fill(self, prompt: str, response: str, answer: str) -> str:
        """Return the question about one response; braces inside the values mean nothing."""
        return self._text.format(prompt=prompt, response=response, answer=answer)


def _written(name: str, spec: str | None, conversion: str | None) -> str:
    return "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"

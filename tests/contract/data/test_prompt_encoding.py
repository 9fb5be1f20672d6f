"""Prompts of real tokenizers, whose post-processors add special tokens before and after a text."""

import pytest
from tokenizers import processors

from longshore.api.model import Data
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.data.dataset import prompt_sets
from longshore_runtime.data.reading import Row


def prompt(template: str, text: str, prompt_template: str = "{prompt}") -> str:
    """What a text becomes with a tokenizer that adds the special tokens of this template."""
    tokenizer = build_tokenizer()
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>", "<pad>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=special)
    data = Data(path="a.jsonl", held_out_prompts=0, prompt_template=prompt_template)
    sets = prompt_sets([Row("a.jsonl, line 1", {"prompt": text, "answer": ""}, data.each[0])], data, tokenizer, 100)
    return tokenizer.decode(sets.train[0].prompt_tokens)


@pytest.mark.parametrize(
    ("template", "beginning"),
    [
        ("$A", ""),
        ("<bos> $A", "<bos>"),
        ("$A <eos>", ""),
        ("<bos> $A <eos>", "<bos>"),
        ("<bos> <pad> $A <eos> <pad>", "<bos><pad>"),
    ],
)
def test_a_text_has_what_begins_it_and_not_what_ends_it(template: str, beginning: str) -> None:
    assert prompt(template, "1+1=") == f"{beginning}1+1="


@pytest.mark.parametrize("template", ["$A", "<bos> $A", "<bos> $A <eos>"])
def test_the_beginning_that_a_text_or_its_template_writes_is_not_doubled(template: str) -> None:
    assert prompt(template, "<bos>1+1=") == "<bos>1+1="
    assert prompt(template, "1+1=", "<bos>{prompt}") == "<bos>1+1="


def test_an_end_that_the_text_itself_has_stays() -> None:
    assert prompt("<bos> $A <eos>", "1<eos>") == "<bos>1<eos>"

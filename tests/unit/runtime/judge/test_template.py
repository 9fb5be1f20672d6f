"""The question is checked before it is asked, and values are put into it as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.judge.template import PromptTemplate


def test_placeholders_are_filled_and_doubled_braces_stay_single() -> None:
    template = PromptTemplate('Q: {prompt} A: {response} R: {answer} reply {{"score": 1}}')
    assert template.fill("1+1", "2", "two") == 'Q: 1+1 A: 2 R: two reply {"score": 1}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{question} {response}", r"^judge.promptTemplate: \{question\} is no placeholder: use \{prompt\}"),
        ("{response.__class__}", r"\{response.__class__\} is no placeholder"),
        ("{response[0]}", r"\{response\[0\]\} is no placeholder"),
        ("{} {response}", r"\{\} is no placeholder"),
        ("{0} {response}", r"\{0\} is no placeholder"),
        ("{response!r}", r"\{response!r\} is no placeholder"),
        ("{response:>9999}", r"\{response:>9999\} is no placeholder"),
        ("{response} {", r"^judge.promptTemplate: .*write \{\{ and \}\} for braces"),
        ("{response} }", r"^judge.promptTemplate: .*write \{\{ and \}\} for braces"),
        ("Grade {prompt}", r"^judge.promptTemplate: \{response\} is missing"),
        ("Grade {{response}}", r"^judge.promptTemplate: \{response\} is missing"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        PromptTemplate(text)
    assert "\n" not in str(refusal.value)


@given(st.text(), st.text(), st.text())
def test_what_stands_in_the_values_is_never_read_as_a_placeholder(prompt: str, response: str, answer: str) -> None:
    filled = PromptTemplate("{prompt}|{response}|{answer}").fill(prompt, response, answer)
    assert filled == f"{prompt}|{response}|{answer}"

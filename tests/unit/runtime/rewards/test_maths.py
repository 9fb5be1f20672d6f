"""Answers are compared as mathematics, not as text."""

import re

import pytest

from longshore_runtime.rewards.maths.agreement import answers_agree
from longshore_runtime.rewards.maths.answer_values import _exact_number, expression
from longshore_runtime.rewards.maths.final_answers import final_answer
from longshore_runtime.rewards.maths.references import unreadable_reference


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so we get #### 72", "48 + 24 = <<48+24=72>>72\n#### 72"),
        (r"the answer is \boxed{1000}", "#### 1,000"),
        ("#### 1,234,567", "1234567"),
        (r"Therefore $x = \boxed{\frac{1}{2}}$", "0.5"),
        ("The final answer is 18.", "#### 18"),
        (r"\boxed{x^2+2x+1}", r"$(x+1)^2$"),
        ("#### 3\n#### 4", "4"),
        (r"\boxed{2\sqrt{2}}", r"$\sqrt{8}$"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{\{2, 1\}}", r"$\{1, 2\}$"),
        (r"\boxed{３}", "3"),
        (r"答案：\boxed{（１，２）}。", "(1,2)"),
        (r"\boxed{100，200}", "100, 200"),
        (r"\boxed{５０％}", "0.5"),
        (r"\boxed{x＝－２、３}", "x=-2, 3"),
        (r"\boxed{｛２，１｝}", r"\{1, 2\}"),
        (r"\boxed{(1, 2)}", r"$(1,2)$"),
        (r"\boxed{-\frac{3}{4}}", r"$-0.75$"),
    ],
)
def test_equal_values_agree_however_they_are_written(response: str, answer: str) -> None:
    assert answers_agree(response, answer)


@pytest.mark.parametrize("response", ["", "no idea", "#### 71", r"\boxed{72.5}", "xk3q!!", "####", r"\boxed{}"])
def test_other_values_and_no_answer_do_not(response: str) -> None:
    assert not answers_agree(response, "#### 72")


def test_the_order_of_a_pair_counts() -> None:
    assert not answers_agree(r"\boxed{(2, 1)}", r"$(1,2)$")


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        (r"12\pi", r"12\pi"),
        (r"12\pi", "37.699112"),
        ("2x", "x+x"),
        ("1+2i", "2i+1"),
        ("-814+3698i", "3698i - 814"),
        ("(-7,3)", "(-7, 3)"),
        ("(-7,3)", r"\left(-7, 3\right)"),
        ("6.02e23", r"6.02 \times 10^{23}"),
        (r"6.02\times 10^{23}", "6.02E23"),
        ("1.5e-3", "0.0015"),
        ("1000", "1,000"),
        ("1,000", "1000"),
        ("10{,}000", "10000"),
        (r"10,\!000", "10000"),
        (r"10\,000", "10000"),
        ("100, 200, 300", "300, 100, 200"),
        (r"12\text{ cm}", "12"),
        ("12", r"12\text{ cm}"),
        ("12 cm", r"12\text{ centimeters}"),
        (r"15\mbox{ cm}^2", r"15\text{ square centimeters}"),
        (r"85\text{ feet}", "85 ft"),
        ("8 apples", "8"),
        (r"\emptyset", r"\varnothing"),
        (r"\varnothing", "∅"),
        ("60 mph", r"60\text{ mi/h}"),
        (r"10\text{ m/s}", r"10\text{ meters per second}"),
        (r"50\%", "50"),
        (r"50\%", "0.5"),
        ("0.5", r"50\%"),
        ("50", "50 percent"),
        (r"12.5\%", "12.5"),
        (r"\frac{1}{8}", r"12.5\%"),
        (r"\text{Tuesday}", "Tuesday"),
        ("Tuesday", r"\text{tuesday}"),
        ("Yes", r"\text{yes}"),
        ("No", "no."),
        ("(B)", "B"),
        ("B", r"\text{(B)}"),
        (r"\text{(B)}", r"\textbf{(B)}\ 12"),
        ("True", r"\text{True}"),
        ("no solution", r"\text{No solution}"),
        (r"\text{1:03 PM}", r"1:03\text{ p.m.}"),
        (r"9\text{ a.m.}", "9 am"),
        (r"3\frac{1}{2}", "3.5"),
        ("3 1/2", r"\frac{7}{2}"),
        ("3.5", "3 1/2"),
        (r"90^\circ", "90"),
        (r"90^\circ", r"90\text{ degrees}"),
        ("90°", "90"),
        (r"\$5", "5"),
        ("5", r"\$5.00"),
        ("5 dollars", r"\$5"),
        ("$5", "5"),
        ("$115,000", "115000"),
        ("x=5", "5"),
        ("5", "x = 5"),
        ("x=5", "5 = x"),
        ("f(x)=2x+1", "2x+1"),
        ("y=2x+3", "2x+3"),
        ("3, 5", r"x=3\text{ or }x=5"),
        (r"\pm 3", "3, -3"),
        (r"\{1,2\}", "2, 1"),
        ("[1,3]", r"1 \le x \le 3"),
        ("x>5", r"(5,\infty)"),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
        (r"\begin{pmatrix}1&0\\0&\frac12\end{pmatrix}", r"\begin{pmatrix}1 & 0 \\ 0 & 0.5\end{pmatrix}"),
        ("1011_2", "1011_{2}"),
        (r"\ln 2", r"\log 2"),
        ("2", r"\log 100"),
        ("3:2", r"\frac{3}{2}"),
        (r"\frac{1}{3}", "0.333333"),
        ("1/2", r"\frac12"),
        ("0.5", ".5"),
        (r"\sqrt{8}", r"2\sqrt2"),
        ("(x+1)^2", "x^2+2x+1"),
        ("-0.75", r"-\frac{3}{4}"),
        ("h''(b)", "h''(b)"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        ("5", "4+1=5"),
        ("n=3", "3"),
        ("2^{10}", "1024"),
        ("x^2", "$x^2$"),
        ("12", r"\(12\)"),
        ("7", "**7**"),
    ],
)
def test_a_bare_reference_is_read_as_latex_and_holds_in_other_notations(reference: str, given: str) -> None:
    assert answers_agree(rf"Thus \boxed{{{given}}}.", reference)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        ("4^{1012}", "2^{2024}"),
        ("2024!", r"2024\cdot2023!"),
        (r"3\cdot2^{2019}", "2^{2021}-2^{2019}"),
        (r"\frac{2025!}{2024!}", "2025"),
        (r"\binom{2024}{2}", r"\frac{2024\cdot2023}{2}"),
        ("2^{-2024}", r"\frac{1}{4^{1012}}"),
        (r"\begin{pmatrix}4^{1012}\\1\end{pmatrix}", r"\begin{pmatrix}2^{2024}\\1\end{pmatrix}"),
        ("10^{12}", "1,000,000,000,000"),
    ],
)
def test_large_numbers_are_equal_if_every_digit_is(reference: str, given: str) -> None:
    assert answers_agree(rf"\boxed{{{given}}}", reference)


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        ("1000000001", "1000000000"),
        ("2^{100}", "2^{100}+1"),
        (r"\binom{100}{50}", r"\binom{100}{50}-1"),
        ("999999999999", "10^{12}"),
        ("4^{1012}", "2^{2024}+1"),
        ("2024!", "2023!"),
        (r"\frac{10^{12}}{3}", r"\frac{10^{12}+1}{3}"),
        (r"\begin{pmatrix}2^{100}\end{pmatrix}", r"\begin{pmatrix}2^{100}+1\end{pmatrix}"),
    ],
)
def test_large_numbers_differ_if_their_last_digit_does(reference: str, given: str) -> None:
    assert not answers_agree(rf"\boxed{{{given}}}", reference)


@pytest.mark.parametrize(
    "tower",
    ["9^{9^{9^{9}}}", "2^{-9^{9^{9}}}", "(9^{9})!", "((99!)!)!", r"\frac{1}{3^{9^{9}}}", "2^{2^{50}}-2^{2^{50}}+1"],
)
def test_a_number_with_too_many_digits_is_not_computed(tower: str) -> None:
    parsed = expression(tower)
    assert parsed is not None
    assert _exact_number(parsed) is None


@pytest.mark.parametrize(
    ("reference", "given"),
    [
        (r"12\pi", "12"),
        ("2x", "2"),
        ("1+2i", "1"),
        ("(-7,3)", "3"),
        ("(-7,3)", "-7,3"),
        ("(-7,3)", "(3,-7)"),
        ("(-7,3)", "[-7,3)"),
        ("1,2", "(1,2)"),
        ("1000", "1，000"),
        ("35", "３～５"),
        ("6.02e23", "6.02"),
        ("6.02e23", "6.02e22"),
        ("1000", "1"),
        ("1,000", "1"),
        ("1,000", "0"),
        ("12 cm", "12 m"),
        (r"15\text{ cm}^2", r"15\text{ cm}"),
        (r"9\text{ a.m.}", r"9\text{ p.m.}"),
        (r"50\%", "5"),
        (r"50\%", "50 cm"),
        (r"\text{Tuesday}", r"\text{Monday}"),
        ("Yes", "No"),
        ("Yes", "sey"),
        ("Yes", "Yes or No"),
        ("(B)", "(C)"),
        ("(B)", r"\text{(B) or (C)}"),
        ("B", "12"),
        ("True", "False"),
        (r"3\frac{1}{2}", r"\frac{3}{2}"),
        ("3 1/2", "2"),
        (r"90^\circ", r"\frac{\pi}{2}"),
        (r"\$5", "6"),
        (r"\$5", r"5\text{ cents}"),
        ("x=5", "y=5"),
        ("5", "9=5"),
        ("5", "x>5"),
        ("5", "2x+1=5"),
        (r"\pm 3", "3"),
        (r"\{1,2\}", "1"),
        ("[1,3]", "(1,3)"),
        ("1011_2", "11"),
        ("1011_2", "1011"),
        ("54_7", "54_8"),
        ("0", "0.0000001"),
        ("0.000123", "0.0001234"),
        ("1e-10", "0"),
        (r"\frac{1}{3}", "0.33"),
        ("987654321", "987654000"),
        ("h''(b)", "h(b)"),
        ("f'(x)", "f(x)"),
        (r"\text{1:03 PM}", r"\text{1:03 AM}"),
        ("5", ""),
        ("5", "garbage 5 garbage"),
        ("A", r"\text{B}"),
        ("2h", "2"),
        ("4t", "4"),
        ("7", r"7\pi"),
        ("x^2", "x"),
        ("7:30", "7.30"),
        ("no solution", "0"),
        ("a+A", "a+a"),
        ("2", r"\{2,3\}"),
    ],
)
def test_an_answer_that_holds_a_part_of_the_reference_or_is_near_to_it_is_wrong(reference: str, given: str) -> None:
    assert not answers_agree(rf"Thus \boxed{{{given}}}.", reference)


def test_of_several_boxes_the_last_counts() -> None:
    response = r"At first \boxed{3}, but rather \boxed{4}."
    assert answers_agree(response, "#### 4")
    assert not answers_agree(response, "#### 3")
    assert not answers_agree(r"\boxed{4} \boxed{}", "4")
    assert not answers_agree(r"\boxed{3 or 4}", "4")


@pytest.mark.parametrize(
    "response",
    [
        "The answer is (B).",
        "**Answer:** (B)",
        r"Hence the answer is $\text{(B)}$. I hope this helps.",
        "#### B",
        r"#### A" "\n" r"No: \boxed{\textbf{(B)} 12}",
    ],
)
def test_the_answer_of_a_response_is_what_it_marks_or_names_last(response: str) -> None:
    assert answers_agree(response, "(B)")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("", "holds no answer"),
        ("####", "holds no answer"),
        ("$$", "holds no answer"),
        (r"so \boxed{}", "holds no answer"),
        ("---", "holds no answer"),
        (r"\frac{1}{2", "has braces without a partner"),
        ("First we add both sides. " * 20, "is too long for a final answer; mark that with #### or"),
    ],
)
def test_a_reference_that_cannot_be_read_is_an_error_of_the_data(reference: str, reason: str) -> None:
    found = unreadable_reference(reference)
    assert found is not None
    assert reason in found
    with pytest.raises(ValueError, match=re.escape(reason)):
        answers_agree(r"\boxed{1}", reference)


@pytest.mark.parametrize(
    "reference", ["72", r"12\pi", r"\infty", r"\emptyset", "Tuesday", "(B)", "long " * 99 + "#### 7"]
)
def test_every_other_reference_can_be_read(reference: str) -> None:
    assert unreadable_reference(reference) is None


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{5}\n\n#### Verification\nWe check 5+0=5.",
        "\\boxed{5}\n\n#### Checking the result\nSo 3+4=7 is another sum.",
        "\\boxed{5}\n\n##### **Verification:**\nWe check 7.",
        "\\boxed{5}\n#### The sum 2+3 is right, because 3+2 is the same.",
        "\\boxed{5}\n\n#### 验证\n7-2=5",
        "#### Step 1: add 2 and 3\n2+3=5\n#### Step 2: finish\nThe answer is **5**.",
        "#### 1. Add both\n2+3=5\n#### 2. Finish\nThe answer is **5**.",
        "#### Step 1 - add\n2+3\n#### Step 2 - finish\nThe answer is **5**.",
        "#### Final Answer:\n5",
        "#### **Final Answer:**\n\n**5**",
        "#### Final Answer\n$5$",
        "#### Final Answer: 5",
        "The answer is 5.\n\n#### Verification\nWe check 5+0=5.",
        "- #### Result of 2+3\nThe answer is 5.",
        "#### Using $x = 2$\nThe answer is $5$",
    ],
)
def test_a_heading_of_markdown_is_no_final_answer(response: str) -> None:
    assert answers_agree(response, "#### 5")
    assert not answers_agree(response, "#### 6")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("#### 72\n\nQuestion: what is 1+1?\nThe answer is 2.", "#### 72"),
        ("\\boxed{3}\n#### $1,000\nDone.", "#### 1000"),
        ("#### 12 apples", "#### 12"),
        ("\\boxed{3}, no:\n#### 3.5 cm\nBye.", "#### 3.5"),
        ("#### x = 5\nBye", "#### 5"),
        (r"#### \frac{1}{2}" "\nBye", "#### 0.5"),
        ("#### **5**\nBye", "#### 5"),
        ("It is #### 5", "#### 5"),
        ("#### Tuesday", "#### Tuesday"),
        ("#### Tuesday\n\nQuestion: what is 1+1?", "#### Tuesday"),
        (r"#### \text{Tuesday}" "\nBye", "#### Tuesday"),
        ("\\boxed{3} is the number of the day:\n#### Tuesday", "#### Tuesday"),
        ("#### no solution\n\nNext", r"\text{No solution}"),
        ("\\boxed{3}\n#### Yes\nBye", "#### yes"),
        ("#### June 5", "#### June 5"),
        ("#### Tuesday at 3:00 PM\nBye", "#### Tuesday at 3:00 PM"),
        ("\\boxed{3}\n#### B\nBye", "#### B"),
        ("#### 3:2\nBye", "#### 3:2"),
        ("\\boxed{Tuesday}\n\n#### Verification\nIt is.", "#### Tuesday"),
    ],
)
def test_a_marked_line_is_the_final_answer_also_if_more_follows(response: str, answer: str) -> None:
    assert answers_agree(response, answer)


def test_a_word_that_ends_a_response_is_its_answer_though_the_reference_is_a_number() -> None:
    assert not answers_agree("2+3=5, or not?\n#### Impossible", "#### 5")


def test_every_mark_of_a_reference_counts() -> None:
    assert answers_agree("#### Tuesday", "First 2+3=5.\n#### Tuesday\n")
    assert not answers_agree(r"\boxed{5}", "\\boxed{5}\n#### Verification\nWe check.")


@pytest.mark.parametrize(
    "line", ["#### abc\n", "#### " + "a" * 50 + "\n", "####\n", "#### Step\n", "#" * 100, "#### 12. \n"]
)
def test_the_last_mark_of_a_long_response_is_found(line: str) -> None:
    assert final_answer(line * (200_000 // len(line)) + "\\boxed{5}") == "5"
    assert final_answer("#### " + line.strip("\n") * (200_000 // len(line)) + "\n\\boxed{5}") == "5"


@pytest.mark.parametrize("response", ["#### sqrt(2)\nDone 7", "intermediate \\boxed{3}\n#### sqrt(2)", "#### sqrt(2)"])
def test_a_function_is_no_word(response: str) -> None:
    assert answers_agree(response, r"\sqrt{2}")


@pytest.mark.parametrize(
    "response",
    [
        r"<think>try \boxed{5}.. no</think>The answer is 7.",
        "<think>\n#### 5\n</think>\n\nSo it is 7",
        r"5, or <think>\boxed{5}</think> and <think>#### 6</think> thus $7$",
        r"I think of \boxed{5}</think>\boxed{7}",
        "<think>\n\n</think>\n\n\\boxed{5}, no:\n#### 7",
        "<think>2+5 is 7</think>",
        r"<think>\boxed{7}</think>That is what I think.",
        "<think>2+5 is 7",
        r"<think>\boxed{7}",
    ],
)
def test_the_answer_follows_the_thinking_if_there_is_one(response: str) -> None:
    assert answers_agree(response, "#### 7")


def test_an_empty_box_after_the_thinking_is_no_answer() -> None:
    assert not answers_agree(r"<think>\boxed{7}</think>\boxed{}", "7")


@pytest.mark.parametrize("marked", [r"\boxed{7}", "#### 7\n", r"#### \boxed{7}", "\\boxed{7}\n\n#### Verific"])
@pytest.mark.parametrize("before", ["", "2+5. ", "<think>no: \\boxed{5}</think>", "<think>a</think><think>b</think>"])
def test_a_cut_response_has_the_answer_that_it_has_marked(before: str, marked: str) -> None:
    assert answers_agree(before + marked, "7", is_cut=True)
    assert answers_agree(before + marked + " Let me check that by adding 5 and 2", "7", is_cut=True)


@pytest.mark.parametrize(
    "response",
    ["2+5=7", "The answer is 7.\n", "so $7$", "#### 7", "a\n#### 7", r"\boxed{7", r"\boxed{7} or \boxed{", "7\n#### "],
)
def test_what_a_cut_response_has_not_marked_to_the_end_is_no_answer(response: str) -> None:
    assert not answers_agree(response, "7", is_cut=True)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("2+5?", r"<think>perhaps \boxed{7}, but"),
        ("2+5?", "<think>\n#### 7\nor"),
        ("2+5?", r"<think>a</think>b<think>\boxed{7}"),
        ("2+5?<think>\n", r"perhaps \boxed{7}, but"),
        ("2+5?<think>", r"<think>perhaps \boxed{7}, but"),
        ("2+5?", r"<think>\boxed{7}</think>So we"),
        ("2+5?<think>\n", r"\boxed{7}</think>So we"),
    ],
)
def test_what_a_cut_response_has_thought_is_no_answer(prompt: str, response: str) -> None:
    assert not answers_agree(response, "7", prompt=prompt, is_cut=True)
    assert answers_agree(response, "7", prompt=prompt), "one that ends by itself may have forgotten the tag"


@pytest.mark.parametrize("prompt", ["2+5?<think>\n", "2+5?<think>\n\n</think>\n\n", "Write <think> first. 2+5?"])
def test_a_cut_response_may_have_marked_its_answer_after_thinking(prompt: str) -> None:
    assert answers_agree(r"hm</think>\boxed{7} is", "7", prompt=prompt, is_cut=True)


def test_a_response_whose_template_ended_the_thinking_does_not_think() -> None:
    assert answers_agree(r"\boxed{7} is", "7", prompt="2+5?<think>\n\n</think>\n\n", is_cut=True)

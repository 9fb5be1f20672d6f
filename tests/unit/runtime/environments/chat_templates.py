"""Chat templates in the style of four model families, and tools for them."""

from typing import Any

SMOL = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""SmolLM2: knows no tools."""

HERMES = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call with <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Qwen2.5 and Qwen3: several answers to one turn are one message of the user."""

THINKING = HERMES.replace(
    "{{ m.content }}{% else %}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% else %}"
)
"""Drops what the assistant has thought in earlier turns."""

QWEN_XML = HERMES.replace(
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}""",
    """<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>""",
)
"""Qwen3-Coder."""

GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
"""Gemma: a user and a model that alternate."""

LLAMA = """\
{%- set ns = namespace(shown=false) %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once!') }}{% endif %}
{%- set call = m.tool_calls[0].function -%}
<|im_start|>assistant

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|im_end|>
{%- else %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}

{% if tools and m.role == 'user' and not ns.shown %}{% set ns.shown = true %}{{ tools | tojson }}

{% endif %}{{ m.content | tojson if m.role == 'tool' else m.content | trim }}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant

{% endif %}"""
"""Llama 3: one call in a turn, which is nothing else then."""


def tool(name: str, **types: Any) -> dict[str, Any]:
    """Return the schema of a tool with parameters of these JSON types."""
    properties = {key: {"type": value} for key, value in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


GUESS = tool("guess", number="integer", why="string")

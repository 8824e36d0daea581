"""Jinja chat templates written from the published formats, with the constructs that published templates use, and with the
generation blocks that mark what the assistant writes for `transformers`."""

from __future__ import annotations

LLAMA3 = """
{%- macro head(role) -%}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{%- endmacro -%}
{{- bos_token -}}
{%- for turn in messages -%}
  {{- head(turn.role) -}}
  {%- if turn.role == 'assistant' -%}
    {%- generation -%}{{- turn.content | trim ~ '<|eot_id|>' -}}{%- endgeneration -%}
  {%- else -%}{{- turn.content | trim ~ '<|eot_id|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- head('assistant') -}}{%- endif -%}
"""
DATES = "{{- 'Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' -}}"
LLAMA3_1 = LLAMA3.replace(
    "{{- bos_token -}}",
    "{{- bos_token ~ head('system') -}}"
    + DATES
    + """{%- if messages[0].role == 'system' -%}
  {{- messages[0].content | trim -}}{%- set messages = messages[1:] -%}
{%- endif -%}{{- '<|eot_id|>' -}}""",
)
LLAMA2 = """
{%- set first = '' -%}
{%- if messages[0].role == 'system' -%}
  {%- set first = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for turn in messages -%}
  {%- if turn.role == 'user' -%}
    {{- bos_token ~ '[INST] ' ~ ((first if loop.first else '') ~ turn.content).strip() ~ ' [/INST]' -}}
  {%- else -%}
    {%- generation -%}{{- ' ' ~ turn.content.strip() ~ ' ' ~ eos_token -}}{%- endgeneration -%}
  {%- endif -%}
{%- endfor -%}
"""
CHATML = """
{%- for turn in messages -%}
  {%- if loop.first and turn.role != 'system' and DEFAULT -%}
    {{- '<|im_start|>system\\nTEXT<|im_end|>\\n' -}}
  {%- endif -%}
  {{- '<|im_start|>' ~ turn.role ~ '\\n' -}}
  {%- if turn.role == 'assistant' -%}
    {%- generation -%}{{- turn.content ~ '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
  {%- else -%}{{- turn.content ~ '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
SYSTEM_TEXTS = {
    "qwen2": "You are a helpful assistant.",
    "qwen2.5": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "smollm2": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
}
# Mistral 7B v0.3's and Nemo's constructs: a namespace that counts, selectattr, tools that are not given, and the system
# message in the last turn of the user.
MISTRAL = """
{%- if messages[0]["role"] == "system" %}
    {%- set system_text = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set asked = turns | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.count = 0 %}
{%- for turn in turns %}
    {%- if not (turn.role == "tool" or (turn.tool_calls is defined and turn.tool_calls is not none)) %}
        {%- if (turn["role"] == "user") != (ns.count % 2 == 0) %}
            {{- raise_exception("roles must alternate: user, assistant, user, assistant") }}
        {%- endif %}
        {%- set ns.count = ns.count + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for turn in turns %}
    {%- if turn["role"] == "user" %}
        {%- if tools is not none and (turn == asked[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_text is defined %}
            {{- "[INST] " + system_text + "\\n\\n" + turn["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + turn["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif turn["role"] == "assistant" %}
        {%- generation %}{{- " " + turn["content"] | trim + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- raise_exception("only user and assistant roles, and a system message first") }}
    {%- endif %}
{%- endfor %}
"""
# Qwen3's: the last question is looked for from behind; the thoughts of answers before it are left out.
QWEN3 = """
{%- if tools %}
    {{- '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(seeking=true, last_question=messages|length - 1) %}
{%- for turn in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and turn.role == "user" and turn.content is string and not(turn.content.startswith('<tool>') and turn.content.endswith('</tool>')) %}
        {%- set ns.seeking = false %}
        {%- set ns.last_question = index %}
    {%- endif %}
{%- endfor %}
{%- for turn in messages %}
    {%- if turn.content is string %}
        {%- set content = turn.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (turn.role == "user") or (turn.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + turn.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif turn.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if turn.reasoning_content is string %}
            {%- set thoughts = turn.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + turn.role + '\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last_question and (loop.last or (not loop.last and thoughts)) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in turn.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>' + call.name + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
# Gemma's: the assistant is called model, and there is no system message.
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}"
    "{% for turn in messages %}{% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate: user, assistant, user, assistant') }}{% endif %}"
    "{% if (turn['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = turn['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' }}{% if role == 'model' %}{% generation %}{{ turn['content'] | trim + "
    "'<end_of_turn>' }}{% endgeneration %}{{ '\\n' }}{% else %}{{ turn['content'] | trim + '<end_of_turn>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# Zephyr's and TinyLlama's: tags on lines of their own, roles that are no special tokens, loop.last.
ZEPHYR = """{% for turn in messages %}
{% if turn['role'] == 'user' %}
{{ '<|user|>\\n' + turn['content'] + eos_token }}
{% elif turn['role'] == 'system' %}
{{ '<|system|>\\n' + turn['content'] + eos_token }}
{% elif turn['role'] == 'assistant' %}
{{ '<|assistant|>' }}
{% generation %}{{ turn['content'] + eos_token }}{% endgeneration %}

{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""
# Phi-3's: end-of-text after a conversation without a generation prompt.
PHI3 = (
    "{% for turn in messages %}{% if turn['role'] == 'system' %}{{ '<|system|>\\n' + turn['content'] + '<|end|>\\n' }}"
    "{% elif turn['role'] == 'user' %}{{ '<|user|>\\n' + turn['content'] + '<|end|>\\n' }}"
    "{% elif turn['role'] == 'assistant' %}{{ '<|assistant|>\\n' }}{% generation %}{{ turn['content'] + '<|end|>' }}"
    "{% endgeneration %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

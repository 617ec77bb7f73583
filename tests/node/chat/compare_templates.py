"""Compares the prompts of chat templates with those of Jinja2 as Hugging Face's tokenizers use it.

    compare_templates.py PROGRAM FOLDER    PROGRAM: build/dev/bin/render_chats; FOLDER: of *.jinja

A line for each template, then a summary; status 1 where a prompt is another one than Jinja2's.
"""
import argparse
import collections
import copy
import datetime
import itertools
import json
import pathlib
import subprocess
import sys
import time

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

BOS, EOS = "<s>", "</s>"

# What became of a chat.
EQUAL = "equal"  # the text that Jinja2 makes of the same messages
REFUSED = "refused"  # by both
FITTED = "fitted"  # refused or cut by the template as it came, rendered after a change
WORDS = "tools in words"  # the template has no place for tools
DIFFERS = "DIFFERS"
MISSING = "MISSING"  # Jinja2 renders it


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment(now):
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime.datetime.fromtimestamp(now).strftime
    return made


def apply_chat_template(template, chat, messages):
    """As transformers' function of this name. None: the template refuses the messages."""
    goes_on = chat.get("continue_final_message", False)
    mark = "CONTINUE_FINAL_MESSAGE_TAG "
    if goes_on:
        messages = copy.deepcopy(messages)
        last = messages[-1]
        if isinstance(last["content"], list):
            last["content"][-1]["text"] += mark
        else:
            last["content"] += mark
    try:
        text = template.render(
            messages=messages,
            tools=chat["tools"] or None,
            documents=None,
            add_generation_prompt=chat.get("add_generation_prompt", True) and not goes_on,
            **{"bos_token": BOS, "eos_token": EOS, **chat.get("variables", {})},
        )
    except Exception:  # whatever a template does
        return None
    if goes_on:
        at = text.rfind(mark.strip())
        if at < 0:
            return None
        text = text[:at] if text[at:].startswith(mark) else text[:at].rstrip()
    return text


def forms_of(messages):
    """The messages in the forms that templates take: arguments as objects or text, content as text, parts or null;
    thoughts under the names that they have. The first is what Hugging Face documents."""
    for parts, text, no_content, thought in itertools.product(
        (False, True), (False, True), (False, True), ("reasoning_content", "reasoning", "thinking")
    ):
        form = copy.deepcopy(messages)
        for message in form:
            if no_content and message.get("tool_calls") and not message["content"]:
                message["content"] = None
            elif parts:
                message["content"] = [{"type": "text", "text": message["content"]}]
            for call in message.get("tool_calls", []) if text else []:
                call["function"]["arguments"] = json.dumps(
                    call["function"]["arguments"], ensure_ascii=False, separators=(",", ":")
                )
            if "reasoning_content" in message:
                message[thought] = message.pop("reasoning_content")
        yield form


def one_call_each(messages):
    answers = {m["tool_call_id"]: m for m in messages if m["role"] == "tool"}
    for message in messages:
        if message["role"] == "tool" and len(answers) > 1:
            continue
        if len(message.get("tool_calls", [])) < 2:
            yield message
            continue
        for i, call in enumerate(message["tool_calls"]):
            yield {**(message if i == 0 else {"role": "assistant", "content": ""}), "tool_calls": [call]}
            yield answers[call["id"]]


def system_in_user(messages):
    system = []
    for message in messages:
        if message["role"] == "system":
            system.append(message["content"])
        elif message["role"] == "user" and system:
            yield {**message, "content": "\n".join(system) + "\n\n" + message["content"]}
            system = []
        else:
            yield message


def outcome(template, knows_tools, chat, ours):
    texts = [apply_chat_template(template, chat, form) for form in forms_of(chat["messages"])]
    about_tools = chat["tools"] or any("tool_calls" in m or m["role"] == "tool" for m in chat["messages"])
    if "error" in ours and all(text is None for text in texts):
        return REFUSED
    if "error" in ours:
        return WORDS if about_tools and not knows_tools else MISSING
    if ours["text"] in texts:
        return EQUAL
    if all(text is None for text in texts):
        return FITTED
    for change in one_call_each, system_in_user:
        changed = list(change(chat["messages"]))
        if any(ours["text"] == apply_chat_template(template, chat, form) for form in forms_of(changed)):
            return FITTED
    return WORDS if about_tools and not knows_tools else DIFFERS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()

    cases = json.loads((pathlib.Path(__file__).parent / "conversations.json").read_text())
    now = int(time.time())
    sources = {file.stem: file.read_text() for file in sorted(arguments.folder.glob("*.jinja"))}
    if not sources:
        sys.exit(f"no *.jinja in {arguments.folder}")
    chats = [
        {"template": source, "bos": BOS, "eos": EOS, "now": now, **case, "name": name, "case": case_name}
        | {"tools": cases["tools"] if case.get("tools") else []}
        for name, source in sources.items()
        for case_name, case in cases["conversations"].items()
    ]
    run = subprocess.run([arguments.program], input=json.dumps(chats), stdout=subprocess.PIPE, text=True, check=True)

    reference = environment(now)
    total, unreadable, bad = collections.Counter(), 0, []
    results = zip(chats, json.loads(run.stdout), strict=True)
    for name, group in itertools.groupby(results, key=lambda pair: pair[0]["name"]):
        try:
            template = reference.from_string(sources[name])
        except jinja2.exceptions.TemplateSyntaxError as error:
            unreadable += 1
            print(f"{name}: Jinja2 cannot read it: {error.message}")
            continue
        knows_tools = "tools" in jinja2.meta.find_undeclared_variables(reference.parse(sources[name]))
        outcomes = collections.Counter()
        for chat, ours in group:
            what = outcome(template, knows_tools, chat, ours)
            outcomes[what] += 1
            if what in (DIFFERS, MISSING):
                bad.append((name, chat, ours, apply_chat_template(template, chat, chat["messages"])))
        total += outcomes
        print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in outcomes.items()))
    for name, chat, ours, theirs in bad:
        print(f"\n--- {name}, {chat['case']}: Jinja2\n{theirs}\n--- Strata\n{ours.get('text', ours.get('error'))}")
    print(f"\n{len(sources)} templates, {unreadable} of which Jinja2 cannot read; {sum(total.values())} chats: ", end="")
    print(", ".join(f"{count} {what}" for what, count in total.most_common()))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

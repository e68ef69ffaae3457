"""Agents whose guest is a server on loopback: the cost of one, their rate, and the time that the broker adds."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.measure import Row, processor, size
from quine.agent.tools import TOOLS
from quine.base.messages import Message, Request
from quine.base.sessions import new_session
from quine.broker import finding
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.providers import vendors
from quine.providers.relay import BrokeredGuest
from tests.lab import Lab
from tests.support.blocking import BlockingGuest
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

SH = {"name": "sh", "arguments": {"command": "true"}}
EXIT = {"name": "exit", "arguments": {"status": "success"}}
TWO = (Said(calls=(SH,)), Said(calls=(EXIT,)))


def choose(seen: Seen) -> Said | Fault:
    return TWO[min(1, sum(message["role"] == "assistant" for message in seen.body["messages"]))]


def settings(provider: Provider, directory: str) -> dict[str, str]:
    return {
        "QUINE_API_TYPE": "openai",
        "QUINE_API_BASE": f"{provider.base}/v1",
        "QUINE_API_KEY": KEY,
        "QUINE_MODEL_ID": "m",
        "QUINE_DATA_DIR": directory,
    }


def run(lab: Lab) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory, Provider(chat, choose=choose) as provider:
        env = {**lab.env, **settings(provider, directory)}
        script = {
            **lab.env,
            **lab.script([{"reply": {"tool_calls": [SH]}}, {"reply": {"tool_calls": [EXIT]}}]),
        }
        return [
            *_cost(lab, env, {**script, "QUINE_DATA_DIR": directory}),
            _rate(lab, env),
            _proxy(lab, env),
            _added(env),
        ]


def _cost(lab: Lab, env: dict[str, str], script: dict[str, str]) -> list[Row]:
    def agent(env: dict[str, str]) -> None:
        subprocess.run([lab.quine, "leave"], env=env, check=True, stdin=subprocess.DEVNULL)

    agent(env)  # the broker is there
    ours, scripted = (1000 * took for took in processor(15, partial(agent, env), partial(agent, script)))
    return [
        Row(
            "two-turn agent, server on loopback, processor",
            ours,
            "ms",
            "scripted guest",
            scripted,
            "≤ 70, aim 45",
            ours <= 70,
        )
    ]


def _rate(lab: Lab, env: dict[str, str]) -> Row:
    count = size(40, 200)
    numbers = "".join(f"{n}\n" for n in range(count))
    begun = time.perf_counter()
    words = ["xargs", "-P", "16", "-n", "1", lab.quine]
    subprocess.run(words, input=numbers.encode(), env=env, check=True, capture_output=True)
    rate = count / (time.perf_counter() - begun)
    return Row(f"{count} of them by xargs -P 16", rate, "/s", reach="≥ 25, aim 40", met=rate >= 25)


def _proxy(lab: Lab, env: dict[str, str]) -> Row:
    """The private memory of a proxy that has asked the broker, while its agent waits in a command."""
    with tempfile.TemporaryDirectory() as directory:
        go = Path(directory, "go")
        os.mkfifo(go)
        held = {"name": "sh", "arguments": {"command": f"echo up >&4; read x <{go}"}}
        replies = (Said(calls=(held,)), TWO[1])
        number = lambda seen: sum(m["role"] == "assistant" for m in seen.body["messages"])  # noqa: E731
        with Provider(chat, choose=lambda seen: replies[number(seen)]) as provider:
            words = [lab.quine, "--on", "h1", "leave"]
            more = {**env, "QUINE_API_BASE": f"{provider.base}/v1"}
            with subprocess.Popen(words, env=more, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as proxy:
                assert proxy.stdout and proxy.stdout.readline() == b"up\n"
                lines = Path(f"/proc/{proxy.pid}/smaps_rollup").read_text().splitlines()
                dirty = next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
                go.write_text("\n")
    return Row(
        "proxy of a remote agent, private dirty memory", dirty / 1024, "MB", reach="≤ 6", met=dirty <= 6144
    )


def _added(env: dict[str, str]) -> Row:
    """An inference by the broker beside one by a client of this process, in turn."""
    request = Request([Message("system", "be"), Message("user", "do")], TOOLS, new_session(), "do")
    ledger = Ledger.create(Limits())
    before = dict(os.environ)
    os.environ.update({name: env[name] for name in ("XDG_RUNTIME_DIR", "HOME") if name in env})
    os.environ["QUINE_BROKER_IDLE"] = "1"
    keys = {"QUINE_API_KEY": env["QUINE_API_KEY"]}
    known = {name: value for name, value in env.items() if name not in keys}
    try:
        broker = finding.broker(ledger, 20, TOOLS, {}, known, keys)
        config = vendors.Config("openai", env["QUINE_API_BASE"], "m", env["QUINE_API_KEY"])
        guests = (BrokeredGuest(broker.ask), BlockingGuest(lambda: vendors.served(config)))
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(200):
            for guest, times in zip(guests, taken, strict=True):
                begun = time.perf_counter()
                guest.infer(request)
                times.append(1000 * (time.perf_counter() - begun))
        broker.close()
        guests[1].close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.close(ledger.fd)
    added = statistics.median(taken[0]) - statistics.median(taken[1])
    return Row("time that the broker adds to an inference", added, "ms", reach="≤ 2, aim 1", met=added <= 2)

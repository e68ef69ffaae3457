"""Brings a layer to a host whose processes open a store themselves, over the connection that its dial has opened.

Laws
1. Only the dial of a host that needs a layer asks for one; all others run as if there were none.
2. A layer that is there already costs one round trip, and no bytes.
3. Bytes that the host has kept of an upload that was cut off are not sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from deploy import push, wheels
from deploy.platforms import Platform
from deploy.probe import Answers
from deploy.there.layers import HTTP, VARIABLE
from transport.carrier.duplex import Bootstrap
from transport.errors import Interrupted, Unreachable

MAKE_SECONDS = wheels.PIP_SECONDS + 120.0


def prefixed(command: str, marker: str, name: str) -> str:
    """Return the command of a dial that has layer `name` brought; `name` "" changes nothing."""
    start = "exec /bin/sh -c '"
    assert command.startswith(start)
    return (
        f'{start}{VARIABLE}="{marker} {name}"; export {VARIABLE}; {command[len(start) :]}'
        if name
        else command
    )


async def bring(
    host: str,
    name: str,
    directory: str | None,
    duplex: Bootstrap,
    answers: Answers,
    before: int,
    allow: Callable[[float, str], None],
) -> bool:
    """Have layer `name` on the host. False: the dial ended before it asked for one. Raises Unreachable and UploadCut.

    `directory` has wheels. `before`: bytes that the host had got before the layer.
    """
    allow(push.UPLOAD_SECONDS, "learn which Python it has")
    asked = await _asked(duplex, answers)
    if asked is None:
        return False
    try:
        platform = Platform.parse(asked.removeprefix("layer "))
    except ValueError as error:
        raise Unreachable(host, f"its Python answers wrongly: {error}", "") from None
    allow(MAKE_SECONDS, f"make the layer {name} for {platform}")
    folder = Path(directory).expanduser() if directory else None
    try:
        layer = await asyncio.to_thread(wheels.layer, name, platform, folder)
    except wheels.LackingError as lacking:
        what, hint = f'fs = "direct" of {name}', lacking.hint
        if name == HTTP:
            what, hint = 'inference = "direct"', hint.replace('fs = "relay"', 'inference = "relay"')
        raise Unreachable(host, f"{what}: {lacking.detail}", hint) from None
    except (OSError, ValueError) as error:
        raise Unreachable(
            host, f"its layer {name} cannot be made: {error}", "look at the cache here"
        ) from None
    allow(push.UPLOAD_SECONDS, "find the layer")
    kept = 0
    try:
        duplex.write(f"{layer.sha256} {layer.size}\n".encode())
        answer = await push.next_answer(host, duplex, answers)
        if found := re.fullmatch(r"kept ([0-9]{1,15})", answer):
            kept = min(int(found[1]), layer.size)
            left = layer.size - kept
            seconds = push.UPLOAD_SECONDS + push.UNPACK_SECONDS + left / push.SLOWEST
            async with push.uplink().place(left, allow) as count:
                allow(seconds, f"send {left >> 10} kB")
                with contextlib.suppress(ConnectionError):  # the host gave up early: its last words say why
                    await push.send_file(layer.path, kept, duplex, count)
                answer = await push.next_answer(host, duplex, answers)
    except (Interrupted, ConnectionError) as lost:
        raise push.UploadCut(host, getattr(lost, "detail", str(lost)), before + kept) from None
    if answer != "have":
        raise push.failed(host, answer, kept, before)
    return True


async def _asked(duplex: Bootstrap, answers: Answers) -> str | None:
    """Return the line with which the dial asks for the layer, None if it ended without."""
    while True:
        try:
            answer = answers.next()
        except ValueError:
            return None
        if answer is not None:
            return answer
        data = await duplex.read()
        if not data:
            return None
        answers.feed(data)

"""Model servers that answer on this machine, for a user who has set nothing: the line for the environment.

Laws
1. Servers are asked only where nothing is configured and an error says so anyway: on 127.0.0.1 alone, at their usual
   ports, for a moment each, and for nothing but the list of models.
2. It is a hint: nothing is used that the user has not set. Another user of this machine may have put a server there.
"""

from __future__ import annotations

from itertools import islice

from quine.base.text import shown_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PORTS = (11434, 1234, 8080, 8000)  # the default ports of Ollama, LM Studio, llama.cpp and vLLM
MOMENT, TOGETHER = 0.3, 1.0  # seconds for one to say something, and for all to answer
MOST, LONGEST = 1 << 20, 100  # bytes of an answer, and characters of a name
SHOWN = 3  # models


def hint() -> str:
    """Return the line for the environment, and the other models; "" if no server answers in time."""
    import threading

    lines: list[str] = []
    # In a thread, for a server that sends a byte now and then has no end by the times of a connection.
    asking = threading.Thread(target=lambda: lines.extend(islice(_lines(), 1)), daemon=True)
    asking.start()
    asking.join(TOGETHER)
    return lines[0] if lines else ""


def _lines() -> Iterator[str]:
    for port, models in _found():
        line = f"a model server answers here: export QUINE_API_BASE=http://127.0.0.1:{port}/v1"
        if not models:
            yield f"{line}, and QUINE_MODEL_ID by the names that it knows"
            continue
        others = (
            f" (or {', '.join(models[1:SHOWN])}{', …' if len(models) > SHOWN else ''})" if models[1:] else ""
        )
        yield f"{line} QUINE_MODEL_ID={models[0]}{others}"


def _found() -> Iterator[tuple[int, list[str]]]:
    import http.client
    import json

    for port in PORTS:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOMENT)
        try:
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            told = json.loads(answer.read(MOST)) if answer.status == 200 else None
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            continue
        finally:
            connection.close()
        rows = told.get("data") if isinstance(told, dict) else None
        if isinstance(rows, list):
            names = [row.get("id") for row in rows if isinstance(row, dict)]
            yield port, [shown_path(name) for name in names if isinstance(name, str) and _is_name(name)]


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable()

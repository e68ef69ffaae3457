"""Servers of two clouds on loopback for the tests: Google's storage emulated, and Microsoft's Azurite.

Laws
1. Each is a process of its own with a port that it was given, keeps nothing but memory or a directory that goes with
   it, and dies with the process that started it. Ready means that it has answered.
2. Azurite is a program of npm: run where it is on the PATH or named by QUINE_TEST_AZURITE, and skipped elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.files.seaweed import die_with_parent
from tests.lab.machine import free_port

# Asks Google by gRPC what kind of bucket it is, for a minute, whatever endpoint the driver was told.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

AZURITE = os.environ.get("QUINE_TEST_AZURITE") or shutil.which("azurite-blob") or ""
CONTAINER = "shelf"
ACCOUNT = "devstoreaccount1"  # Azurite's own, with its key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ROOT = Path(__file__).parents[2]
START = 120.0  # seconds
TRIES = 3  # a port may be taken by somebody else meanwhile


class Cloud:
    """A context manager; `environ` is what opens it."""

    def __init__(self) -> None:
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def command(self, port: int) -> list[str]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        for left in reversed(range(TRIES)):
            self._directory = Path(tempfile.mkdtemp(prefix="qs-", dir="/tmp"))
            port = free_port()
            self.endpoint = f"http://127.0.0.1:{port}"
            with open(self._directory / "log", "wb") as log:
                self._process = subprocess.Popen(
                    self.command(port),
                    cwd=self._directory,
                    env={**os.environ, "TMPDIR": str(self._directory), "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                    preexec_fn=die_with_parent,
                )
            if self._answers():
                return self
            said = (self._directory / "log").read_text(errors="replace")[-2000:]
            self.__exit__(None, None, None)
            if not left:
                raise AssertionError(f"{type(self).__name__} does not start; it says: {said}")
        raise AssertionError("unreachable")

    def _answers(self) -> bool:
        assert self._process
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(self.endpoint, timeout=10).close()
                return True
            except urllib.error.HTTPError:
                return self._process.poll() is None
            except OSError:
                time.sleep(0.1)
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)


class Google(Cloud):
    """`gs://shelf`."""

    def command(self, port: int) -> list[str]:
        # urlparse takes a semicolon in a name for the beginning of parameters
        program = (
            "from gcp_storage_emulator import __main__, server; from urllib.parse import urlsplit;"
            "server.urlparse = urlsplit; from tests.files.clouds import heed_generations;"
            "heed_generations(server); __main__.main()"
        )
        place = ["--host", "127.0.0.1", "--port", str(port), "--in-memory"]
        return [sys.executable, "-c", program, "start", *place, "--default-bucket", CONTAINER]

    @property
    def environ(self) -> dict[str, str]:
        options = f'{{"endpoint_url": "{self.endpoint}", "token": "anon", "project": "test"}}'
        return {"QUINE_FS_OPTIONS": options, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


def heed_generations(server: Any) -> None:
    """Have the emulator refuse to delete an object with another ifGenerationMatch, as Google does."""
    for _, handlers in server.HANDLERS:
        if (delete := handlers.get(server.DELETE)) and delete.__module__.endswith(".objects"):
            handlers[server.DELETE] = _heeding(delete)


def _heeding(delete: Callable[..., None]) -> Callable[..., None]:
    def heeding(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        wanted = request.query.get("ifGenerationMatch")
        with contextlib.suppress(Exception):  # the emulator says itself that there is none
            there = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
            if wanted and there["generation"] != wanted[0]:
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json({"error": {"code": 412, "message": "conditionNotMet"}})
                return
        delete(request, response, storage, *args, **kwargs)

    return heeding


class Azure(Cloud):
    """`az://shelf`."""

    def command(self, port: int) -> list[str]:
        place = ["--blobPort", str(port), "--location", str(self._directory)]
        return [AZURITE, *place, "--skipApiVersionCheck", "--silent"]

    def __enter__(self) -> Self:
        super().__enter__()
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(
            self.environ["AZURE_STORAGE_CONNECTION_STRING"]
        ) as client:
            client.create_container(CONTAINER)
        return self

    @property
    def environ(self) -> dict[str, str]:
        account = f"AccountName={ACCOUNT};AccountKey={KEY}"
        text = f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={self.endpoint}/{ACCOUNT};"
        return {"AZURE_STORAGE_CONNECTION_STRING": text}

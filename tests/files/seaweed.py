"""A real S3 server on loopback for the tests: SeaweedFS, one process, with keys of its own.

Laws
1. Nothing is fixed and nothing is left: ports that the kernel gives, data in a directory that goes with the server,
   and a server that dies with the process that started it.
2. Ready means that it has stored and deleted an object; a port that somebody else took meanwhile is tried again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from quine.files.stores.object.client import Bucket, Unmet
from tests.lab.machine import free_port

BUCKET = "shelf"
KEY, SECRET = "AKIAWEEDTEST", "canary-weed-5e1f0c7a93"
START = 150.0  # seconds; it takes three, on a loaded machine a minute
TRIES = 4
WEED = Path(sys.prefix) / "bin" / "weed"


class Weed:
    """A context manager; `endpoint` is its URL."""

    def __init__(self) -> None:
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []
        self.endpoint = ""

    def __enter__(self) -> Self:
        for left in reversed(range(TRIES)):
            self._directory = Path(tempfile.mkdtemp(prefix="qs-", dir="/tmp"))
            try:
                self._start()
                return self
            except (OSError, Unmet) as fault:
                log = self._directory / "log"
                said = log.read_text(errors="replace")[-2000:] if log.exists() else "nothing"
                self.__exit__(None, None, None)
                if not left:
                    raise AssertionError(f"weed does not start: {fault}; it says: {said}") from None
            except BaseException:
                self.__exit__(None, None, None)
                raise
        raise AssertionError("unreachable")

    def _start(self) -> None:
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config, data = self._directory / "s3.json", self._directory / "data"
        config.write_text(json.dumps({"identities": [identity]}))
        data.mkdir()
        # one after the other could be twice the same
        chosen: set[int] = set()
        while len(chosen) < 8:
            chosen.add(free_port())
        self._ports = list(chosen)
        port, grpc, *others = self._ports
        self.endpoint = f"http://127.0.0.1:{port}"
        kinds = [f"-{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")]
        ports = [f"{kind}={other}" for kind, other in zip(kinds, others, strict=True)]
        options = [
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-s3", f"-s3.config={config}"),
            *(f"-s3.port={port}", f"-s3.port.grpc={grpc}", "-s3.port.iceberg=0", "-s3.port.lance=0", *ports),
            *(f"-filer.localSocket={self._directory}/f", f"-s3.localSocket={self._directory}/s"),
            *("-volume.max=20", "-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=0", "-master.telemetry=false"),
        ]  # fmt: skip
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [WEED, "server", *options],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + START
        while True:
            try:
                with contextlib.closing(self.bucket()) as bucket:
                    bucket.call("put_object", "", Key="ready", Body=b"1")
                    bucket.call("delete_object", "", Key="ready")
                if self._process.poll() is not None:
                    raise OSError(errno.EADDRINUSE, "somebody else's server answers")
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def bucket(self) -> Bucket:
        """A client of the one bucket: each would take volumes of its own, and there are few."""
        bucket = Bucket(BUCKET, {}, self.options)
        try:
            bucket.call("create_bucket", "")
        except OSError as error:
            if "already" not in str(error):
                bucket.close()
                raise
        return bucket

    @property
    def options(self) -> dict[str, Any]:
        """For QUINE_FS_OPTIONS."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}

    @property
    def environ(self) -> dict[str, str]:
        """The same as AWS's tools know it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)
        for part in ("master", "volume", "filer", "s3"):  # it makes them there, wherever its directory is
            for port in self._ports:
                Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

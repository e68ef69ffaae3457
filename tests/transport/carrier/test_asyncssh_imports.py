"""No imported module asks a compiler where a library is."""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys

import pytest

from transport.carrier.ssh.asyncssh_imports import quickly

STARTED = """
import json, sys
started = []
def hook(event, args):
    if event == "subprocess.Popen": started.append(str(args[0]))
sys.addaudithook(hook)
import transport.carrier.ssh.connect
print(json.dumps(started))
"""


def test_nothing_but_the_cache_is_asked_as_ssh_is_imported() -> None:
    """A process killed during the import would leave the compiler's temporary file."""
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, timeout=120, check=True)
    assert {path.rpartition("/")[2] for path in json.loads(done.stdout)} <= {"ldconfig"}


def test_afterwards_it_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    find = ctypes.util.find_library
    with pytest.raises(ImportError), quickly():
        assert ctypes.util.find_library is not find
        raise ImportError
    assert ctypes.util.find_library is find
    monkeypatch.delattr(ctypes.util, "_findSoname_ldconfig")
    with quickly():
        assert ctypes.util.find_library is find


def test_the_certificates_that_no_dial_uses_are_not_loaded_for_one() -> None:
    """They take an eighth of the import. A later import of them is not hindered."""
    code = (
        "import sys, transport.carrier.ssh.connect as it; name = 'asyncssh.crypto.x509'\n"
        "assert 'cryptography.x509' not in sys.modules and name not in sys.modules\n"
        "assert it.asyncssh.generate_private_key('ssh-ed25519')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)

"""Which distribution this is, and the command that adds an extra to it."""

from __future__ import annotations

from importlib import metadata

import pytest

from deploy import install


def test_our_distribution_is_found_by_its_name_or_by_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "NAME", "a-fork-of-it")
    found = install.distribution()
    assert found is not None and any(point.value == install.POINT for point in found.entry_points)
    monkeypatch.setattr(metadata, "distributions", lambda: iter(()))
    assert install.distribution() is None and install.source() == "."


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ('{"url": "file:///home/me/my%20quine"}', "/home/me/my quine"),
        ('{"url": "git+https://host/quine"}', "git+https://host/quine"),
        ("[]", "."),
        ("{", "."),
        (None, "."),
    ],
)
def test_the_same_source_is_installed_again_by_the_same_tool(
    monkeypatch: pytest.MonkeyPatch, url: str | None, source: str
) -> None:
    class Known:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return url

    monkeypatch.setattr(install, "distribution", Known)
    assert install.with_extra("s3", "/v") == f"/v/bin/python -m pip install '{source}[s3]'"
    tool = "/home/me/.local/share/uv/tools/quine-agent"
    assert install.with_extra("s3", tool) == f"uv tool install --force '{source}[s3]'"
    pipx = "/home/me/.local/share/pipx/venvs/quine-agent"
    assert install.with_extra("s3", pipx) == f"pipx install --force '{source}[s3]'"

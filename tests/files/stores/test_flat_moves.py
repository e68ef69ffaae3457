"""Moves in Google and Azure: of many clients one wins, and nothing is lost by an answer that is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quine.files.api import Entry, OutcomeUnknown
from quine.files.stores import azure, google
from quine.files.stores.flat_moves import move


class Store:
    """Names with a version and a content. `meanwhile` is called once, when a copy has been made."""

    def __init__(self, **files: str) -> None:
        self.files = {name: (content, str(number)) for number, (name, content) in enumerate(files.items())}
        self.versions = 100
        self.meanwhile: Callable[[], None] = lambda: None
        self.answers = True

    def put(self, path: str, content: str) -> Entry:
        self.versions += 1
        self.files[path] = (content, str(self.versions))
        return self.stat(path)

    def stat(self, path: str) -> Entry:
        if path not in self.files:
            raise FileNotFoundError(2, "no such file", path)
        content, version = self.files[path]
        return Entry(path, "file", len(content), 0, 0o644, version)

    def copy(self, source: str, target: str, if_absent: bool) -> Entry:
        content = self.files[source][0]
        if if_absent and target in self.files:
            raise FileExistsError(17, "file exists", target)
        made = self.put(target, content)
        once, self.meanwhile = self.meanwhile, lambda: None
        once()
        return made

    def drop(self, entry: Entry) -> bool:
        if self.files.get(entry.path, ("", ""))[1] != entry.version:
            return False
        del self.files[entry.path]
        if not self.answers:
            raise FileNotFoundError(2, "no such file", entry.path)
        return True

    def moved(self, if_absent: bool = False) -> dict[str, str]:
        free = "mine" not in self.files
        with contextlib.suppress(FileNotFoundError, OutcomeUnknown):
            move(self, self.stat("x"), "mine", if_absent, free, self.drop)  # type: ignore[arg-type]
        return {name: content for name, (content, _) in self.files.items()}


@pytest.mark.parametrize("if_absent", [False, True])
def test_one_of_many_that_move_a_file_has_it(if_absent: bool) -> None:
    store = Store(x="job")

    def other() -> None:
        del store.files["x"]
        store.put("theirs", "job")

    store.meanwhile = other
    assert store.moved(if_absent) == {"theirs": "job"}


def test_a_newer_version_is_moved_in_its_place() -> None:
    store = Store(x="old")
    store.meanwhile = lambda: store.put("x", "new") and None
    assert store.moved() == {"mine": "new"}


def test_what_another_client_has_put_at_the_target_is_not_taken_back() -> None:
    store = Store(x="job")

    def other() -> None:
        del store.files["x"]
        store.put("mine", "of another client")

    store.meanwhile = other
    assert store.moved() == {"mine": "of another client"}


def test_a_copy_of_another_size_than_was_looked_at_is_taken_back() -> None:
    store = Store(x="old")
    here = store.stat("x")
    store.put("x", "newer")
    move(store, here, "mine", True, True, store.drop)  # type: ignore[arg-type]
    assert {name: content for name, (content, _) in store.files.items()} == {"mine": "newer"}


@pytest.mark.parametrize("known", [False, True])
def test_a_copy_that_stays_is_named(known: bool) -> None:
    """Over a file that was there; or at a free place, where the driver gives no version of a put."""
    store = Store(x="job", **({"mine": "before"} if known else {}))
    store.meanwhile = lambda: store.files.pop("x") and None
    if not known:
        copy = store.copy
        store.copy = lambda *asked: copy(*asked)._replace(version="")  # type: ignore[method-assign]
    with pytest.raises(FileNotFoundError, match="no such file; mine is a copy of it now") as caught:
        move(store, store.stat("x"), "mine", False, not known, store.drop)  # type: ignore[arg-type]
    assert (caught.value.filename, store.stat("mine").size) == ("x", 3)


def test_a_copy_stays_if_the_removal_may_have_been_ours() -> None:
    store = Store(x="job")
    store.answers = False
    assert store.moved() == {"mine": "job"}


class Answers:
    """The client of a cloud: each removal takes the next answer, an error or none."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.service_client = self
        self.words: list[Any] = []

    loop = None

    def split_path(self, place: str) -> tuple[str, str, None]:
        return "bucket", place, None

    async def _request(self, *_: object, **__: object) -> None:
        raise AssertionError("the driver repeats it, unseen")

    async def _once(self, *_: object, **words: object) -> None:
        self.words.append(words)
        if answer := self.answers.pop(0):
            raise answer

    _request.__wrapped__ = _once  # type: ignore[attr-defined]

    def call(self, *_: object, **words: object) -> None:
        self.words.append("again")
        if answer := self.answers.pop(0):
            raise answer

    @contextlib.asynccontextmanager
    async def get_container_client(self, container: str) -> AsyncIterator[Answers]:
        yield self

    async def delete_blob(self, *_: object, **words: object) -> None:
        await self._once(**words)


@pytest.fixture
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of drivers has a thread, which stays."""
    asyn = pytest.importorskip("fsspec.asyn")
    monkeypatch.setattr(asyn, "sync", lambda _, call, *args, **words: asyncio.run(call(*args, **words)))


@pytest.mark.usefixtures("_no_thread")
def test_google_tells_a_removal_by_another_client_from_one_whose_answer_was_lost() -> None:
    assert google.drop(Answers(None), "x", "7")
    assert not google.drop(Answers(FileNotFoundError()), "x", "7")
    assert not google.drop(Answers(FileExistsError()), "x", "7")
    assert google.drop(Answers(ConnectionResetError(), None), "x", "7")
    assert not google.drop(Answers(ConnectionResetError(), FileExistsError()), "x", "7")
    lost = Answers(ConnectionResetError(), FileNotFoundError())
    with pytest.raises(FileNotFoundError):
        google.drop(lost, "x", "7")
    assert lost.words == [{"ifGenerationMatch": "7"}, "again"]


@pytest.mark.usefixtures("_no_thread")
def test_azure_tells_a_removal_by_another_client_from_one_whose_answer_was_lost() -> None:
    exceptions = pytest.importorskip("azure.core.exceptions")
    gone, newer = exceptions.ResourceNotFoundError(), exceptions.ResourceModifiedError()
    cut = exceptions.ServiceResponseError("cut")
    assert azure.drop(Answers(None), "x", "7")
    assert not azure.drop(Answers(gone), "x", "7")
    assert not azure.drop(Answers(newer), "x", "7")
    assert azure.drop(Answers(cut, None), "x", "7")
    lost = Answers(cut, gone)
    with pytest.raises(FileNotFoundError):
        azure.drop(lost, "x", "7")
    assert lost.words[0]["retry_total"] == 0 and "retry_total" not in lost.words[1]

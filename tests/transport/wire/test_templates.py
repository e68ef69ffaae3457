"""Templates of spawns: sent once, the same at the other end, over a line that breaks at any byte; and hostile ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.wire.test_resume import Pair
from transport.client.feed import Feed
from transport.errors import ProtocolError
from transport.spawn import OWN, Spawn, Template
from transport.wire.frames import GREETING, Frame, Kind, encode, pack
from transport.wire.session import Session
from transport.wire.templates import MAX_TEMPLATES

SHARED = {name: value for name, value in Spawn(["x"]).to_json().items() if name not in OWN}


def spawn(shared: int, argv: list[str]) -> Spawn:
    """One of several kinds of jobs, which differ in each shared field that a batch may change."""
    return Spawn(
        argv,
        where=f"@{shared % 2}",
        env={"N": str(shared)},
        cwd=None if shared % 3 else "/tmp",
        tree=f"t{shared % 5}",
        limits={"nofile": str(shared + 9)} if shared % 4 == 1 else {},
        slots=shared % 3,
        keep=shared % 7 == 1,
        context={"late": True, "avoid": ["h"] * (shared % 2)},
        capability="c" * (shared % 3),
    )


def said(job: Spawn) -> dict[str, Any]:
    return job.to_json()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 80), st.lists(st.text("ab %", max_size=3), min_size=1, max_size=3)),
            st.sampled_from(["cut", "some", "all"]),
        ),
        max_size=120,
    ),
    st.integers(1, 300),
)
def test_jobs_arrive_as_they_were_whatever_they_share_and_however_the_line_breaks(
    steps: list[Any], size: int
) -> None:
    pair, feeds, sent = Pair(), {}, []  # type: ignore[var-annotated]
    for step in steps:
        if step == "cut":
            pair.cut()
            pair.connect()
        elif step in ("some", "all"):
            pair.write(pair.opener)
            pair.carry(pair.opener, size if step == "some" else 1 << 30)
        else:
            job = spawn(*step)
            template = feeds.setdefault(job.where, Feed(job.where)).template(job)
            body = job.own_fields() if template else job.to_json()
            pair.opener.open(Kind.SPAWN, body, template=template)
            sent.append(job)
    pair.settle()
    got = [Spawn.from_json(frame.body(), frame.template) for frame in pair.got[pair.server]]
    assert [said(job) for job in got] == [said(job) for job in sent]
    assert len(pair.server._templates) <= MAX_TEMPLATES


def test_what_jobs_share_is_sent_once() -> None:
    pair, feed = Pair(), Feed("@0")
    sizes = []
    for n in range(5):
        job = spawn(0, [str(n)])
        job.env["LONG"] = "x" * 1000
        template = feed.template(job)
        pair.opener.open(Kind.SPAWN, job.own_fields() if template else job.to_json(), template=template)
        sizes.append(sum(map(len, pair.opener.pull(1 << 20))))
    assert min(sizes[:2]) > 1000 and max(sizes[2:]) < 200
    job.env = {"LONG": "y"}
    assert feed.template(job) is None, "another kind of job is sent whole"


def test_a_template_that_no_node_would_take_is_not_sent() -> None:
    """Its jobs are sent whole, so that each is told the reason."""
    for wrong in ({"env": {"a=b": "c"}}, {"env": {"LONG": "x" * 70_000}}):
        feed = Feed("")
        assert [feed.template(Spawn(["true"], tree="t", **wrong)) for _ in range(3)] == [None] * 3  # type: ignore[arg-type]


def server(*frames: Frame) -> tuple[Session, list[Frame]]:
    """A node's end of a link to a hostile client, and the frames that it has handed on."""
    end = Session(False, {})
    first = Frame(Kind.HELLO, payload=pack({"version": 2}))
    return end, list(end.receive(GREETING + b"".join(map(encode, (first, *frames)))))


def template(number: int, **changed: Any) -> Frame:
    return Frame(Kind.TEMPLATE, 0, 0, number, pack({**SHARED, **changed}))


JOB = Frame(Kind.SPAWN, 1, 0, 1, pack({"id": "a", "argv": ["true"], "capability": ""}))


@pytest.mark.parametrize(
    "frames",
    [
        [JOB],
        [template(2), JOB],
        [template(0)],
        [template(MAX_TEMPLATES + 1)],
        [Frame(Kind.TEMPLATE, 1, 0, 1, template(1).payload)],
        [Frame(Kind.TEMPLATE, 0, 0, 1, b"[]")],
        [Frame(Kind.TEMPLATE, 0, 0, 1, b"{}")],
        [template(1, id="x")],
        [template(1, lease=-1)],
        [template(1, env={"a=": "b"})],
        [template(1, tree="../x")],
        [template(1), Frame(Kind.REQUEST, 1, 0, 1, b'{"name": "infer"}')],
    ],
)
def test_templates_that_end_the_link(frames: list[Frame]) -> None:
    with pytest.raises(ProtocolError):
        server(*frames)


@pytest.mark.parametrize(
    "body",
    [
        {"id": "a", "argv": ["true"]},
        {"id": "a", "argv": ["true"], "capability": "", "env": {}},
        {"id": "a/b", "argv": ["true"], "capability": ""},
        {"id": "", "argv": ["true"], "capability": ""},
        {"id": "a", "argv": [], "capability": ""},
        {"id": "a", "argv": ["a\0"], "capability": ""},
        {"id": "a", "argv": [1], "capability": ""},
        {"id": 1, "argv": ["true"], "capability": ""},
        {"id": "a", "argv": ["true"], "capability": "x" * 65},
    ],
)
def test_spawns_by_a_template_that_are_none(body: dict[str, Any]) -> None:
    _, (frame,) = server(template(1), Frame(Kind.SPAWN, 1, 0, 1, pack(body)))
    with pytest.raises(ProtocolError):
        Spawn.from_json(frame.body(), frame.template)


def test_a_template_that_is_defined_again_is_the_new_one_for_later_spawns_alone() -> None:
    after = Frame(Kind.SPAWN, 3, 0, 1, JOB.payload)
    _, frames = server(template(1, cwd="/one"), JOB, template(1, cwd="/two"), after)
    assert [Spawn.from_json(frame.body(), frame.template).cwd for frame in frames] == ["/one", "/two"]


def test_a_flood_of_templates_is_bounded() -> None:
    end, _ = server(*(template(1 + n % MAX_TEMPLATES, cwd=f"/{n}") for n in range(3000)))
    assert len(end._templates) == MAX_TEMPLATES


def test_an_end_that_has_opened_the_link_takes_no_template() -> None:
    """A host could otherwise have a node keep more for a job that it asks for than the size of its spawn says."""
    pair = Pair()
    with pytest.raises(ProtocolError, match="opened"):
        list(pair.opener.receive(encode(template(1))))


def test_what_is_derived_from_a_template_is_bounded() -> None:
    made = Template.of(spawn(1, ["x"]))
    for n in range(5000):
        assert made.derive(str(n), n) == n
    assert len(made.derived) <= 1024

"""Handlers by the type of their parameter: what decodes arrives as that, what does not is a dead letter."""

import asyncio
import enum
import functools
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
import pydantic
import pytest

import lakemq
from client.fake_server import FakeServer
from client.test_handlers import run_in_thread, until
from lakemq import Delivery
from lakemq.client.body_types import decoder_of, parameters_of
from lakemq.client.errors import HandlerError
from lakemq.errors import SerializationError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: int
    total: float
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    day: date | None = None
    at: datetime | None = None
    price: Decimal = Decimal(0)
    uid: UUID | None = None
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    tags: set[str] = field(default_factory=set)
    more: dict[str, Any] = field(default_factory=dict)
    marked: Annotated[int, "whatever"] = 0
    made: str = field(default="here", init=False)

    def __post_init__(self):
        if self.total < 0:
            raise ValueError("the total is below zero")


class PydanticOrder(pydantic.BaseModel):
    id: int
    total: float


@pydantic.dataclasses.dataclass
class PydanticLine:
    sku: str


class StructOrder(msgspec.Struct):
    id: int
    total: float


class MessageLike(Protocol):
    body: bytes


def test_a_dataclass_is_filled_by_the_types_of_its_fields():
    body = (
        b'{"id": 1, "total": 2, "lines": [{"sku": "x"}, {"sku": "y", "count": 3}], "note": null, "day": "2024-02-29",'
        b' "at": "2024-02-29T10:00:00+00:00", "price": "9.90", "uid": "12345678-1234-5678-1234-567812345678",'
        b' "colour": "red", "kind": "b", "sizes": [1, 2], "pair": [7, "seven"], "tags": ["p", "p"],'
        b' "more": {"any": [1]}, "marked": 5, "unknown": true, "made": "there"}'
    )
    order = decoder_of(Order)(body)
    assert order == Order(
        1,
        2.0,
        [Line("x"), Line("y", 3)],
        None,
        date(2024, 2, 29),
        datetime(2024, 2, 29, 10, tzinfo=UTC),
        Decimal("9.90"),
        UUID("12345678-1234-5678-1234-567812345678"),
        Colour.RED,
        "b",
        (1, 2),
        (7, "seven"),
        {"p"},
        {"any": [1]},
        5,
    )
    assert type(order.total) is float


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "the whole is to be an object, not [1]"),
        (b'{"id": 1}', "total is missing"),
        (b'{"id": "1", "total": 1}', 'id is to be a whole number, not "1"'),
        (b'{"id": true, "total": 1}', "id is to be a whole number, not true"),
        (b'{"id": 1.0, "total": 1}', "id is to be a whole number, not 1.0"),
        (b'{"id": 1, "total": 1, "lines": [{"sku": "a"}, {}]}', "lines[1].sku is missing"),
        (b'{"id": 1, "total": 1, "note": 5}', "note is to be text"),
        (b'{"id": 1, "total": 1, "day": "yesterday"}', "day is to be text of a date"),
        (b'{"id": 1, "total": 1, "price": "x"}', "price is to be text of a Decimal"),
        (b'{"id": 1, "total": 1, "colour": "blue"}', "colour is to be one of 'red'"),
        (b'{"id": 1, "total": 1, "kind": "c"}', "kind is to be one of 'a', 'b'"),
        (b'{"id": 1, "total": 1, "pair": [1]}', "pair is to be an array of 2"),
        (b'{"id": 1, "total": -1}', "the total is below zero"),
    ],
)
def test_what_is_no_such_dataclass_says_where_and_why(body, why):
    with pytest.raises(SerializationError) as raised:
        decoder_of(Order)(body)
    assert why in str(raised.value)
    assert "Order" in str(raised.value)


@pytest.mark.parametrize("kind", [Order, PydanticOrder, StructOrder], ids=["dataclass", "pydantic", "msgspec"])
def test_all_kinds_of_models_decode_and_refuse(kind):
    order = decoder_of(kind)(b'{"id": 7, "total": 1.5, "unknown": 1}')
    assert (type(order), order.id, order.total) == (kind, 7, 1.5)
    for wrong in (b"{}", b'{"id": "x", "total": 1}', b"{", b"[]", b"\xff"):
        with pytest.raises(SerializationError, match=kind.__name__):
            decoder_of(kind)(wrong)


def test_other_bodies_may_be_asked_for_by_type():
    assert decoder_of(dict)(b'{"a": 1}') == {"a": 1}
    assert decoder_of(dict[str, int])(b'{"a": 1}') == {"a": 1}
    assert decoder_of(list[Line])(b'[{"sku": "a"}]') == [Line("a")]
    assert decoder_of(str)("grün".encode()) == "grün"
    assert decoder_of(bytes)(b"\xff") == b"\xff"
    assert decoder_of(PydanticLine)(b'{"sku": "a"}') == PydanticLine("a")
    for kind, wrong in ((dict, b"[]"), (list, b"{}"), (str, b"\xff"), (dict[str, int], b'{"a": "1"}')):
        with pytest.raises(SerializationError):
            decoder_of(kind)(wrong)
    assert decoder_of(int) is None


def takes_message(message: Delivery):
    pass


def takes_any(message: Any):
    pass


def takes_protocol(message: MessageLike):
    pass


def takes_text(message: "Delivery"):
    pass


def takes_missing_text(message: "not_imported.Delivery"):  # noqa: F821
    pass


def takes_all(*messages):
    pass


@pytest.mark.parametrize(
    "function",
    [takes_message, takes_any, takes_protocol, takes_text, takes_missing_text, takes_all, lambda message: 0, print],
)
def test_what_asks_for_the_message_gets_the_message(function):
    assert parameters_of(function).decode is None


def takes_order(order: Order):
    pass


def takes_order_text(order: "Order"):
    pass


def takes_both(order: Order, message: Delivery):
    pass


def takes_both_without_a_word(order: Order, message):
    pass


def takes_default(order: Order, limit=5):
    pass


def test_what_asks_for_more_gets_the_message_behind_the_value():
    assert parameters_of(takes_order).decode is not None
    assert parameters_of(takes_order_text).decode is not None
    assert parameters_of(functools.partial(takes_default, limit=1)).decode is not None
    wants = {
        f.__name__: parameters_of(f).wants_message
        for f in (takes_order, takes_both, takes_both_without_a_word, takes_default)
    }
    assert wants == {
        "takes_order": False,
        "takes_both": True,
        "takes_both_without_a_word": True,
        "takes_default": False,
    }


def takes_number(number: int):
    pass


def takes_nothing():
    pass


def takes_three(order: Order, message, third):
    pass


def takes_unknown(order: "NoSuchClass"):  # noqa: F821
    pass


@pytest.mark.parametrize("function", [takes_number, takes_nothing, takes_three, takes_unknown])
def test_what_nobody_can_give_is_refused_when_decorated(function):
    with pytest.raises(HandlerError) as raised:
        parameters_of(function)
    assert function.__name__ in str(raised.value)
    assert raised.value.fix


@pytest.fixture
def server():
    with FakeServer(partitions=1) as server:
        yield server


def fill(server):
    with lakemq.connect(server.url, app="shop") as mq:
        for body in (b'{"id": 1, "total": 1}', b"no json", b'{"id": 2}', b'{"id": 3, "total": 3}'):
            mq.send("orders", body, partition=0)


@pytest.mark.parametrize("kind", [Order, PydanticOrder, StructOrder], ids=["dataclass", "pydantic", "msgspec"])
def test_a_typed_handler_gets_values_and_what_does_not_decode_is_a_dead_letter(server, kind):
    fill(server)
    seen = []

    def handle(order, message):
        seen.append((type(order), order.id, message.offset))

    handle.__annotations__ = {"order": kind, "message": Delivery}
    with lakemq.connect(server.url, app="shop", local_retries=3) as mq:
        mq.handler("orders", group="h")(handle)
        thread = run_in_thread(mq)
        assert until(lambda: server.cluster.acks == {("orders", "shop.h", 0): 4})
        mq.stop()
        thread.join(10)
    assert seen == [(kind, 1, 0), (kind, 3, 3)]
    assert [(body, attempts) for body, _, attempts in server.cluster.dead] == [(b"no json", 1), (b'{"id": 2}', 1)]
    assert all("SerializationError" in reason and kind.__name__ in reason for _, reason, _ in server.cluster.dead)
    assert server.cluster.retried == []


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "plain"])
def test_typed_handlers_of_the_asyncio_client(server, is_async):
    fill(server)
    seen = []

    async def later(order: Order):
        seen.append(order.id)

    def now(order: Order):
        seen.append(order.id)

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:
            mq.handler("orders", group="h")(later if is_async else now)
            running = asyncio.create_task(mq.run())
            async with asyncio.timeout(10):
                while server.cluster.acks != {("orders", "shop.h", 0): 4}:
                    await asyncio.sleep(0.005)
            mq.stop()
            await running

    asyncio.run(work())
    assert seen == [1, 3]
    assert len(server.cluster.dead) == 2


def test_what_a_typed_handler_raises_is_a_failure_like_any_other(server):
    with lakemq.connect(server.url, app="shop") as mq:
        mq.send("orders", b'{"id": 1, "total": 1}', partition=0)

        @mq.handler("orders", group="h")
        def handle(order: Order):
            raise ValueError("not now")

        thread = run_in_thread(mq)
        assert until(lambda: server.cluster.retried)
        mq.stop()
        thread.join(10)
    assert server.cluster.dead == []

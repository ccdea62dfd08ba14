"""A client keeps what it was given; what can't take our models is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions, pydantic_data_converter
from temporalio.converter import DataConverter, DefaultPayloadConverter, PayloadCodec

from turnsaga import TurnSagaPlugin
from turnsaga.converting import SharedPayloadConverter, data_converter, with_pydantic
from turnsaga.errors import InvalidRequest
from turnsaga.models import TurnRef

JSON = b"json/plain"
REF = TurnRef(tenant="acme", turn="trn_1")


class Reversing(PayloadCodec):
    """Stands for a codec that encrypts."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=payload.metadata, data=payload.data[::-1]) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.encode(payloads)


class OurOwn(PydanticPayloadConverter):
    """One that somebody has made for the models of theirs."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


class Foreign(DefaultPayloadConverter):
    """One that knows nothing of pydantic."""


async def connected(converter: DataConverter) -> DataConverter:
    client = await Client.connect(
        "127.0.0.1:1", lazy=True, data_converter=converter, plugins=[TurnSagaPlugin()]
    )
    return client.data_converter


@pytest.mark.parametrize(
    "given", [DataConverter.default, pydantic_data_converter], ids=["default", "pydantic"]
)
async def test_plugin_keeps_a_client_s_codec(given: DataConverter) -> None:
    codec = Reversing()
    converter = await connected(replace(given, payload_codec=codec))
    [payload] = await converter.encode([REF])

    assert converter.payload_codec is codec
    assert converter.payload_converter_class is SharedPayloadConverter
    assert b"acme" not in payload.data
    assert b"emca" in payload.data
    assert await converter.decode([payload], [TurnRef]) == [REF]


async def test_payload_converter_of_one_s_own_stays() -> None:
    converter = await connected(DataConverter(payload_converter_class=OurOwn))

    assert converter.payload_converter_class is OurOwn
    assert await converter.decode(await converter.encode([REF]), [TurnRef]) == [REF]


async def test_payload_converter_that_can_t_take_the_models_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Foreign doesn't take the library's models"):
        await connected(DataConverter(payload_converter_class=Foreign))


def test_nothing_given_is_the_library_s_own() -> None:
    assert with_pydantic(None) is data_converter


def test_parts_are_made_once() -> None:
    one, other = SharedPayloadConverter(), SharedPayloadConverter()

    assert one.converters[JSON] is other.converters[JSON]
    assert list(one.converters) == list(PydanticPayloadConverter().converters)


def test_each_workflow_in_a_sandbox_has_a_reader_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes are its own too: readers of them would stay for ever."""
    shared = SharedPayloadConverter()
    monkeypatch.setattr("temporalio.workflow.unsafe.in_sandbox", lambda: True)
    inside = SharedPayloadConverter()

    assert inside.converters[JSON] is not shared.converters[JSON]
    assert list(inside.converters) == list(shared.converters)

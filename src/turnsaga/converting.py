"""How what crosses Temporal is written: as JSON by pydantic, by parts that are made once.

The SDK makes a payload converter for each run and two for each workflow task. Making pydantic's anew each
time cost a twentieth of a worker's processor time (docs/benchmarks.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from temporalio import workflow
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
)

from turnsaga.errors import InvalidRequest

__all__ = ["SharedPayloadConverter", "data_converter", "with_pydantic"]

_PARTS: Final[Sequence[EncodingPayloadConverter]] = tuple(PydanticPayloadConverter().converters.values())


class SharedPayloadConverter(PydanticPayloadConverter):
    """The SDK's converter for pydantic models, whose parts all instances share.

    Not inside a workflow's sandbox: classes are imported anew there for each run, and what reads them must
    go with the run.
    """

    def __init__(self) -> None:
        """Take the parts that there are."""
        if workflow.unsafe.in_sandbox():
            super().__init__()
        else:
            CompositePayloadConverter.__init__(self, *_PARTS)


data_converter: Final = DataConverter(payload_converter_class=SharedPayloadConverter)
"""The data converter of clients and workers; ``dataclasses.replace`` gives it a codec."""


def with_pydantic(given: DataConverter | None) -> DataConverter:
    """Return a data converter that takes the library's models, with all else as it was given.

    Raises:
        InvalidRequest: it has a payload converter of its own that isn't pydantic's.
    """
    if given is None:
        return data_converter
    kind = given.payload_converter_class
    if kind in {DefaultPayloadConverter, PydanticPayloadConverter}:
        return dataclasses.replace(given, payload_converter_class=SharedPayloadConverter)
    if issubclass(kind, PydanticPayloadConverter):
        return given
    raise InvalidRequest(
        "data_converter",
        f"its payload converter {kind.__qualname__} doesn't take the library's models; derive it from "
        "temporalio.contrib.pydantic.PydanticPayloadConverter",
    )

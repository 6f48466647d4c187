"""pytest fixtures, found by pytest itself once LakeMQ is installed: `lakemq_broker`, a broker in memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lakemq.testing.broker import TestBroker


@pytest.fixture
def lakemq_broker() -> "Iterator[TestBroker]":
    """A broker in memory with a clock that the test moves; see `lakemq.testing.broker.TestBroker`."""
    from lakemq.testing.broker import TestBroker

    with TestBroker() as broker:
        yield broker

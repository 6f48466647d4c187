"""What users import from `lakemq`: all of it shows, and nothing is loaded before it is asked for."""

import subprocess
import sys

import pytest

import lakemq
from lakemq.client import errors as client_errors
from lakemq.errors import LakeMQError


def subclasses(kind):
    return {kind, *(found for below in kind.__subclasses__() for found in subclasses(below))}


def test_every_error_of_broker_and_client_is_a_name_of_the_package():
    homes = {"lakemq.errors", "lakemq.client.errors"}
    errors = [kind for kind in subclasses(LakeMQError) if kind.__module__ in homes]
    assert len(errors) > 50
    for kind in errors:
        assert getattr(lakemq, kind.__name__) is kind
        assert kind.__name__ in dir(lakemq)


def test_they_can_be_imported_by_name():
    from lakemq import BadParameterError, HandlerError, SendTimeoutError, TopicNotFoundError

    assert SendTimeoutError is client_errors.SendTimeoutError
    assert issubclass(HandlerError, TypeError)
    assert {BadParameterError.status, TopicNotFoundError.status} == {6, TopicNotFoundError.status}


def test_dir_shows_the_api_and_all_of_it_is_there():
    shown = dir(lakemq)
    assert {"connect", "aio", "Client", "Consumer", "Message", "Settle", "SendTimeoutError"} <= set(shown)
    assert all(getattr(lakemq, name) is not None for name in shown)
    assert set(lakemq.__all__) <= set(shown)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchError"):
        lakemq.NoSuchError  # noqa: B018
    with pytest.raises(ImportError):
        from lakemq import nothing_of_the_kind  # noqa: F401


def test_importing_the_package_loads_none_of_it():
    code = "import sys, lakemq; print([name for name in sys.modules if name.startswith('lakemq.')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "['lakemq.version']"

"""The error tree: complete, unambiguous, and worth reading."""

import ast
import pickle
from pathlib import Path

import pytest

from lakemq import errors
from lakemq.errors import BadFrameError, LakeMQError, NotLeaderError, TopicNotFoundError, UnknownError

# The jmq4 document's table, without 0 (success).
SEED_CODES = [
    *(1, 2, 3, 4, 5, 6, 7, 8, 9),
    *(91, 92, 93),
    *(101, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117),
    *(131, 132, 134, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150),
    *(181, 182, 183, 184, 185, 186, 187, 188, 189, 190),
]
# Known to JoyQueue clients besides.
EXTRA_CODES = [26, 27, 28, 34, 74, 94, 191, 192, 193, 240]
# reliability: with these the message may or may not appear.
UNKNOWN_OUTCOME_CODES = {3, 4, 91, 101, 108, 109, 111, 112, 113, 141}
# Someone has to change the request, a setting or a disk first; asking again alone does not help.
NOT_RETRIABLE_CODES = {
    *(1, 2, 4, 6, 7, 8, 27, 28, 34, 92, 93, 107, 110, 114),
    *(131, 132, 134, 136, 137, 138, 139, 140, 144, 145, 146, 147, 149, 182, 184, 189),
}
# Names that other modules and users rely on.
NAMES = {
    1: "NoPermissionError",
    2: "AuthenticationError",
    3: "ServiceUnavailableError",
    4: "UnknownError",
    6: "BadParameterError",
    8: "ChecksumError",
    26: "BrokerBusyError",
    27: "UnsupportedCommandError",
    28: "DecodeError",
    107: "SerializationError",
    132: "ConnectionNotFoundError",
    187: "NotLeaderForFetchError",
    188: "NotLeaderError",
    189: "TopicNotFoundError",
}


def family_tree(root=LakeMQError):
    """The root and every class of the module below it, those without a status too."""
    below = [
        cls for child in root.__subclasses__() if child.__module__ == errors.__name__ for cls in family_tree(child)
    ]
    return [root, *below]


ALL_CLASSES = family_tree()
by_name = pytest.mark.parametrize("cls", ALL_CLASSES, ids=lambda cls: cls.__name__)


def test_every_code_of_the_table_has_a_class_and_there_are_no_others():
    assert [cls.status for cls in errors.all_errors()] == sorted(SEED_CODES + EXTRA_CODES)


def test_codes_beyond_the_table_are_marked():
    assert [cls.status for cls in errors.all_errors() if not cls.in_seed] == sorted(EXTRA_CODES)


def test_the_outcome_is_unknown_for_exactly_the_codes_that_promise_nothing():
    assert {cls.status for cls in ALL_CLASSES if cls.maybe_written} == UNKNOWN_OUTCOME_CODES


def test_a_retry_is_offered_only_where_time_or_another_broker_can_help():
    assert {cls.status for cls in errors.all_errors() if not cls.retriable} == NOT_RETRIABLE_CODES


@pytest.mark.parametrize(("status", "name"), NAMES.items())
def test_a_well_known_name_keeps_its_code(status, name):
    assert getattr(errors, name).status == status


@by_name
def test_a_class_is_named_as_an_error_and_explains_itself(cls):
    assert cls.__name__.endswith("Error")
    assert cls.__doc__


@by_name
@pytest.mark.parametrize("part", ["cause", "fix"])
def test_cause_and_fix_are_one_short_sentence_line(cls, part):
    text = getattr(cls, part)
    assert text == text.strip()
    assert text.isprintable()
    assert text.endswith(".")
    assert 10 <= len(text) <= 110


def test_no_two_codes_share_a_cause():
    causes = [cls.cause for cls in errors.all_errors()]
    assert len(set(causes)) == len(causes)


def test_each_code_has_its_own_cause_and_fix_not_its_family_s():
    assert [cls for cls in errors.all_errors() if not {"cause", "fix"} <= vars(cls).keys()] == []


def test_the_tree_is_flat_base_family_error():
    assert {cls.__mro__.index(LakeMQError) for cls in errors.all_errors()} == {2}


@pytest.mark.parametrize("status", SEED_CODES + EXTRA_CODES)
def test_a_status_comes_back_as_the_class_that_sent_it(status):
    error = errors.from_status(status, "orders, partition 3")
    assert type(error).status == status
    assert error.detail == str(error) == "orders, partition 3"


@pytest.mark.parametrize("status", [-1, 0, 10, 255, 300], ids=lambda status: f"status{status}")
def test_a_status_nobody_knows_becomes_an_unknown_error_that_names_it(status):
    error = errors.from_status(status, "as the peer said")
    assert type(error) is UnknownError
    assert error.detail == f"status {status} is not known here: as the peer said"
    assert str(errors.from_status(status)) == f"status {status} is not known here"


def test_without_a_detail_the_text_is_the_cause():
    error = NotLeaderError()
    assert error.detail == ""
    assert str(error) == NotLeaderError.cause


def test_an_error_survives_pickling_as_spark_workers_do_it():
    for error in (TopicNotFoundError("orders"), TopicNotFoundError(detail="orders"), TopicNotFoundError()):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.detail, str(copy)) == (type(error), error.detail, str(error))


def test_a_local_error_never_travels():
    assert BadFrameError.status is None
    assert BadFrameError not in errors.all_errors()


def test_a_second_class_with_a_taken_status_is_refused():
    with pytest.raises(AssertionError, match="status 189 already belongs to TopicNotFoundError"):

        class LostTopicError(LakeMQError):
            status = 189

    assert type(errors.from_status(189)) is TopicNotFoundError


def test_a_subclass_that_only_inherits_a_status_is_refused_too():
    with pytest.raises(AssertionError, match="status 188 already belongs to NotLeaderError"):

        class StillNotLeaderError(NotLeaderError):
            pass


@pytest.mark.parametrize("number", [0, 256, -16])
def test_a_status_that_is_success_or_does_not_fit_a_byte_is_refused(number):
    with pytest.raises(AssertionError, match=f"status {number} does not fit"):

        class OddError(LakeMQError):
            status = number


def test_the_module_imports_nothing_but_typing():
    tree = ast.parse(Path(errors.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["from typing import ClassVar"]

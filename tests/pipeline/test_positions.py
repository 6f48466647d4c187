"""Where a read begins and ends, in the words of Spark's Kafka source and ours."""

import pytest

from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.options import read_source
from lakemq.pipeline.positions import Said, check_order, from_json, resolve, to_json
from lakemq.wire.own import PartitionRange

TOPICS = {"orders": None}


def ranges(topic, moment, group):
    """Two partitions of 10 to 100 and 0 to 50; a moment is at 40; the group stands at 20 and 5."""
    acks = (20, 5) if group == "billing" else (-1, -1)
    time_index = -1 if moment is None else 40
    return {
        0: PartitionRange(0, acks[0], 10, 100, time_index),
        1: PartitionRange(1, acks[1], 0, 50, time_index),
    }


def where(default="earliest", **options):
    said = read_source({"subscribe": "orders", **options})
    return resolve(said.starting or Said("", "word", default), TOPICS, ranges)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, (10, 0)),
        ({"startingOffsets": "latest"}, (100, 50)),
        ({"startingOffsets": '{"orders": {"0": 30, "1": -1}}'}, (30, 50)),
        ({"startingOffsets": '{"orders": {"0": -2, "1": 7}}'}, (10, 7)),
        ({"startingOffsets": "-20"}, (80, 30)),
        ({"startingOffsets": "-10m"}, (40, 40)),
        ({"startingOffsets": "group:billing"}, (20, 5)),
        ({"startingTimestamp": "1760000000000"}, (40, 40)),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 1760000000000, "1": 1760000000000}}'}, (40, 40)),
    ],
)
def test_what_is_said_means_these_offsets(options, found):
    assert where(**options) == {("orders", 0): found[0], ("orders", 1): found[1]}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('{"orders": {"0": 1}}', "startingOffsets for orders leaves out partition 1"),
        (
            '{"orders": {"0": 101, "1": 0}}',
            r"startingOffsets: orders, partition 0 ends at offset 100, before 101. Write",
        ),
        ('{"orders": {"0": 1, "1": 1}, "oders": {"0": 3}}', "speaks of 'oders', which is not read. Did you mean 'ord"),
        ("lastest", "startingOffsets='lastest' is no place in a topic. Did you mean 'latest'"),
        ("Earlyest", "startingOffsets='Earlyest' is no place in a topic. Did you mean 'earliest'"),
        ("17", "startingOffsets='17' is no place in a topic. Write earliest, latest"),
        ("group:", "startingOffsets='group:' is no place in a topic"),
        ('{"orders": {"0": 1, "1": 1, "7": 1}}', "no partition 7"),
        ('{"other": {"0": 1}}', "says nothing about orders"),
        ('{"orders": {"0": -5, "1": 0}}', "no offset"),
        ('{"orders": {"0": "x", "1": 0}}', "no offset"),
        ("{", "not JSON"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(said, text):
    with pytest.raises(OptionError, match=text):
        where(startingOffsets=said)


def test_positions_travel_as_json():
    positions = {("a", 0): 1, ("a", 10): 2, ("b.c", 3): 4}
    assert from_json(to_json(positions)) == positions


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "which topics"),
        ({"subscribe": "a", "subscribePattern": "b"}, "which topics"),
        ({"subscribe": "a", "maxOffsetPerTrigger": "3"}, "Did you mean 'maxOffsetsPerTrigger'"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true, false, archive"),
        ({"subscribe": "a", "failOnDataLoss": "archive"}, "Give option lake"),
        ({"assign": "[]"}, "assign is JSON"),
        ({"assign": '{"a": []}'}, "assign is JSON"),
        ({"assign": '{"a": [-1]}'}, "assign is JSON"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a moment"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": '{"a": {"0": "x"}}'}, "endingOffsetsByTimestamp: 'x' is not a"),
        ({"subscribe": "a", "endingOffsets": "lates"}, "endingOffsets='lates' is no place.*'latest'"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "span of time"),
    ],
)
def test_wrong_options_are_refused_with_the_next_step(options, text):
    with pytest.raises(OptionError, match=text):
        read_source(options)


def test_names_of_options_may_be_written_in_any_case():
    found = read_source({"SUBSCRIBE": "a, b", "maxoffsetspertrigger": "5", "bootstrap.servers": "host:1"})
    assert found.topics == ("a", "b")
    assert found.offsets_max == 5
    assert found.server.url == "lakemq://host:1"


def test_a_token_is_not_shown():
    assert "secret" not in repr(read_source({"subscribe": "a", "token": "secret"}))


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ('{"orders": {"0": 1760000000000}}', "startingOffsetsByTimestamp for orders leaves out partition 1"),
        ('{"orders": {"0": 1, "1": 1, "9": 1}}', "startingOffsetsByTimestamp: orders has no partition 9. It has 0, 1"),
        ('{"other": {"0": 1}}', "startingOffsetsByTimestamp says nothing about orders"),
    ],
)
def test_times_name_all_partitions_and_no_others(named, text):
    with pytest.raises(OptionError, match=text):
        where(startingOffsetsByTimestamp=named)


def test_assigned_partitions_must_be_there_and_are_all_that_offsets_speak_of():
    offsets = read_source({"assign": '{"orders": [1]}', "startingOffsets": '{"orders": {"1": 7}}'})
    assert resolve(offsets.starting, {"orders": (1,)}, ranges) == {("orders", 1): 7}
    with pytest.raises(OptionError, match=r"assign: orders has no partition 5\. It has 0, 1"):
        resolve(Said("", "word", "earliest"), {"orders": (0, 5)}, ranges)


def test_an_end_may_pass_what_there_is_only_if_that_is_said():
    said = read_source({"subscribe": "orders", "endingOffsets": '{"orders": {"0": 500, "1": 50}}'}).ending
    with pytest.raises(OptionError, match="endingOffsets: orders, partition 0 ends at offset 100, before 500"):
        resolve(said, TOPICS, ranges)
    assert resolve(said, TOPICS, ranges, may_pass_end=True)["orders", 0] == 500


def test_an_end_before_its_start_is_refused_where_both_are_offsets_or_both_times():
    start, end = Said("startingOffsets", "offsets", {}), Said("endingOffsets", "offsets", {})
    text = "endingOffsets lies before startingOffsets: offset 3 before 5, in partition 0 of orders"
    with pytest.raises(OptionError, match=text):
        check_order(start, end, {("orders", 0): 5}, {("orders", 0): 3})
    check_order(start, end, {("orders", 0): 5}, {("orders", 0): 5})
    check_order(Said("startingOffsets", "word", "latest"), end, {("orders", 0): 5}, {("orders", 0): 3})

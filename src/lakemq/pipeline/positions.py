"""Where a read begins and ends: what the user said, made offsets of partitions.

A position is an offset per topic and partition; on the outside it is JSON in the shape of Spark's Kafka source,
`{"orders": {"0": 17}}`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lakemq.pipeline.errors import OptionError
from lakemq.wire.own import PartitionRange

Place = tuple[str, int]
Positions = dict[Place, int]

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_GROUP = "group:"

Ranges = Callable[[str, str | None, str], dict[int, PartitionRange]]
"""Topic, moment and group in; how far its partitions reach out."""


def to_json(positions: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """As Spark keeps it."""
    out: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    return out


def from_json(value: Mapping[str, Mapping[str, int]]) -> Positions:
    """What `to_json` gave."""
    return {(topic, int(partition)): offset for topic, parts in value.items() for partition, offset in parts.items()}


def resolve(said: Any, default: str, topics: Mapping[str, tuple[int, ...] | None], ranges: Ranges) -> Positions:
    """The offsets that `said` means in those topics (and only those partitions of them, if any are named)."""
    said = said or {"text": default}
    found: Positions = {}
    for topic, only in topics.items():
        reach = _of_topic(said, topic, ranges)
        for partition, offset in reach.items():
            if only is None or partition in only:
                found[topic, partition] = offset
    return found


def _of_topic(said: Mapping[str, Any], topic: str, ranges: Ranges) -> dict[int, int]:
    if "times" in said:
        return _by_times(_named(said["times"], topic, "OffsetsByTimestamp"), topic, ranges)
    if "time" in said:
        return {p: _at_time(one) for p, one in ranges(topic, _moment(said["time"]), "").items()}
    if "offsets" in said:
        return _by_offsets(_named(said["offsets"], topic, "Offsets"), topic, ranges(topic, None, ""))
    text = said["text"]
    if text in _WORDS:
        return {p: _word(_WORDS[text], one) for p, one in ranges(topic, None, "").items()}
    if text.startswith(_GROUP):
        reach = ranges(topic, None, text.removeprefix(_GROUP))
        return {p: max(one.ack_index, one.first_index) for p, one in reach.items()}
    if text.startswith("-") and text[1:].isdigit():  # the last so many of each partition
        back = int(text[1:])
        return {p: max(one.visible_index - back, one.first_index) for p, one in ranges(topic, None, "").items()}
    return {p: _at_time(one) for p, one in ranges(topic, text, "").items()}


def _by_offsets(named: Mapping[str, Any], topic: str, reach: Mapping[int, PartitionRange]) -> dict[int, int]:
    wanted = {int(p): offset for p, offset in named.items()}
    unknown = sorted(set(wanted) - set(reach))
    if unknown:
        raise OptionError(f"{topic} has no partition {unknown[0]}", f"It has {sorted(reach)}.")
    missing = sorted(set(reach) - set(wanted))
    if missing:
        raise OptionError(f"the offsets for {topic} leave out partition {missing[0]}", "Name all; -2 is earliest.")
    for partition, offset in wanted.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
            raise OptionError(f"{topic}, partition {partition}: {offset!r} is no offset")
    return {p: _word(offset, reach[p]) if offset < 0 else offset for p, offset in wanted.items()}


def _by_times(named: Mapping[str, Any], topic: str, ranges: Ranges) -> dict[int, int]:
    found = {}
    for partition, time in named.items():
        reach = ranges(topic, _moment(str(time)), "")
        if int(partition) not in reach:
            raise OptionError(f"{topic} has no partition {partition}", f"It has {sorted(reach)}.")
        found[int(partition)] = _at_time(reach[int(partition)])
    return found


def _named(value: Any, topic: str, option: str) -> Mapping[str, Any]:
    parts = value.get(topic) if isinstance(value, dict) else None
    if not isinstance(parts, dict) or not all(key.isdigit() for key in parts):
        raise OptionError(f"…{option} says nothing about {topic}", f'Write {{"{topic}": {{"0": …}}}}.')
    return parts


def _moment(text: str) -> str:
    """Milliseconds since 1970, as Spark has it, are told apart from ISO text and "-10m"."""
    return f"@{text}" if text.isdigit() else text


def _word(offset: int, one: PartitionRange) -> int:
    return one.first_index if offset == EARLIEST else one.visible_index


def _at_time(one: PartitionRange) -> int:
    return one.visible_index if one.time_index < 0 else max(one.time_index, one.first_index)

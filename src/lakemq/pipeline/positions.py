"""Where a read begins and ends: what the user said, made offsets of partitions.

A position is an offset per topic and partition; on the outside it is JSON in the shape of Spark's Kafka source,
`{"orders": {"0": 17}}`. What cannot be right is refused, with the name of the option: taken in silence it would be a
read that is short, or empty, and looks whole.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakemq.client.duration import moment_ms
from lakemq.errors import BadParameterError
from lakemq.pipeline.errors import OptionError
from lakemq.wire.own import PartitionRange

Place = tuple[str, int]
Positions = dict[Place, int]

EARLIEST, LATEST = -2, -1
TOPIC_ID = "id"  # beside the partitions of a topic: which one they are of
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_GROUP = "group:"
_FORMS = "Write earliest, latest, -100, -10m, a time in ISO form, group: and a name, or JSON with offsets."

Ranges = Callable[[str, str | None, str], dict[int, PartitionRange]]
"""Topic, moment and group in; how far its partitions reach out."""


@dataclass(frozen=True, slots=True)
class Said:
    """A place as the user has said it: by which option, in which form, and the text or the JSON."""

    option: str
    form: str  # word, group, back, time, times or offsets
    value: Any

    @property
    def ids(self) -> dict[str, str]:
        """Of which topics offsets are, where that was said."""
        if self.form != "offsets":
            return {}
        return {topic: str(parts[TOPIC_ID]) for topic, parts in self.value.items() if TOPIC_ID in parts}

    @property
    def is_time(self) -> bool:
        """Whether it is a moment, so that it means one order in all partitions."""
        return self.form in ("time", "times")


def read_text(option: str, text: str) -> Said:
    """What a text such as latest, -100, -10m or group:billing means; OptionError where it means nothing."""
    if text in _WORDS:
        return Said(option, "word", text)
    if text.startswith(_GROUP) and text != _GROUP:
        return Said(option, "group", text.removeprefix(_GROUP))
    if text.startswith("-") and text[1:].isdecimal():
        return Said(option, "back", int(text[1:]))
    return Said(option, "time", _moment(option, text, _WORDS))


def read_time(option: str, text: str) -> Said:
    """A moment: milliseconds since 1970, as Spark has it, ISO text or -10m."""
    return Said(option, "time", _moment(option, text))


def read_offsets(option: str, value: Any) -> Said:
    """Offsets by topic and partition."""
    for topic, parts in _by_topic(option, value, TOPIC_ID).items():
        for partition, offset in parts.items():
            if partition == TOPIC_ID:
                continue
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise OptionError(
                    f"{option}: {offset!r} is no offset, for partition {partition} of {topic}",
                    "Write a number from 0 on, -2 for earliest or -1 for latest.",
                )
    return Said(option, "offsets", value)


def read_times(option: str, value: Any) -> Said:
    """Moments by topic and partition."""
    found = {
        topic: {partition: _moment(option, str(time)) for partition, time in parts.items()}
        for topic, parts in _by_topic(option, value).items()
    }
    return Said(option, "times", found)


def _by_topic(option: str, value: Any, *others: str) -> Mapping[str, Mapping[str, Any]]:
    """JSON by topic and partition, and perhaps other keys beside the partitions."""
    if not isinstance(value, dict) or not all(
        isinstance(parts, dict) and all((p.isascii() and p.isdecimal()) or p in others for p in parts)
        for parts in value.values()
    ):
        raise OptionError(f"{option} is JSON by topic and partition", f'Write {option}={{"orders": {{"0": …}}}}.')
    return value


def _moment(option: str, text: str, words: Mapping[str, int] | None = None) -> str:
    """As the broker's door takes it: milliseconds since 1970 are told apart from ISO text and "-10m"."""
    if text.isascii() and text.isdecimal() and words is None:
        return f"@{text}"
    try:
        moment_ms(text, 0)
    except BadParameterError as error:
        near = difflib.get_close_matches(text.lower(), words or (), 1)
        if near:
            raise OptionError(f"{option}={text!r} is no place in a topic", f"Did you mean {near[0]!r}?") from None
        if words is not None:
            raise OptionError(f"{option}={text!r} is no place in a topic", _FORMS) from None
        raise OptionError(f"{option}: {error}", "Milliseconds since 1970 are understood, too.") from None
    return text


def to_json(positions: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """As Spark keeps it."""
    out: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        out.setdefault(topic, {})[str(partition)] = offset
    return out


def from_json(value: Mapping[str, Mapping[str, int]]) -> Positions:
    """What `to_json` gave."""
    return {(topic, int(partition)): offset for topic, parts in value.items() for partition, offset in parts.items()}


def resolve(
    said: Said, topics: Mapping[str, tuple[int, ...] | None], ranges: Ranges, *, may_pass_end: bool = False
) -> Positions:
    """The offsets that `said` means in those topics (and only those partitions of them, if any are named)."""
    if said.form in ("times", "offsets"):
        _check_topics(said, topics)
    found: Positions = {}
    for topic, only in topics.items():
        for partition, offset in _of_topic(said, topic, _narrowed(ranges, only), may_pass_end).items():
            found[topic, partition] = offset
    return found


def _narrowed(ranges: Ranges, only: tuple[int, ...] | None) -> Ranges:
    """The same, of the partitions that `assign` names."""

    def narrowed(topic: str, moment: str | None, group: str) -> dict[int, PartitionRange]:
        reach = ranges(topic, moment, group)
        if only is None:
            return reach
        _check_partitions("assign", topic, only, reach)
        return {partition: reach[partition] for partition in only}

    return narrowed


def _of_topic(said: Said, topic: str, ranges: Ranges, may_pass_end: bool) -> dict[int, int]:
    if said.form == "times":
        return _by_times(said, topic, ranges)
    if said.form == "offsets":
        return _by_offsets(said, topic, ranges(topic, None, ""), may_pass_end)
    if said.form == "group":
        return {p: max(one.ack_index, one.first_index) for p, one in ranges(topic, None, said.value).items()}
    if said.form == "time":
        return {p: _at_time(one) for p, one in ranges(topic, said.value, "").items()}
    reach = ranges(topic, None, "")
    if said.form == "back":  # the last so many of each partition
        return {p: max(one.visible_index - said.value, one.first_index) for p, one in reach.items()}
    return {p: _word(_WORDS[said.value], one) for p, one in reach.items()}


def _check_topics(said: Said, topics: Mapping[str, Any]) -> None:
    for topic in topics:
        if topic not in said.value:
            raise OptionError(f"{said.option} says nothing about {topic}", f'Write {{"{topic}": {{"0": …}}}}.')
    for name in said.value:
        if name not in topics:
            near = difflib.get_close_matches(name, topics, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Topics that are read: {', '.join(sorted(topics))}."
            raise OptionError(f"{said.option} speaks of {name!r}, which is not read", hint)


def _check_partitions(option: str, topic: str, named: Any, reach: Mapping[int, PartitionRange]) -> None:
    unknown = sorted(set(named) - set(reach))
    if unknown:
        has = ", ".join(map(str, sorted(reach)))
        raise OptionError(f"{option}: {topic} has no partition {unknown[0]}", f"It has {has}.")


def _by_offsets(said: Said, topic: str, reach: Mapping[int, PartitionRange], may_pass_end: bool) -> dict[int, int]:
    wanted = _named(said, topic, reach)
    for partition, offset in wanted.items():
        end = reach[partition].visible_index
        if offset > end and not may_pass_end:
            raise OptionError(
                f"{said.option}: {topic}, partition {partition} ends at offset {end}, before {offset}",
                f"Write {end}, or -1 for latest.",
            )
    return {p: _word(offset, reach[p]) if offset < 0 else offset for p, offset in wanted.items()}


def _by_times(said: Said, topic: str, ranges: Ranges) -> dict[int, int]:
    wanted = _named(said, topic, ranges(topic, None, ""))
    return {partition: _at_time(ranges(topic, time, "")[partition]) for partition, time in wanted.items()}


def _named(said: Said, topic: str, reach: Mapping[int, PartitionRange]) -> dict[int, Any]:
    """What is said for each partition of a topic, and for all of them."""
    wanted = {int(partition): one for partition, one in said.value[topic].items() if partition != TOPIC_ID}
    _check_partitions(said.option, topic, wanted, reach)
    missing = sorted(set(reach) - set(wanted))
    if topic in said.ids:  # they were taken, not written by hand: a partition that is not there has come since
        return {**wanted, **dict.fromkeys(missing, 0)}
    if missing:
        hint = "Name all; -2 is earliest." if said.form == "offsets" else "Name all; 0 is the beginning."
        raise OptionError(f"{said.option} for {topic} leaves out partition {missing[0]}", hint)
    return wanted


def check_order(start: Said | None, end: Said | None, starts: Positions, ends: Positions) -> None:
    """Refuse an end that lies before its start, where both were said in the same terms."""
    if start is None or end is None or not (start.form == end.form == "offsets" or (start.is_time and end.is_time)):
        return
    for place, first in starts.items():
        if first > ends.get(place, first):
            raise OptionError(
                f"{end.option} lies before {start.option}: offset {ends[place]} before {first}, in partition "
                f"{place[1]} of {place[0]}",
                "Exchange them.",
            )


def _word(offset: int, one: PartitionRange) -> int:
    return one.first_index if offset == EARLIEST else one.visible_index


def _at_time(one: PartitionRange) -> int:
    return one.visible_index if one.time_index < 0 else max(one.time_index, one.first_index)

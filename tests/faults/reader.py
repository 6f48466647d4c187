"""Reads all of a store that was closed in peace and tells, as JSON, what it could not read (F17).

    python -m tests.faults.reader DIRECTORY [--mapped] [--cut SEGMENT]

Reads a message at a time after an error, as a consumer would that skips what it is refused. `--cut` takes a segment's
bytes away once they are mapped: looking at them then raises the same signal as a bad sector does.
"""

import argparse
import json
import os
import sys

from lakemq.envelope import unpack_all
from lakemq.errors import ReadError
from lakemq.message import BatchMessage
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.world.disk import RealDisk

from .content import Bodies
from .ledger import Place
from .writer import SEED, die_with_parent, small_config


def read_all(group: PartitionGroup, place: Place) -> tuple[int, list[int]]:
    """How many messages of a partition were right, and the indexes of those that were refused with a ReadError."""
    bodies, right, refused, index = Bodies(SEED), 0, [], 0
    while index < group.visible_index(*place):
        try:
            part = group.read(*place, index, 1)[0]
        except ReadError:
            refused.append(index)
            index += 1
            continue
        for value in unpack_all(part.messages):
            for message in value.messages() if isinstance(value, BatchMessage) else [value]:
                if message.index >= index:
                    assert bodies.name_of(message.body) is not None, f"{place} {message.index} is not what was sent"
                    right += 1
        index = part.next_index
    return right, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--cut", help="the path of a segment")
    options = parser.parse_args()
    die_with_parent()
    group = open_group(RealDisk(options.directory), small_config(maps_segments=options.mapped))
    if options.cut:
        for place in group.partitions():
            read_all(group, place)
        os.truncate(options.cut, 0)
    found = {f"{topic}/{partition}": read_all(group, (topic, partition)) for topic, partition in group.partitions()}
    group.abandon()
    sys.stdout.write(
        json.dumps(
            {
                "right": sum(right for right, _ in found.values()),
                "refused": {name: refused for name, (_, refused) in found.items()},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

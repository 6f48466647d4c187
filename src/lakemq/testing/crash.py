"""What a power loss may leave of a simulated disk: one legal state out of many, drawn by a random generator.

What was synced is always left. Of what was not, each mode leaves something else:

* nothing, everything: as they say
* prefix: the first operations
* subset: any of them, so that a later one survives an earlier one (F14)
* torn: the first ones, and of the next write the first bytes (F13)
* sectors: the first ones, and of the later writes some sectors of 512 bytes
* zero_tail: the first ones, and of the later writes the length but not the bytes
* garbage_tail: as zero_tail, with rubbish where no sync ever put bytes: noise, or a copy of other bytes of the file
* mixed: one of these for all files, or another one for each

Names survive as a prefix per directory, in every mode but the first two. The same generator gives the same state.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from lakemq.testing.content import DataOperation, Extend, FileNode, Write, without_data
from lakemq.testing.tree import Directory, NameStep, Tree

SECTOR_BYTES = 512


def draw_survivor(tree: Tree, rng: Random, mode: str) -> Tree:
    """The disk after a power loss, at rest. `tree` is used up."""
    if mode == "mixed" and rng.random() < 0.25:  # else a disk of many files would never lose everything at once
        mode = rng.choice(_FILE_MODES)
    if mode != "mixed" and mode not in _DRAWS:
        raise ValueError(f"no such mode of power loss: {mode!r}")
    _settle_names(tree.unsynced, rng, mode)
    survivor = Tree()
    survivor.root = _rest(tree.root, rng, mode)
    return survivor


def _settle_names(steps: list[NameStep], rng: Random, mode: str) -> None:
    """Settle the steps that reached the disk: those before a point drawn for each directory."""
    left = Counter(directory for step in steps for directory in step.directories)
    if mode == "nothing":
        left.clear()
    elif mode != "everything":
        left = Counter({each: count if rng.random() < 0.5 else rng.randint(0, count) for each, count in left.items()})
    lost: set[NameStep] = set()
    for step in steps:
        if all(left[each] > 0 for each in step.directories) and lost.isdisjoint(step.needs):
            step.settle()
            left.subtract(step.directories)
        else:
            lost.add(step)
            left.update({each: -len(steps) for each in step.directories})  # nothing later on these either


def _rest(directory: Directory, rng: Random, mode: str) -> Directory:
    twin = Directory()
    for name in sorted(directory.durable):
        node = directory.durable[name]
        twin.durable[name] = _rest(node, rng, mode) if isinstance(node, Directory) else _rest_file(node, rng, mode)
    twin.seen = twin.durable.copy()
    return twin


def _rest_file(node: FileNode, rng: Random, mode: str) -> FileNode:
    survivor = node.settled_copy()
    if node.unsynced:
        survivor.settle(_DRAWS[rng.choice(_FILE_MODES) if mode == "mixed" else mode](node, rng))
        survivor.seen = survivor.durable.copy()
    return survivor


def _nothing(node: FileNode, rng: Random) -> list[DataOperation]:
    return []


def _everything(node: FileNode, rng: Random) -> list[DataOperation]:
    return node.unsynced


def _prefix(node: FileNode, rng: Random) -> list[DataOperation]:
    return node.unsynced[: rng.randint(0, len(node.unsynced))]


def _subset(node: FileNode, rng: Random) -> list[DataOperation]:
    return [each for each in node.unsynced if rng.random() < 0.5]


def _torn(node: FileNode, rng: Random) -> list[DataOperation]:
    writes = [(number, each) for number, each in enumerate(node.unsynced) if isinstance(each, Write)]
    if not writes:
        return _prefix(node, rng)
    number, last = rng.choice(writes)
    kept_bytes = rng.randrange(1, len(last.data)) if len(last.data) > 1 else 0
    return [*node.unsynced[:number], Write(last.position, last.data[:kept_bytes])]


def _sectors(node: FileNode, rng: Random) -> list[DataOperation]:
    kept, later = _split(node, rng)
    for each in later:
        if not isinstance(each, Write):
            kept.append(each)
            continue
        start = each.position
        while start < each.end:
            end = min(each.end, start - start % SECTOR_BYTES + SECTOR_BYTES)
            if rng.random() < 0.5:
                kept.append(Write(start, each.data[start - each.position : end - each.position]))
            start = end
        if rng.random() < 0.5:  # the length may arrive without the last sectors
            kept.append(Extend(each.end))
    return kept


def _zero_tail(node: FileNode, rng: Random) -> list[DataOperation]:
    kept, later = _split(node, rng)
    return kept + without_data(later)


def _garbage_tail(node: FileNode, rng: Random) -> list[DataOperation]:
    kept, later = _split(node, rng)
    for each in later:
        if isinstance(each, Write):
            kept.append(Extend(each.end))
            kept += [
                Write(start, _garbage(node, rng, end - start))
                for start, end in node.settled.gaps(each.position, each.end)
            ]
        else:
            kept.append(each)
    return kept


def _garbage(node: FileNode, rng: Random, size: int) -> bytes:
    """Noise, or worse: bytes that were right elsewhere in this file, as a block that was used before may hold them."""
    if not node.settled.ends or rng.random() < 0.5:
        return rng.randbytes(size)
    start = rng.choice((0, max(0, node.settled.ends[-1] - size)))
    old = node.durable.read(start, size)
    return old + rng.randbytes(size - len(old))


def _split(node: FileNode, rng: Random) -> tuple[list[DataOperation], list[DataOperation]]:
    """Those that reached the disk, and at least one that did not."""
    count = rng.randrange(len(node.unsynced))
    return node.unsynced[:count], node.unsynced[count:]


_DRAWS: dict[str, Callable[[FileNode, Random], list[DataOperation]]] = {
    "nothing": _nothing,
    "everything": _everything,
    "prefix": _prefix,
    "subset": _subset,
    "torn": _torn,
    "sectors": _sectors,
    "zero_tail": _zero_tail,
    "garbage_tail": _garbage_tail,
}
_FILE_MODES = tuple(_DRAWS)
MODES = (*_FILE_MODES, "mixed")

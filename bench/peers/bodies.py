"""Bodies of messages, the same for every peer: orders as JSON, all different, each time the same."""

from __future__ import annotations

import functools
import random

CITIES = ("Beijing", "Shanghai", "Guangzhou", "Chengdu", "Wuhan", "Xi'an", "Harbin", "Kunming")
GOODS = ("kettle", "bicycle", "notebook", "headset", "umbrella", "backpack", "lamp", "keyboard", "scarf", "tent")


@functools.cache
def body(n: int, size: int) -> bytes:
    """The n-th of `size` bytes. lz4 makes a batch of 100 of 1 KB about half as large: orders repeat, not much."""
    chance = random.Random(n)
    parts = [f'{{"order":{n:08d},"buyer":"{chance.getrandbits(64):016x}","city":"{chance.choice(CITIES)}","items":[']
    length = len(parts[0])
    while length < size:
        parts.append(
            f'{{"sku":{chance.randrange(10**8)},"name":"{chance.choice(GOODS)}","price":{chance.randrange(100, 99999)},'
            f'"sign":"{chance.getrandbits(96):024x}"}},'
        )
        length += len(parts[-1])
    return "".join(parts).encode()[:size]

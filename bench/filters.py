"""What it costs to look at stored messages with a filter, in nanoseconds a message.

    python bench/filters.py [--quick] [--json]

The baseline of each is the walk alone: a filter that wants all.
"""

from lakemq.delivery.filters import parse_filter
from lakemq.delivery.selection import select
from lakemq.envelope import pack
from lakemq.message import Message

from measure import Result, arguments, best_ns, report

COUNT = 1000
SQL = "color = 'red' AND (size > 3 OR size IS NULL) AND region IN ('eu', 'us')"


def messages(is_each_different: bool) -> bytes:
    """A kilobyte each; one in ten is wanted."""
    return b"".join(
        pack(
            Message(
                body=b"7" * 960,
                business_id=f"order-{n}",
                attributes={
                    "TAGS": "paid" if n % 10 == 0 else "new",
                    "color": "red",
                    "size": "4",
                    "region": "eu" if n % 10 == 0 else "cn",
                }
                | ({"trace": f"{n:032x}"} if is_each_different else {}),
                app="shop",
                index=n,
                partition=0,
            )
        )
        for n in range(COUNT)
    )


def measured(name: str, text: str, data: bytes, repeat: int, baseline: float | None) -> Result:
    wanted = parse_filter(text)
    value = best_ns(lambda: select(data, COUNT, wanted, 0), repeat) / COUNT
    ratio = None if baseline is None else value / baseline
    return Result(name, value, "ns/message", baseline, ratio)


def main() -> None:
    flags = arguments(__doc__ or "")
    repeat = 20 if flags.quick else 200
    alike, different = messages(False), messages(True)
    walk = measured("wants all", "*", alike, repeat, None)
    report(
        [
            walk,
            measured("one tag", "paid", different, repeat, walk.value),
            measured("four tags", "paid || refund || late || lost", different, repeat, walk.value),
            measured("expression, attributes alike", SQL, alike, repeat, walk.value),
            measured("expression, attributes all different", SQL, different, max(repeat // 10, 2), walk.value),
        ],
        flags.json,
    )


if __name__ == "__main__":
    main()

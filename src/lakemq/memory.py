"""Memory that was freed stays with the process for a while: a busy one needs as much again in a moment.

Entries of indexes, requests and answers, and in Spark's workers blocks and their columns, come and go by the megabyte.
glibc gives each large piece back to the kernel at once, and the next one is fetched page by page, zeroed, and on a
virtual machine perhaps fetched from its host: a twentieth of the time of a broker that takes in batches, and longer
than the decoding in a worker.
"""

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as <malloc.h> numbers them
_PIECE_BYTES_MAX = 8 << 20  # larger ones are mapped, and go back when they are freed


@cache
def keep_freed_memory(bytes_max: int = 32 << 20) -> bool:
    """For this process, from now on, so much at the heap's end; False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, bytes_max)) and bool(mallopt(_MMAP_THRESHOLD, _PIECE_BYTES_MAX))

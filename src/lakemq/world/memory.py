"""Memory that was freed stays with the process for a while: a busy broker needs as much again in a moment.

Entries of indexes, requests and answers come and go by the megabyte. glibc gives each large piece back to the kernel at
once, and the next one is fetched page by page, zeroed, and on a virtual machine perhaps fetched from its host: that was
a twentieth of the time of a broker that takes in batches.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as <malloc.h> numbers them
_KEPT_BYTES_MAX = 32 << 20  # free at the heap's end; what is beyond goes back
_PIECE_BYTES_MAX = 8 << 20  # larger ones are mapped, and go back when they are freed


def keep_freed_memory() -> bool:
    """For this process, from now on; False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)) and bool(mallopt(_MMAP_THRESHOLD, _PIECE_BYTES_MAX))

"""Memory of Spark's Python workers, which take blocks of a megabyte apart, one after the other.

The C library gives memory of that size back to the system as soon as it is free, and asks for it again for the next
block: every page of it is then cleared and mapped anew, which took longer than the decoding. Told to keep some, it
hands out the same pages again.
"""

import ctypes

# Of glibc's <malloc.h>.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

_KEPT_BYTES = 64 << 20  # free memory that stays with the process; some blocks, their rows and their columns are 8 MB
_LARGEST_BYTES = 32 << 20  # what is larger is mapped for itself all the same; glibc takes no more

_is_kept = False


def keep_pages() -> None:
    """Keep memory that was freed for the next block; once in a process, and nothing where the C library is another."""
    global _is_kept
    if _is_kept:
        return
    _is_kept = True
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    tell(_TRIM_THRESHOLD, _KEPT_BYTES)
    tell(_MMAP_THRESHOLD, _LARGEST_BYTES)

"""CRC-32 as zlib computes it, by whatever computes it fastest here."""

try:
    from lakemq._hot import crc32
except ImportError:  # no compiler when it was installed
    from zlib import crc32

__all__ = ["crc32"]

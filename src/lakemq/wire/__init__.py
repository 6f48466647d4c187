"""jmq4 on the wire: bytes to commands and back, in both dialects."""

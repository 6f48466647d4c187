"""The storage engine: journal, indexes and state files, over a Disk."""

"""Simulated twins of the outside world, shipped so that users can test with them too."""

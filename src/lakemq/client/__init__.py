"""The client: what decides is pure (`core.py` and what it holds), `blocking.py` and `aio.py` only move bytes."""

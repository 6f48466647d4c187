"""The whole broker as one state machine: events and the time in, calls on the world out."""

"""For all tests: what a property test needs is not measured in milliseconds, on a machine that others use, too."""

from hypothesis import settings

settings.register_profile("lakemq", deadline=None)
settings.load_profile("lakemq")

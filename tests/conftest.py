"""For all tests: property tests have no deadline, since a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("handbook", deadline=None)
settings.load_profile("handbook")

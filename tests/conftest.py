"""Settings of every test: a slow machine is not a failure."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None, print_blob=True)
settings.load_profile("unhurried")

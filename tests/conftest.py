"""Settings of every test: a slow machine is not a failure, and nobody times compiled code."""

import gc
import os

import pytest
from hypothesis import settings

gc.disable()  # until all tests are imported: they are no garbage, and searching them takes as long

settings.register_profile("unhurried", deadline=None, print_blob=True)
settings.load_profile("unhurried")

# torch reads it when its compiler is imported, here and in every process that a test starts. It is
# for the calls around the kernels, whose own level stays: a third of what g++ takes.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has the garbage collector begin, without what was imported."""
    del session
    gc.freeze()
    gc.enable()

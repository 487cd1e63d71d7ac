"""Hypothesis without deadlines: the first call of a kernel compiles it."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")

"""Triton kernels of the operations one folder up; importing a module here needs triton."""

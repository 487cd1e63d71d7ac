"""Optimizer steps for a CPU in C++, compiled by the machine's own compiler when first asked for."""

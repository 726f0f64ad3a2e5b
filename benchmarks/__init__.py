"""Benchmarks of sremkit. sremkit is imported before torch: it decides how OpenMP threads wait for each other."""

import sremkit  # noqa: F401

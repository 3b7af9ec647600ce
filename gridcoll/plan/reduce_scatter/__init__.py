"""Reduce-scatter: every rank gets its block of the combined contributions of all ranks."""

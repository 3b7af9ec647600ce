"""Reduce-scatter: every rank gets its block of what all bring, combined."""

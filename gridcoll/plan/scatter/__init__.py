"""Scatter: every rank gets its block from the root."""

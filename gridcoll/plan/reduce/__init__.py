"""Reduce: the contributions of all ranks, combined at the root."""

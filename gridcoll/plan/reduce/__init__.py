"""Reduce: what all ranks bring, combined at the root."""

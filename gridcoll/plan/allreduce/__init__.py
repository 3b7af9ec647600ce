"""Allreduce: what all ranks contribute, combined, for all ranks."""

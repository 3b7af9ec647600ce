"""Allgather: every rank's block for all ranks."""

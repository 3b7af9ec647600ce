"""Allgather: every rank's block for everybody."""

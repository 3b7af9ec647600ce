"""Allreduce: what all ranks bring, combined, for everybody."""

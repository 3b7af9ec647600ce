"""Broadcast: the root's message to all ranks."""

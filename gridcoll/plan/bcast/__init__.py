"""Broadcast: the root's message to everybody."""

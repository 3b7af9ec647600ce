"""Gather: the root gets a block from every rank."""

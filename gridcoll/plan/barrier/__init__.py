"""Barrier: nobody leaves before everybody has come."""

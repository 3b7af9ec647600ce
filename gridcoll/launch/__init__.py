"""Run applications that were written without gridcoll."""

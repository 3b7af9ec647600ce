"""Running applications that know nothing of gridcoll."""

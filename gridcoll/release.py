"""The release of gridcoll, as users see it and as ranks compare it."""

from __future__ import annotations

__version__ = "0.1.0"
"""The version of this release."""

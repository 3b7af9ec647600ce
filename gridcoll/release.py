"""Which release this is, for `gridcoll` and for what ranks tell each other."""

from __future__ import annotations

__version__ = "0.1.0"
"""The version of this release."""

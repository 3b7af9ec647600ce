"""Which release this is, for `gridcoll` and for what ranks tell each other."""

from __future__ import annotations

VERSION = "0.1.0"

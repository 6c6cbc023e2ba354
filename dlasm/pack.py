"""A partition of contigs and their candidate reads as one compact host buffer."""

from __future__ import annotations

"""What the agent tells a child about a file that is being filled."""

from __future__ import annotations

import struct

NEWS = struct.Struct("<Q?")
"""Bytes from the beginning that are there, and whether those are that were wished for."""

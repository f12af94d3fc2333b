"""What tests of the dashboard share."""

from __future__ import annotations

from tests.dashboard.meeting_place import offered, place

__all__ = ["offered", "place"]

"""`decide`, for a step that still imports it from here."""

from stages.document import decide

__all__ = ["decide"]

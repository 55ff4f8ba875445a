"""Analysis against the event simulator, and against theory."""

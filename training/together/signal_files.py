"""Files in the launcher's folder, by which it and its ranks tell each other how the run stands."""

STOP = "stop"
"""The run is to stop."""
GO_ON = "go-on"
"""It has come far enough to be resumed."""

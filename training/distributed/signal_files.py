"""Files in the launcher's folder, by which it and its ranks tell each other how the run stands."""

STOP = "stop"
"""The run is to stop."""
GO_ON = "go-on"
"""What was there before the run is forgotten, or taken up: ranks that start again resume."""

"""Files in the launcher's folder, through which it and its ranks exchange the run's state."""

STOP = "stop"
"""Requests that the run stops."""
GO_ON = "go-on"
"""Marks that earlier checkpoints were removed or resumed: restarted ranks resume."""

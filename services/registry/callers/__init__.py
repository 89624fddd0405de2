"""Recent requests of callers, and which of them a new version would break."""

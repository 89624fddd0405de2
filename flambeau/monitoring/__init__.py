"""Dashboards, alert rules and the list of metrics: defined here, and generated as files."""

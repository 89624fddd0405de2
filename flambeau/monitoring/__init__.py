"""Dashboards, alert rules and the list of metrics, written down once and generated from here."""

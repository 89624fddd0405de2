"""The report of a run: JSON, a table, a page with plots."""

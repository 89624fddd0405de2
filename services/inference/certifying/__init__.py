"""Certifies artifacts: verifies them again on the machine that serves them."""

"""Imports models that were trained elsewhere: derives artifacts, verifies and publishes them."""

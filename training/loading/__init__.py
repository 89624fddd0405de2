"""Reads, checks, orders and augments rows, and makes batches of them."""

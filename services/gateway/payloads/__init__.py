"""Samples of requests and responses, as an operator configures them."""

"""Samples of requests and answers, as an operator asks for them."""

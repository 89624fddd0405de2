"""Cryptographic signatures of versions, and the keys for them."""

"""Writes versions of the store as files of other servers."""

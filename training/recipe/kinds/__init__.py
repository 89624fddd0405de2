"""Kinds of artifact as training makes them: a file for each, and the table of all of them."""

"""The rules by which two answers are equal."""

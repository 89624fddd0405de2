"""Semantic versions: their rules, which change needs which, and an index of those published."""

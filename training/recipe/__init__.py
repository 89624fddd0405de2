"""The recipe: its schema, files, and the targets that it names."""

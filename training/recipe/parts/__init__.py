"""The parts of a recipe, one or two keys per file: pure rules, no I/O."""

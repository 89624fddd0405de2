"""The parts of a recipe, one file a key or two: pure rules, no I/O."""

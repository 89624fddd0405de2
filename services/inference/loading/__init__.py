"""The store's versions to loaded models: which artifact, within what memory, and when."""

"""The versioned model store: versions of models, their storage, and the pointers to live ones."""

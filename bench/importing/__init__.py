"""Benchmarks of models that were trained elsewhere: publishing, Python models, pipelines."""

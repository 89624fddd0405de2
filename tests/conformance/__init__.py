"""Conformance: calls against their protocols, fuzzers, and a comparison with a live Triton."""

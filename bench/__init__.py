"""Benchmarks of stridedview beside its floor and its peers: ``python -m bench``."""

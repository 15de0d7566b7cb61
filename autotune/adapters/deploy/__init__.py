"""Puts releases into service: in a model repository directory, on a live Triton, or both."""

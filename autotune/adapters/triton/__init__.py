"""Triton Inference Server: its environment, its processes, its configuration."""

"""Builds variants of a model: recipes, calibration, engines, and the cache of what was built."""

"""Figures: their data apart from their drawing."""

"""Searches: the order in which a space's candidates are measured."""

from autotune.adapters.search.exhaustive import GridSearch, RandomSearch
from autotune.adapters.search.optuna_search import OptunaSearch

__all__ = ["GridSearch", "OptunaSearch", "RandomSearch"]

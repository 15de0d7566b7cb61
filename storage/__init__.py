"""Where studies are remembered: a SQL database, SQLite by default.

schema      the tables, as typed models
plain       what can be stored as JSON, and how NaN and infinity survive it
rows        measurements and trials to rows and back, exactly
failures    the database's errors in autotune's words
opening     from a URL or a path to an engine whose schema is up to date
store       `SqlTrialStore`, the port's implementation
summaries   narrow reads of studies with many trials, for showing
service     `ServiceStore`: jobs, schedules, promotions, tokens and notices beside the studies
migrations  Alembic's, run at opening
"""

from storage.service import ServiceStore
from storage.store import SqlTrialStore

__all__ = ["ServiceStore", "SqlTrialStore"]

"""Since when a schedule is active; runs are found by their schedule, their time and their job."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "schedules", sa.Column("active_since", sa.Double(), nullable=False, server_default="0")
    )
    op.execute("UPDATE schedules SET active_since = created_at")
    op.drop_index(op.f("ix_schedule_runs_schedule"), table_name="schedule_runs")
    for columns in (["schedule", "scheduled_for"], ["scheduled_for"], ["job_id"]):
        op.create_index(op.f(f"ix_schedule_runs_{'_'.join(columns)}"), "schedule_runs", columns)

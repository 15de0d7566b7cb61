"""What GPUs tell beside utilization; a price; what failed requests were told."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("memory_total_mb", sa.Double(), nullable=True),
        sa.Column("gauges", sa.JSON(), nullable=False, server_default="{}"),
        sa.Column("price_per_hour", sa.Double(), nullable=True),
        sa.Column("error_texts", sa.JSON(), nullable=False, server_default="{}"),
    ):
        op.add_column("measurements", column)

"""Intervals, traffic, windows of varying length, disturbances; comparisons."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("intervals", sa.JSON(), nullable=False, server_default="{}"),
        sa.Column("traffic_qps", sa.Double(), nullable=True),
        sa.Column("arrival", sa.String(length=20), nullable=True),
        sa.Column("arrival_cv", sa.Double(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("warmup_s", sa.Double(), nullable=True),
        sa.Column("steady", sa.Boolean(), nullable=True),
        sa.Column("ended", sa.String(length=20), nullable=True),
        sa.Column("saturation_s", sa.Double(), nullable=True),
        sa.Column("foreign_cpu", sa.Double(), nullable=True),
        sa.Column("foreign_gpu", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("throttled", sa.JSON(), nullable=False, server_default="[]"),
    ):
        op.add_column("measurements", column)

    op.create_table(
        "comparisons",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("second", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(length=40), nullable=False),
        sa.Column("effect", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("relation", sa.String(length=20), nullable=False),
        sa.Column("pairs", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_comparisons_study_id_studies"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comparisons")),
    )
    op.create_index(op.f("ix_comparisons_study_id"), "comparisons", ["study_id"])

"""Steps of a pipeline, accuracy; variants."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("accuracy_drop", sa.Double(), nullable=True),
        sa.Column("server_instances", sa.Integer(), nullable=True),
        sa.Column("steps", sa.JSON(), nullable=False, server_default="{}"),
    ):
        op.add_column("measurements", column)

    op.create_table(
        "variants",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("variant", sa.String(length=60), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("size_mb", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("accuracy_drop", sa.Double(), nullable=True),
        sa.Column("served_drop", sa.Double(), nullable=True),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_variants_study_id_studies"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_variants")),
    )
    op.create_index(op.f("ix_variants_study_id"), "variants", ["study_id"])

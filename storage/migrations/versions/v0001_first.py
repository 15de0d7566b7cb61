"""Studies, environments, trials, measurements, decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index(op.f("ix_studies_name"), "studies", ["name"])

    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=False),
        sa.Column("pick", sa.Integer(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("exported_to", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_decisions_study_id_studies"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_study_id"), "decisions", ["study_id"])

    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_environments_study_id_studies"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
    )
    op.create_index(op.f("ix_environments_study_id"), "environments", ["study_id"])

    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("candidate", sa.JSON(), nullable=False),
        sa.Column("candidate_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_trials_study_id_studies"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
    )
    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("valid", sa.Boolean(), nullable=False),
        sa.Column("invalid_because", sa.JSON(), nullable=False),
        sa.Column("instances", sa.Integer(), nullable=False),
        sa.Column("reload_s", sa.Double(), nullable=True),
        sa.Column("saturation_qps", sa.Double(), nullable=True),
        sa.Column("offered_qps", sa.Double(), nullable=True),
        sa.Column("achieved_qps", sa.Double(), nullable=True),
        sa.Column("window_s", sa.Double(), nullable=True),
        sa.Column("scheduled", sa.Integer(), nullable=False),
        sa.Column("sent", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("ok", sa.Integer(), nullable=False),
        sa.Column("error_rate", sa.Double(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.Column("generator_cpu", sa.Double(), nullable=True),
        sa.Column("max_in_flight", sa.Integer(), nullable=False),
        sa.Column("in_flight_cap_hit", sa.Boolean(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=True),
        sa.Column("mean_ms", sa.Double(), nullable=True),
        sa.Column("p50_ms", sa.Double(), nullable=True),
        sa.Column("p90_ms", sa.Double(), nullable=True),
        sa.Column("p95_ms", sa.Double(), nullable=True),
        sa.Column("p99_ms", sa.Double(), nullable=True),
        sa.Column("max_ms", sa.Double(), nullable=True),
        sa.Column("service_count", sa.Integer(), nullable=True),
        sa.Column("service_mean_ms", sa.Double(), nullable=True),
        sa.Column("service_p50_ms", sa.Double(), nullable=True),
        sa.Column("service_p90_ms", sa.Double(), nullable=True),
        sa.Column("service_p95_ms", sa.Double(), nullable=True),
        sa.Column("service_p99_ms", sa.Double(), nullable=True),
        sa.Column("service_max_ms", sa.Double(), nullable=True),
        sa.Column("lag_count", sa.Integer(), nullable=True),
        sa.Column("lag_mean_ms", sa.Double(), nullable=True),
        sa.Column("lag_p50_ms", sa.Double(), nullable=True),
        sa.Column("lag_p90_ms", sa.Double(), nullable=True),
        sa.Column("lag_p95_ms", sa.Double(), nullable=True),
        sa.Column("lag_p99_ms", sa.Double(), nullable=True),
        sa.Column("lag_max_ms", sa.Double(), nullable=True),
        sa.Column("other_percentiles", sa.JSON(), nullable=False),
        sa.Column("histogram", sa.Text(), nullable=False),
        sa.Column("server_requests", sa.Integer(), nullable=True),
        sa.Column("executions", sa.Integer(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=True),
        sa.Column("queue_ms", sa.Double(), nullable=True),
        sa.Column("compute_input_ms", sa.Double(), nullable=True),
        sa.Column("compute_infer_ms", sa.Double(), nullable=True),
        sa.Column("compute_output_ms", sa.Double(), nullable=True),
        sa.Column("compute_ms", sa.Double(), nullable=True),
        sa.Column("mean_batch", sa.Double(), nullable=True),
        sa.Column("batches", sa.JSON(), nullable=False),
        sa.Column("utilization", sa.Double(), nullable=True),
        sa.Column("utilization_source", sa.Text(), nullable=True),
        sa.Column("memory_mb", sa.Double(), nullable=True),
        sa.Column("memory_source", sa.Text(), nullable=True),
        sa.Column("telemetry_series", sa.JSON(), nullable=False),
        sa.Column("telemetry_notes", sa.JSON(), nullable=False),
        sa.Column("nan_columns", sa.JSON(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name=op.f("fk_measurements_trial_id_trials"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
    )
    op.create_index(op.f("ix_measurements_trial_id"), "measurements", ["trial_id"])

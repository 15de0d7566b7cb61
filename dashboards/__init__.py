"""What a study looks like.

figures.data   the numbers of each figure, computed from trials
figures.draw   those numbers as Plotly figures, plain data
report         one self-contained HTML file per study
plots_library  Plotly's script, for the report and the pages
templates      its page, style and script
"""

from dashboards.report import render_report

__all__ = ["render_report"]

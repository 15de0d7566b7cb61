"""What pages are built of.

acts       buttons that change something, each with a dialog that asks first
callbacks  callbacks that keep the event loop free, and what their errors become
states     badges of states and standings, each a word and a colour
words      times, durations and numbers as people read them
cards      figures in a row, facts in two columns, sections
tables     small tables for reading, and grids for many rows
notes      empty states, notices, errors
"""

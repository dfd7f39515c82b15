"""Telling: one view, from which console, HTML and JSON are made."""

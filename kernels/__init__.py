"""Treatments that need device code of their own: one op per file, each with a reference in plain torch."""

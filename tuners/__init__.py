"""Treatment: which changes to try, how to compare them, and what to keep."""

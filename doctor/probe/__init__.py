"""Everything that runs inside the user's process: standard library and torch only, and nothing may raise into it."""

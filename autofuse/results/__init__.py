"""What autofuse finds and measures, as plain data, and its JSON. Imports nothing else of autofuse."""

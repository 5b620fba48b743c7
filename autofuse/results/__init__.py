"""What autofuse finds and measures, as plain data, and its JSON. This folder imports no other folder of autofuse."""

"""`autofuse demo`: compares one small model before and after optimization: loss, time, memory and source."""

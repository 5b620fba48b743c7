"""Traces a forward: one run on stand-ins, recorded as an fx graph with the guards under which it is valid."""

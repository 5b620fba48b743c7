"""What a forward does: one run on a stand-in, written down as an fx graph with the guards it needs."""

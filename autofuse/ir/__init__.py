"""The dataflow graph of a program, the vocabulary of operations, and facts about values that need no run."""

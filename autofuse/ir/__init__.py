"""What a program is: its dataflow graph, the vocabulary of operations, and facts about values that are known unrun."""

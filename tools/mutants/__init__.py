"""Whether the tests would notice: small wrong changes of the code, each in a copy of the tree, each with its tests."""

"""The results of autofuse as plain data, and their JSON. This folder imports no other folder of autofuse."""

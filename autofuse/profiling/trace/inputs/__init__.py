"""Reads files of other tools as traces, memory and levels: Nsight Systems, rocprof, torch's memory snapshots, DCGM."""

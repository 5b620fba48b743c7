"""What other tools write, as traces, memory and levels: Nsight Systems, rocprof, torch's memory snapshots, DCGM."""

"""What other tools write, as traces, memory and rungs: Nsight Systems, rocprof, torch's memory snapshots, DCGM."""

#!/bin/sh
# The demo's benchmark on one CUDA GPU, in the sizes and types that GPUs are used with.
# No result of it is committed yet: benchmarks/results/ holds only what was measured.
set -eu
cd "$(dirname "$0")/.."
for dtype in float32 bfloat16; do
    python benchmarks/demo.py --device cuda --dtype "$dtype" --length 1024 --batch 32 --pairs 50 \
        --output "benchmarks/results/demo-cuda-$dtype.json" || echo "a target was missed in $dtype"
done

#!/bin/sh
# Everything on one CUDA GPU: correctness, operations and whole training steps, then the demo's benchmark in the sizes
# and types that GPUs are used with. A call of the first ends within ten minutes; repeat it until all rows are there.
# No result of it is committed yet: benchmarks/results/ holds only what was measured.
set -eu
cd "$(dirname "$0")/.."
python -m benchmarks.gpu --out "${1:-benchmarks/results/gpu}"
for dtype in float32 bfloat16; do
    python benchmarks/demo.py --device cuda --dtype "$dtype" --length 1024 --batch 32 --pairs 50 \
        --output "benchmarks/results/demo-cuda-$dtype.json" || echo "a target was missed in $dtype"
done

#!/bin/sh
# Measures everything on one CUDA GPU: correctness, operations and whole training steps, then the demo's model in sizes
# and dtypes that are usual on GPUs. A call of benchmarks.gpu ends within ten minutes; repeat it until all rows are done.
# docs/gpu.md has the committed results.
set -eu
cd "$(dirname "$0")/.."
python -m benchmarks.gpu --out "${1:-benchmarks/results/gpu}" --workers 8
for dtype in float32 bfloat16; do
    python benchmarks/demo.py --device cuda --dtype "$dtype" --length 1024 --batch 32 --pairs 50 \
        --output "benchmarks/results/demo-cuda-$dtype.json" || echo "demo.py missed a target in $dtype"
done

#!/bin/sh
# Every table and figure of this directory. Half an hour on two quiet cores; `sh reproduce.sh` here.
set -e
cd "$(dirname "$0")"
study="gridcoll study"

for filling in independent symmetric per-cluster per-cluster-max; do
    $study heuristics --filling "$filling" --references 200 --output "table2-$filling" > "table2-$filling.txt"
done
$study heuristics --parameters adaptive --references 200 --output adaptive > adaptive.txt
$study heuristics --internal predicted --references 200 --output table2-predicted > table2-predicted.txt
$study heuristics --clusters 10,50 --busy gap+latency --output table2-busy > table2-busy.txt
$study heuristics --clusters 10,50 --internal-start from-arrival --output table2-overlap > table2-overlap.txt
$study grid5000 --output grid5000 > grid5000.txt
$study optimum --cpu-time --clusters 5,8,10,12 --budgets 0.002,0.1 --exact --instances 200 --output optimum-exact > optimum-exact.txt
$study optimum --cpu-time --clusters 10,12,20 --budgets 0.1,1 --exact --plain --instances 200 --output optimum-plain > optimum-plain.txt
$study optimum --cpu-time --clusters 10,20,50 --budgets 0.01,0.1,1 --instances 200 --output optimum > optimum.txt
$study optimum --cpu-time --clusters 500 --budgets 1 --instances 20 --output optimum-500 > optimum-500.txt

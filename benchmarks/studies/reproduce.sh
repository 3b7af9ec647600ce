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
$study fillings --output fillings.csv --plot fillings.svg > fillings.txt
$study heuristics --clusters 5,10,20,50 --heuristic fef --heuristic ecef --heuristic ecef-la --heuristic ecef-la-max-t --heuristic bottom-up --heuristic bottom-up-la > bottom-up-la.txt
$study grid5000 --output grid5000 > grid5000.txt
$study grid5000 --inside best --output grid5000-best > grid5000-best.txt
$study grid5000 --variants --output grid5000 > grid5000-variants.txt
measured=""
for rows in ../results/lg-nancy-rennes-*.json; do
    measured="$measured --measured $rows"
done
for figure in 4 5 6; do
    $study total-exchange --figure $figure $measured --plot "paper-001-figure-$figure.svg" > "paper-001-figure-$figure.txt"
done
$study total-exchange --fit --plot paper-001-fit.svg > paper-001-fit.txt
measured="--model one-cluster-24/model.json"
for rows in one-cluster-24/bcast*.json one-cluster-24/scatter*.json one-cluster-24/alltoall.json; do
    measured="$measured --measured $rows"
done
for figure in 1 2 3 4 7 8 9 10 11; do
    $study one-cluster --figure $figure $measured --plot "one-cluster-24/paper-003-figure-$figure.svg" > "one-cluster-24/paper-003-figure-$figure.txt"
done
for figure in 5 6; do
    $study one-cluster --figure $figure --ranks 24 $measured --plot "one-cluster-24/paper-003-figure-$figure.svg" > "one-cluster-24/paper-003-figure-$figure.txt"
done
for table in 1 2 3; do
    $study one-cluster --table $table --plot "one-cluster-24/paper-003-table-$table.svg" > "one-cluster-24/paper-003-table-$table.txt"
done
$study placement-faces --plot paper-004-figure-1.svg > paper-004-figure-1.txt
$study optimum --cpu-time --clusters 5,8,10,12 --budgets 0.002,0.1 --exact --instances 200 --output optimum-exact > optimum-exact.txt
$study optimum --cpu-time --clusters 10,12,20 --budgets 0.1,1 --exact --plain --instances 200 --output optimum-plain > optimum-plain.txt
$study optimum --cpu-time --clusters 10,20,50 --budgets 0.01,0.1,1 --instances 200 --output optimum > optimum.txt
$study optimum --cpu-time --clusters 500 --budgets 1 --instances 20 --output optimum-500 > optimum-500.txt
